// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/accelerate/launch"
	"github.com/lockstep-ml/lockstep/comm/env"
)

// launchFlags are torchrun's flags, and what is ours.
type launchFlags struct {
	nproc, nodes     string
	nodeRank         int
	masterAddr       string
	masterPort       int
	standalone       bool
	backend          string
	endpoint         string
	id               string
	maxRestarts      int
	restartDelay     seconds
	monitor          seconds
	role             string
	logDir           string
	redirects, tee   string
	localRanksFilter []int
	grace, settle    seconds
	signals          []string
	noPython         bool
	configFile       string
	lastCall, rejoin seconds
}

func (f *launchFlags) flagSet() *pflag.FlagSet {
	f.monitor, f.grace, f.settle = seconds(launch.DefaultMonitorInterval), seconds(launch.DefaultGrace),
		seconds(launch.DefaultSettle)
	f.restartDelay, f.lastCall = seconds(launch.DefaultRestartDelay), seconds(launch.DefaultLastCall)
	f.rejoin = seconds(launch.DefaultRejoin)
	fs := pflag.NewFlagSet("launch", pflag.ContinueOnError)
	fs.SetInterspersed(false) // what follows PROGRAM is its own
	fs.StringVar(&f.nproc, "nproc_per_node", "1", "ranks on each host: a number, or auto for one for each core")
	fs.StringVar(&f.nodes, "nnodes", "1",
		"number of hosts, or MIN:MAX: hosts may then join and leave while the job runs")
	fs.IntVar(&f.nodeRank, "node_rank", 0, "number of this host, from 0")
	fs.StringVar(&f.masterAddr, "master_addr", "", "host of rank 0 (default 127.0.0.1 on a single host)")
	fs.IntVar(&f.masterPort, "master_port", 0,
		fmt.Sprintf("TCP port of rank 0; 0 takes a free one on a single host, %d on several", env.DefaultMasterPort))
	fs.BoolVar(&f.standalone, "standalone", false,
		"use a single host and a free port, and ignore other settings of rank 0's address")
	fs.StringVar(&f.backend, "rdzv_backend", "static",
		"static; c10d is accepted on a single host, and with MIN:MAX hosts")
	fs.StringVar(&f.endpoint, "rdzv_endpoint", "",
		"HOST[:PORT], instead of master_addr and master_port; with MIN:MAX hosts, a host that stays until the end")
	fs.Var(&f.lastCall, "last_call", "with MIN:MAX hosts: time to wait for more hosts once there are MIN")
	fs.Var(&f.rejoin, "rejoin_timeout", "with MIN:MAX hosts: how long a host that has lost its link tries to "+
		"reach the others")
	fs.StringVar(&f.id, "rdzv_id", "", "name of the job")
	fs.IntVar(&f.maxRestarts, "max_restarts", 0, "how many times to restart all ranks after a failure")
	fs.Var(&f.restartDelay, "restart_delay", "time before the first restart; it doubles after each failed "+
		"restart, up to a minute")
	fs.Var(&f.monitor, "monitor_interval", "how often the launcher checks whether killed process groups are "+
		"empty; it notices the end of a rank immediately")
	fs.StringVar(&f.role, "role", launch.DefaultRole, "torchrun's ROLE_NAME")
	fs.StringVar(&f.logDir, "log_dir", "", "write attempt_<n>/<local rank>/{stdout.log,stderr.log,error.json} in a "+
		"new folder below this one")
	fs.StringVarP(&f.redirects, "redirects", "r", "0",
		"streams that go only to log files: 0 none, 1 stdout, 2 stderr, 3 both, or for each local rank: 0:3,1:1")
	fs.StringVarP(&f.tee, "tee", "t", "0", "streams that go to log files and to the console")
	fs.IntSliceVar(&f.localRanksFilter, "local_ranks_filter", nil, "local ranks whose output is shown (default all)")
	fs.Var(&f.grace, "grace_period", "time between a signal and SIGKILL")
	fs.Var(&f.settle, "settle_time", "time after a failure in which the other ranks may report it before they "+
		"get SIGTERM")
	fs.StringSliceVar(&f.signals, "signals_to_handle", handled,
		"signals that are forwarded and end the job")
	fs.StringVar(&f.configFile, "config_file", "",
		"accelerate's configuration file (YAML or JSON), for flags that are not given and for settings of PROGRAM; "+
			"lockstep config FILE shows what its keys do")
	fs.BoolVar(&f.noPython, "no_python", false, "accepted without effect: PROGRAM is always started directly")
	return fs
}

