// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"runtime"
	"time"
)

// Defaults of Config.
const (
	DefaultGrace           = 30 * time.Second
	DefaultSettle          = time.Second
	DefaultMonitorInterval = 100 * time.Millisecond
	DefaultRestartDelay    = time.Second
	DefaultRole            = "default"
)

// maxRestartDelay is the longest time between two attempts, unless RestartDelay is longer.
const maxRestartDelay = time.Minute

// steady is how long an attempt runs at least whose failure has nothing to do with the one before.
const steady = 5 * time.Minute

// Config says what to start. The zero value of a field is its default.
type Config struct {
	// Program is the executable, a path or a name in PATH, and Args its arguments.
	Program string
	Args    []string
	// Env is the environment to which the ranks' variables are added; nil means this process's own.
	Env []string
	// Dir is the ranks' working directory; "" is this process's own.
	Dir string

	// ProcsPerNode is the number of ranks on this host, at least 1.
	ProcsPerNode int
	// Nodes is the number of hosts; 0 means 1. All have the same ProcsPerNode.
	Nodes int
	// NodeRank is this host's number, 0 ≤ NodeRank < Nodes.
	NodeRank int
	// Elastic, unless nil, lets hosts join and leave: Nodes, NodeRank, MasterAddr and MasterPort are then what each
	// round of the job makes them, and not given.
	Elastic *Elastic
	// MasterAddr is where rank 0 is met; "" stands for 127.0.0.1 on a single host.
	MasterAddr string
	// MasterPort is its TCP port. 0, on a single host only, lets the launcher open a free
	// port and hand the listening socket to rank 0 (env.Environment.MasterListener).
	MasterPort int
	// Token is the job's secret, handed to the ranks in a file without a name
	// (env.Environment.JobToken). "" makes a random one, on a single host only: several must
	// be given the same.
	Token string

	// MaxRestarts is how often a failed group is started again. A failure that a rank recorded
	// as permanent (bad arguments, say) would come again, and ends the job at once.
	MaxRestarts int
	// RestartDelay is the time before the first restart; 0 means 1 s. It doubles, up to a minute, with each attempt
	// that fails within 5 minutes.
	RestartDelay time.Duration
	// RunID names the job (TORCHELASTIC_RUN_ID and the log folder), of letters, digits,
	// '.', '_' and '-'; "" stands for a random name, "none" on several hosts.
	RunID string
	// Role is torchrun's ROLE_NAME; "" stands for "default".
	Role string

	// LogDir is where each run makes a folder with attempt_<n>/<local rank>/stdout.log,
	// stderr.log and error.json. "" keeps no logs, unless Redirects or Tee ask for some:
	// then it is a folder in the system's temporary one.
	LogDir string
	// Redirects are the streams that go to log files and not to the console.
	Redirects Streams
	// Tee are the streams that go to both, whatever Redirects says.
	Tee Streams
	// ShowRanks are the local ranks whose streams reach the console; nil means all.
	ShowRanks []int
	// Stdout and Stderr are the console. Each line begins with its rank in brackets. nil
	// discards.
	Stdout, Stderr io.Writer
	// Logger is told of restarts and of what had to be killed; nil discards.
	Logger *slog.Logger

	// Grace is the time between a signal and SIGKILL; 0 means 30 s.
	Grace time.Duration
	// Settle is the time that the other ranks have after a failure to end by themselves and say what they saw, before
	// they get SIGTERM; 0 means 1 s.
	Settle time.Duration
	// MonitorInterval is how often killed process groups are looked at until they are empty; 0 means 100 ms. The end of
	// a rank is noticed at once.
	MonitorInterval time.Duration
	// Signals are forwarded to all ranks and end the job: the channel of signal.Notify.
	Signals <-chan os.Signal
	// Guard is the command of a program that calls Guard, started beside the ranks; nil
	// starts none.
	Guard []string
	// Cores are shared by the ranks of this host: GOMAXPROCS and OMP_NUM_THREADS, where Env does not set them, become
	// Cores / ProcsPerNode, at least 1. 0 means what this process may use.
	Cores int
}

