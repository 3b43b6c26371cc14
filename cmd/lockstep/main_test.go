// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/launch"
	"github.com/lockstep-ml/lockstep/comm/env"
)

// asProgram makes the test binary be lockstep, or with the word "rank" one of its ranks.
const asProgram = "CMD_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(asProgram) == "":
		os.Exit(m.Run())
	case os.Args[1] == "rank":
		os.Exit(rank(os.Args[2]))
	}
	main()
}

// rank is the ranks' part.
func rank(what string) int {
	switch what {
	case "place":
		e, err := env.Detect(os.LookupEnv)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 9
		}
		fmt.Println(e.Kind, e.Rank, e.WorldSize, os.Getenv("GOMAXPROCS"))
	case "fail":
		if os.Getenv("RANK") == "1" {
			return 7
		}
		time.Sleep(time.Minute)
	case "complain":
		fmt.Fprintln(os.Stderr, strings.Repeat("a word after ", 20))
		return 8
	case "wait":
		fmt.Println("ready")
		time.Sleep(time.Minute)
	}
	return 0
}

// output runs a command in this process.
func output(variables map[string]string, argv ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	p := &program{stdin: strings.NewReader(""), stdout: &out, stderr: &err, lookup: env.Map(variables)}
	code = p.run(argv)
	return code, out.String(), err.String()
}

func TestUsage(t *testing.T) {
	for _, row := range []struct {
		argv           []string
		code           int
		stdout, stderr string // prefixes
	}{
		{nil, 2, "", "usage: lockstep COMMAND [FLAGS]\n\n  launch           start"},
		{[]string{"help"}, 0, "usage: lockstep COMMAND", ""},
		{[]string{"--help"}, 0, "usage: lockstep COMMAND", ""},
		{[]string{"help", "help"}, 0, "usage: lockstep COMMAND", ""},
		{[]string{"help", "launch"}, 0, "usage: lockstep launch [FLAGS] [--] PROGRAM", ""},
		{[]string{"launch", "--help"}, 0, "usage: lockstep launch [FLAGS] [--] PROGRAM", ""},
		{[]string{"env", "-h"}, 0, "usage: lockstep env", ""},
		{[]string{"version"}, 0, "lockstep ", ""},
		{[]string{"--version"}, 0, "lockstep ", ""},
		{[]string{"lunch"}, 2, "", "lockstep: unknown command \"lunch\"; did you mean launch?\n"},
		{[]string{"help", "evn"}, 2, "", "lockstep: unknown command \"evn\"; did you mean env?\n"},
		{[]string{"xyzzy-plugh"}, 2, "",
			"lockstep: unknown command \"xyzzy-plugh\"; lockstep help shows the commands\n"},
		{[]string{"env", "--jsno"}, 2, "", "lockstep: env: unknown flag --jsno; did you mean --json?\n"},
		{[]string{"env", "x"}, 2, "", "lockstep: env: unexpected word \"x\"\n"},
		{[]string{"version", "x"}, 2, "", "lockstep: version: unexpected word \"x\"\n"},
		{[]string{"launch"}, 2, "", "launch: no program to start\n"},
		{[]string{"launch", "--log-dri", "x", "p"}, 2, "",
			"lockstep: launch: unknown flag --log-dri; did you mean --log_dir?\n"},
		{[]string{"launch", "-z", "p"}, 2, "", "lockstep: launch: unknown shorthand flag: 'z' in -z\n"},
		{[]string{"launch", "--max-restarts", "many", "p"}, 2, "",
			"lockstep: launch: invalid argument \"many\" for \"--max_restarts\" flag"},
		{[]string{"launch", "--nproc_per_node=gpu", "--nnodes=few", "--tee=9", "p"}, 2, "",
			"lockstep: launch: nproc_per_node is gpu, and this build runs only on CPUs: want a number or auto\n" +
				"launch: nnodes is \"few\": want a number, or MIN:MAX\nlaunch: tee: streams \"9\": want 0 (none)"},
		{[]string{"launch", "--nnodes=1:2", "--node_rank=1", "p"}, 2, "",
			"lockstep: launch: nnodes is 1:2, and node_rank is given: want rdzv_endpoint alone: hosts come and go"},
		{[]string{"launch", "--nnodes=4:2", "p"}, 2, "",
			"lockstep: launch: nnodes is 4:2: want MIN:MAX with 1 ≤ MIN ≤ MAX\nlaunch: rdzv_endpoint is \"\": want " +
				"HOST:PORT, the same on all hosts, if they come and go\n" +
				"launch: nnodes is 4:2, and there is no job token"},
	} {
		code, stdout, stderr := output(nil, row.argv...)
		require.Equal(t, row.code, code, row.argv)
		for _, s := range []struct{ prefix, text string }{{row.stdout, stdout},
			{strings.TrimPrefix(row.stderr, "lockstep: "), strings.TrimPrefix(stderr, "lockstep: ")}} {
			require.True(t, strings.HasPrefix(s.text, s.prefix), "%q: %q", row.argv, s.text)
			require.Equal(t, s.prefix == "", s.text == "", "%q: %q", row.argv, s.text)
		}
	}
}