// config makes the launch of the flags; it collects all faults.
func (f *launchFlags) config(fs *pflag.FlagSet, lookup env.Lookup) (*launch.Config, error) {
	var faults []error
	note := func(err error) {
		if err != nil {
			faults = append(faults, fmt.Errorf("launch: %w", err))
		}
	}
	c := &launch.Config{
		NodeRank: f.nodeRank, MaxRestarts: f.maxRestarts, RunID: f.id, Role: f.role, LogDir: f.logDir,
		ShowRanks: f.localRanksFilter,
		Grace:     time.Duration(f.grace), Settle: time.Duration(f.settle), MonitorInterval: time.Duration(f.monitor),
		RestartDelay: time.Duration(f.restartDelay),
		Cores:        env.ReadHost(lookup).Cores,
	}
	if words := fs.Args(); len(words) > 0 {
		c.Program, c.Args = words[0], words[1:]
	}
	var err error
	c.ProcsPerNode, err = f.procs(c.Cores)
	note(err)
	note(f.hosts(fs, c))
	c.Redirects, err = launch.ParseStreams(f.redirects)
	note(prefixed("redirects", err))
	c.Tee, err = launch.ParseStreams(f.tee)
	note(prefixed("tee", err))
	for _, s := range f.signals {
		if _, ok := signalNames[s]; !ok {
			note(fmt.Errorf("signals_to_handle has %q: want some of %s", s, strings.Join(handled, ", ")))
		}
	}
	c.Token, err = env.Token(lookup)
	if !errors.Is(err, env.ErrNoToken) {
		note(err)
	}
	return c, errors.Join(faults...)
}

func prefixed(flag string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", flag, err)
}

// procs is the number of ranks on this host.
func (f *launchFlags) procs(cores int) (int, error) {
	switch f.nproc {
	case "auto", "cpu":
		return cores, nil
	case "gpu", "xpu":
		return 0, fmt.Errorf("nproc_per_node is %s, and this build runs only on CPUs: want a number or auto", f.nproc)
	}
	n, err := strconv.Atoi(f.nproc)
	if err != nil {
		return 0, fmt.Errorf("nproc_per_node is %q: want a number or auto", f.nproc)
	}
	return n, nil
}

// hosts reads how many hosts there are and where they meet.
func (f *launchFlags) hosts(fs *pflag.FlagSet, c *launch.Config) error {
	low, high, isRange := strings.Cut(f.nodes, ":")
	least, err := strconv.Atoi(low)
	most := least
	if err == nil && isRange {
		most, err = strconv.Atoi(high)
	}
	if err != nil {
		return fmt.Errorf("nnodes is %q: want a number, or MIN:MAX", f.nodes)
	}
	if most == least {
		c.Nodes = least
		return f.master(fs, c)
	}
	for _, name := range []string{"node_rank", "master_addr", "master_port", "standalone"} {
		if fs.Changed(name) {
			return fmt.Errorf("nnodes is %s, and %s is given: want rdzv_endpoint alone: hosts come and go", f.nodes,
				name)
		}
	}
	if !slices.Contains([]string{"static", "c10d"}, f.backend) {
		return fmt.Errorf("rdzv_backend is %q: want c10d", f.backend)
	}
	c.Elastic = &launch.Elastic{MinNodes: least, MaxNodes: most, LastCall: time.Duration(f.lastCall),
		Rejoin: time.Duration(f.rejoin)}
	host, port, err := endpoint(f.endpoint)
	if err == nil && host != "" {
		c.Elastic.Endpoint = net.JoinHostPort(host, strconv.Itoa(cmp.Or(port, env.DefaultMasterPort)))
	}
	return err
}

// master decides where rank 0 is met.
func (f *launchFlags) master(fs *pflag.FlagSet, c *launch.Config) error {
	if !slices.Contains([]string{"static", "c10d"}, f.backend) || f.backend == "c10d" && c.Nodes > 1 {
		return fmt.Errorf("rdzv_backend is %q: want static, with node_rank, master_addr and master_port", f.backend)
	}
	if f.standalone {
		if c.Nodes > 1 {
			return fmt.Errorf("standalone is for a single host, and nnodes is %d", c.Nodes)
		}
		return nil
	}
	c.MasterAddr, c.MasterPort = f.masterAddr, f.masterPort
	if f.endpoint != "" && !fs.Changed("master_addr") {
		host, port, err := endpoint(f.endpoint)
		if err != nil {
			return err
		}
		c.MasterAddr = host
		if port != 0 && !fs.Changed("master_port") {
			c.MasterPort = port
		}
	}
	if c.Nodes > 1 && c.MasterPort == 0 {
		c.MasterPort = env.DefaultMasterPort
	}
	return nil
}

// endpoint reads HOST[:PORT].
func endpoint(text string) (host string, port int, err error) {
	host, number, err := net.SplitHostPort(text)
	if err != nil {
		return text, 0, nil // no port
	}
	port, err = strconv.Atoi(number)
	if err != nil || host == "" {
		return "", 0, fmt.Errorf("rdzv_endpoint is %q: want HOST[:PORT]", text)
	}
	return host, port, nil
}

// seconds is a duration that torchrun writes as a plain number of seconds.
type seconds time.Duration

// String is the duration in Go's form.
func (s *seconds) String() string { return time.Duration(*s).String() }

// Type is what the help text calls the value.
func (*seconds) Type() string { return "seconds" }

// Set reads "0.5" and "500ms".
func (s *seconds) Set(text string) error {
	if n, err := strconv.ParseFloat(text, 64); err == nil && n > 0 && n < 1e9 {
		*s = seconds(n * float64(time.Second))
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is not a duration: want seconds above 0, or a form such as 500ms", text)
	}
	*s = seconds(d)
	return nil
}