var runID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// withDefaults fills in what is zero.
func (c Config) withDefaults() Config {
	c.Nodes = cmp.Or(c.Nodes, 1)
	if c.MasterAddr == "" && c.Nodes == 1 {
		c.MasterAddr = "127.0.0.1"
	}
	if c.Elastic != nil {
		c.Elastic = c.Elastic.withDefaults()
	}
	c.Role = cmp.Or(c.Role, DefaultRole)
	if c.Env == nil {
		c.Env = os.Environ()
	}
	c.Stdout, c.Stderr = cmp.Or(c.Stdout, io.Discard), cmp.Or(c.Stderr, io.Discard)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Cores = cmp.Or(c.Cores, runtime.GOMAXPROCS(0))
	c.Grace, c.Settle = cmp.Or(c.Grace, DefaultGrace), cmp.Or(c.Settle, DefaultSettle)
	c.MonitorInterval = cmp.Or(c.MonitorInterval, DefaultMonitorInterval)
	c.RestartDelay = cmp.Or(c.RestartDelay, DefaultRestartDelay)
	return c
}

// WorldSize is the number of ranks on all hosts.
func (c *Config) WorldSize() int { return c.ProcsPerNode * max(1, c.Nodes) }

// Validate reports all that is wrong, each fault with its value and what was wanted.
func (c Config) Validate() error {
	c = c.withDefaults()
	var faults []error
	want := func(ok bool, format string, a ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("launch: "+format, a...))
		}
	}
	want(c.Program != "", "no program to start")
	want(c.ProcsPerNode >= 1, "nproc_per_node is %d: want at least 1", c.ProcsPerNode)
	want(c.Nodes >= 1, "nnodes is %d: want at least 1", c.Nodes)
	want(c.NodeRank >= 0 && c.NodeRank < max(1, c.Nodes), "node_rank is %d: want 0..%d", c.NodeRank, max(1, c.Nodes)-1)
	want(c.MasterPort >= 0 && c.MasterPort <= 65535, "master_port is %d: want 0..65535", c.MasterPort)
	want(c.MaxRestarts >= 0, "max_restarts is %d: want 0 or more", c.MaxRestarts)
	want(c.Cores >= 1, "cores is %d: want at least 1", c.Cores)
	want(c.Grace > 0, "grace is %v: want more than 0", c.Grace)
	want(c.RestartDelay > 0, "restart_delay is %v: want more than 0", c.RestartDelay)
	want(c.Settle > 0, "settle is %v: want more than 0", c.Settle)
	want(c.MonitorInterval > 0, "monitor_interval is %v: want more than 0", c.MonitorInterval)
	want(c.RunID == "" || runID.MatchString(c.RunID), "run id is %q: want up to 64 letters, digits, '.', '_' and '-'",
		c.RunID)
	for _, r := range c.ShowRanks {
		want(r >= 0 && r < c.ProcsPerNode, "local rank to show is %d: want 0..%d", r, c.ProcsPerNode-1)
	}
	for _, s := range []Streams{c.Redirects, c.Tee} {
		for r := range s.ranks {
			want(r < c.ProcsPerNode, "streams are named for local rank %d: want 0..%d", r, c.ProcsPerNode-1)
		}
	}
	if c.Elastic != nil {
		want(c.Nodes == 1 && c.NodeRank == 0 && c.MasterPort == 0,
			"nodes, node rank or master port are given, and hosts come and go: want an endpoint alone")
		c.Elastic.validate(&c, want)
	}
	if c.Nodes > 1 {
		want(c.MasterAddr != "", "nnodes is %d, and no master_addr is given: want the host of node 0", c.Nodes)
		want(c.MasterPort != 0, "nnodes is %d, and no master_port is given: want the same port on all hosts", c.Nodes)
		want(c.Token != "", "nnodes is %d, and there is no job token: want the same random text on all hosts, in "+
			"LOCKSTEP_JOB_TOKEN or in a file that LOCKSTEP_JOB_TOKEN_FILE names", c.Nodes)
	}
	return errors.Join(faults...)
}