// parsed is the launch of a command line.
func parsed(t *testing.T, variables map[string]string, argv ...string) (*launch.Config, error) {
	t.Helper()
	var f launchFlags
	fs := f.flagSet()
	p := &program{stdout: &bytes.Buffer{}, stderr: &bytes.Buffer{}}
	_, done := p.parse(fs, argv, "")
	require.False(t, done, p.stderr)
	if err := fromEnvironment(fs, env.Map(variables)); err != nil {
		return nil, err
	}
	return f.config(fs, env.Map(variables))
}

func TestLaunchFlags(t *testing.T) {
	defaults := func(change func(c *launch.Config)) launch.Config {
		c := launch.Config{Program: "p", Args: []string{}, ProcsPerNode: 1, Nodes: 1, Role: "default",
			Grace: 30 * time.Second, Settle: time.Second,
			MonitorInterval: 100 * time.Millisecond, RestartDelay: time.Second, Cores: runtime.GOMAXPROCS(0)}
		change(&c)
		return c
	}
	tee, err := launch.ParseStreams("0:3")
	require.NoError(t, err)
	tokenFile := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(tokenFile, []byte("secret\n"), 0o600))
	for _, row := range []struct {
		name      string
		variables map[string]string
		argv      []string
		change    func(c *launch.Config)
	}{
		{"defaults", nil, []string{"p"}, func(*launch.Config) {}},
		{"the program's flags are its own", nil, []string{"--nproc-per-node", "2", "p", "--tee", "x", "--", "y"},
			func(c *launch.Config) {
				c.ProcsPerNode, c.Args = 2, []string{"--tee", "x", "--", "y"}
			}},
		{"after --", nil, []string{"--nproc_per_node=auto", "--", "p", "-r"}, func(c *launch.Config) {
			c.ProcsPerNode, c.Args = runtime.GOMAXPROCS(0), []string{"-r"}
		}},
		{"all", map[string]string{"LOCKSTEP_JOB_TOKEN_FILE": tokenFile},
			[]string{"--nnodes=2:2", "--node_rank=1", "--master_addr=h", "--max-restarts=3", "--rdzv_id=job",
				"--role=r", "--log_dir=l", "-t", "0:3",
				"--local_ranks_filter=0", "--grace_period=2.5", "--settle-time=10ms", "--monitor_interval", "5",
				"--restart_delay=3", "--no-python", "p"}, func(c *launch.Config) {
				c.Nodes, c.NodeRank, c.MasterAddr, c.MasterPort, c.Token = 2, 1, "h", 29500, "secret"
				c.MaxRestarts, c.RunID, c.Role, c.LogDir, c.Tee, c.ShowRanks = 3, "job", "r", "l", tee, []int{0}
				c.Grace, c.Settle, c.MonitorInterval, c.RestartDelay = 2500*time.Millisecond, 10*time.Millisecond,
					5*time.Second, 3*time.Second
			}},
		{"Kubeflow's variables", map[string]string{"PET_NNODES": "4", "PET_NODE_RANK": "3", "PET_NPROC_PER_NODE": "2",
			"PET_MASTER_ADDR": "job-node-0-0.job",
			"PET_MASTER_PORT": "29400", "LOCKSTEP_JOB_TOKEN": "s", "PET_TEE": ""}, []string{"--nproc_per_node=3", "p"},
			func(c *launch.Config) {
				c.Nodes, c.NodeRank, c.ProcsPerNode, c.MasterAddr, c.MasterPort, c.Token = 4, 3, 3, "job-node-0-0.job",
					29400, "s"
			}},
		{"endpoint", nil, []string{"--rdzv-endpoint=h:7", "p"}, func(c *launch.Config) {
			c.MasterAddr, c.MasterPort = "h", 7
		}},
		{"endpoint without port", nil, []string{"--rdzv-endpoint=h", "--master_port=8", "p"}, func(c *launch.Config) {
			c.MasterAddr, c.MasterPort = "h", 8
		}},
		{"endpoint of IPv6", nil, []string{"--rdzv-endpoint=[::1]:7", "p"}, func(c *launch.Config) {
			c.MasterAddr, c.MasterPort = "::1", 7
		}},
		{"an address beats an endpoint", nil, []string{"--rdzv-endpoint=h:7", "--master-addr=i", "p"},
			func(c *launch.Config) { c.MasterAddr = "i" }},
		{"standalone", nil, []string{"--standalone", "--rdzv_backend=c10d", "--rdzv-endpoint=h:7", "--master-addr=i",
			"p"}, func(*launch.Config) {}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c, err := parsed(t, row.variables, row.argv...)
			require.NoError(t, err)
			require.Equal(t, defaults(row.change), *c)
			require.NoError(t, c.Validate())
		})
	}
	for want, argv := range map[string][]string{
		`launch: rdzv_backend is "etcd": want static, with node_rank, master_addr and master_port`: {
			"--rdzv_backend=etcd", "p"},
		`launch: rdzv_backend is "c10d": want static, with node_rank, master_addr and master_port`: {
			"--rdzv_backend=c10d", "--nnodes=2", "p"},
		`launch: standalone is for a single host, and nnodes is 2`: {"--standalone",
			"--nnodes=2", "p"},
		`launch: rdzv_endpoint is "h:x": want HOST[:PORT]`: {"--rdzv_endpoint=h:x",
			"p"},
		`launch: signals_to_handle has "SIGFOO": want some of SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1`: {
			"--signals_to_handle=SIGINT,SIGFOO", "p"},
	} {
		_, err := parsed(t, nil, argv...)
		require.EqualError(t, err, want)
	}
	_, err = parsed(t, map[string]string{"PET_NODE_RANK": "x", "PET_MONITOR_INTERVAL": "0"}, "p")
	require.EqualError(t, err, `PET_NODE_RANK is "x": strconv.ParseInt: parsing "x": invalid syntax`+"\n"+
		`PET_MONITOR_INTERVAL is "0": "0" is not a duration: want seconds above 0, or a form such as 500ms`)
}

// What could not be printed, to a full disk for instance, is not there: the exit code says so.
func TestResultsThatCannotBePrinted(t *testing.T) {
	for _, argv := range []string{"version", "env", "env --json", "simulate", "simulate --format svg --pp_schedule zbv",
		"estimate-memory gpt2", "help"} {
		var complaint bytes.Buffer
		p := &program{stdin: strings.NewReader(""), stdout: full{}, stderr: &complaint, lookup: env.Map(nil)}
		require.Equal(t, exitError, p.run(strings.Fields(argv)), argv)
		require.Contains(t, complaint.String(), "no space left", argv)
	}
}

func TestEnv(t *testing.T) {
	slurm := map[string]string{"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0",
		"SLURM_NNODES": "1", "SLURM_JOB_ID": "7"}
	code, stdout, stderr := output(slurm, "env")
	require.Zero(t, code, stderr)
	for _, want := range []string{`(?m)^kind +Slurm +SLURM_PROCID is set$`, `(?m)^rank +1 +SLURM_PROCID$`,
		`(?m)^master address +127\.0\.0\.1 +all ranks are on this host$`,
		`(?m)^kernels +\w+ +available: generic`, `(?m)^cores +\d+`, `(?m)^go +go1\.`, `(?m)^memory +`} {
		require.Regexp(t, want, stdout)
	}

	code, stdout, _ = output(slurm, "env", "--json")
	require.Zero(t, code)
	var r report
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Equal(t, env.Slurm, r.Environment.Kind)
	require.Equal(t, 1, r.Environment.Rank)
	require.Equal(t, runtime.Version(), r.Build.Go)
	require.Contains(t, r.Kernels.Available, r.Kernels.Active)

	code, _, stderr = output(map[string]string{"RANK": "1"}, "env")
	require.Equal(t, exitError, code)
	require.Equal(t,
		"lockstep: env: environment of torchrun: RANK is set, but the world size is not: want WORLD_SIZE\n", stderr)

	code, stdout, _ = output(map[string]string{"SLURM_PROCID": "1"}, "env")
	require.Zero(t, code)
	require.Contains(t, stdout, "\nnote: SLURM_PROCID is set, but no step's variables")
}

// A fake nvidia-smi stands for a host with a GPU, and one that fails for a driver that does not answer.
func TestEnvListsGPUs(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the fake is a shell script")
	}
	dir := t.TempDir()
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	install := func(script string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte("#!/bin/sh\n"+script), 0o755))
	}
	install("echo '0, NVIDIA H100 80GB HBM3, GPU-a, 00000000:00:1E.0, 9.0, 81559, 570.86.15'\n")
	_, stdout, _ := output(nil, "env")
	require.Contains(t, stdout, "NVIDIA H100 80GB HBM3  79.6 GiB, compute capability 9.0, 00000000:00:1E.0; "+
		"driver 570.86.15, by nvidia-smi\n")
	install("echo 'Driver/library version mismatch'; exit 18\n")
	_, stdout, _ = output(nil, "env")
	require.Regexp(t, `(?m)^gpus +error +nvml: nvidia-smi: exit status 18: Driver/library version mismatch$`, stdout)
}
