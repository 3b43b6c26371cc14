// SPDX-License-Identifier: Apache-2.0

//go:build unix

package launch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm/env"
)

// bench is a Config whose ranks play a part, and what they say.
type bench struct {
	Config
	out, err, log bytes.Buffer
	mark          string
	stop          chan os.Signal // signals that the launcher gets; nil: none can be sent
}

func newBench(t *testing.T, ranks int, part ...string) *bench {
	t.Helper()
	b := &bench{mark: "LAUNCH_TEST_MARK=" + random(8)}
	b.Config = Config{
		Program: os.Args[0], Args: part, ProcsPerNode: ranks, Env: append(os.Environ(), role+"=1", b.mark, raceAtOnce),
		Stdout: &b.out, Stderr: &b.err, Logger: slog.New(slog.NewTextHandler(&b.log, nil)),
		Settle: 100 * time.Millisecond, Grace: 10 * time.Second,
		RestartDelay: 10 * time.Millisecond,
	}
	t.Cleanup(func() { requireNothingLeft(t, b.mark) })
	return b
}

// run must end well before the ranks' own minute and the default grace time.
func (b *bench) run(t *testing.T) error {
	t.Helper()
	start := time.Now()
	err := Run(context.Background(), b.Config)
	require.Less(t, time.Since(start), 25*time.Second)
	return err
}

// requireNothingLeft checks that no process with the mark in its environment runs.
func requireNothingLeft(t *testing.T, mark string) {
	t.Helper()
	require.Empty(t, markedProcesses(t, mark))
}

func fails(t *testing.T, err error) *FailureError {
	t.Helper()
	var f *FailureError
	require.ErrorAs(t, err, &f)
	return f
}

func TestCleanExit(t *testing.T) {
	b := newBench(t, 3, "say", "a\nb")
	require.NoError(t, b.run(t))
	lines := strings.SplitAfter(b.out.String(), "\n")
	require.ElementsMatch(t, []string{"[0] a\n", "[1] a\n", "[2] a\n", "[0] b\n", "[1] b\n", "[2] b\n", ""}, lines)
	require.ElementsMatch(t, []string{"[0] err\n", "[1] err\n", "[2] err\n", ""},
		strings.SplitAfter(b.err.String(), "\n"))
}

func TestEnvironment(t *testing.T) {
	b := newBench(t, 2, "environ")
	b.Env = append(b.Env, "RANK=stale", "GOMAXPROCS=", "OMP_NUM_THREADS=7", "LOCKSTEP_LAUNCH_LISTENER_FD=9")
	b.Nodes, b.NodeRank, b.MasterAddr, b.MasterPort, b.Token = 3, 1, "127.0.0.1", 4242, "secret"
	b.RunID, b.MaxRestarts, b.Cores = "job", 2, 5
	require.NoError(t, b.run(t))
	rank := map[string]map[string]string{"2": {}, "3": {}}
	for line := range strings.Lines(b.out.String()) {
		m := regexp.MustCompile(`^\[(\d)\] ([^=]+)=(.*)\n$`).FindStringSubmatch(line)
		require.Len(t, m, 4, line)
		_, twice := rank[m[1]][m[2]]
		require.False(t, twice, line)
		rank[m[1]][m[2]] = m[3]
	}
	for name, want := range map[string]string{
		"RANK": "3", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
		"GROUP_WORLD_SIZE": "3", "ROLE_NAME": "default",
		"ROLE_RANK": "3", "ROLE_WORLD_SIZE": "6", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4242",
		"TORCHELASTIC_RUN_ID":        "job",
		"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "2", "TORCHELASTIC_USE_AGENT_STORE": "False",
		"GOMAXPROCS":      "2",
		"OMP_NUM_THREADS": "7", "LOCKSTEP_JOB_TOKEN": "", "LOCKSTEP_LAUNCH_LISTENER_FD": "",
	} {
		require.Equal(t, want, rank["3"][name], name)
	}
	require.Equal(t, "2", rank["2"]["RANK"])
	require.Regexp(t, `/attempt_0/1/error\.json$`, rank["3"]["TORCHELASTIC_ERROR_FILE"])
	require.NoDirExists(t, filepath.Dir(rank["3"]["TORCHELASTIC_ERROR_FILE"]))
	require.Len(t, rank["2"]["LOCKSTEP_LAUNCH_ID"], 16)
}

// The token reaches the ranks, and neither their environment nor what they start.
func TestTokenIsNotInherited(t *testing.T) {
	const token = "a token that the launcher was given"
	b := newBench(t, 2, "secret")
	b.Env = append(b.Env, env.VarJobToken+"="+token)
	b.Token = token
	require.NoError(t, b.run(t), b.err.String())
	for _, rank := range []string{"0", "1"} {
		require.Equal(t, 2, strings.Count(b.out.String(), "["+rank+"] token "+token+"\n"), "%s", b.out.String())
	}
	require.Equal(t, 2, strings.Count(b.out.String(), "] child exit status 96 "), "%s", b.out.String())
	require.Equal(t, 2, strings.Count(b.out.String(), "does not hold the job token"), "%s", b.out.String())
	require.Equal(t, 4, strings.Count(b.out.String(), token), "%s", b.out.String())
}

// A token that the launcher makes has 256 bits.
func TestTokenOfTheLauncherIsLong(t *testing.T) {
	b := newBench(t, 1, "secret")
	require.NoError(t, b.run(t), b.err.String())
	require.Regexp(t, `(?m)^\[0\] token [0-9a-f]{64}$`, b.out.String())
}

func TestMasterPortIsHeld(t *testing.T) {
	b := newBench(t, 3, "meet")
	require.NoError(t, b.run(t), b.err.String())
	require.ElementsMatch(t, []string{"[0] met 1\n", "[0] met 2\n", ""}, strings.SplitAfter(b.out.String(), "\n"))
}

func TestOneFails(t *testing.T) {
	b := newBench(t, 3, "exit", "1", "7")
	err := b.run(t)
	f := fails(t, err)
	require.Equal(t, 7, ExitCode(err))
	require.Equal(t, 1, f.Root.Rank)
	require.Equal(t, 7, f.Root.ExitCode)
	require.True(t, f.Root.BySelf)
	require.Positive(t, f.Root.PID)
	require.Equal(t, []string{"about to exit"}, f.Root.Log)
	require.Len(t, f.Others, 2)
	for _, o := range f.Others {
		require.False(t, o.BySelf)
		require.Equal(t, syscall.SIGTERM, o.Signal)
	}
	require.Regexp(t, `^launch: rank 1 failed first: exit code 7
  process \d+, local rank 1, attempt 0, after .+
  its output:
    about to exit
  then: rank 0 ended by SIGTERM on the launcher's request, rank 2 ended by SIGTERM on the launcher's request$`, err.Error())
}

// Ranks that end together as an interrupt ends a program are not started again: a launcher on another host was
// interrupted.
func TestInterruptedElsewhere(t *testing.T) {
	b := newBench(t, 2, "together", "130")
	b.MaxRestarts, b.Settle = 3, 10*time.Second
	err := b.run(t)
	require.EqualError(t, err, "launch: interrupted by SIGINT that another process or host was sent")
	require.Equal(t, 130, ExitCode(err))
	require.NotContains(t, b.log.String(), "started again")
	require.Equal(t, 5, fails(t, newBench(t, 2, "together", "5").run(t)).Root.ExitCode)
}

func TestOneIsKilled(t *testing.T) {
	b := newBench(t, 2, "killed", "0")
	err := b.run(t)
	f := fails(t, err)
	require.Equal(t, 128+9, ExitCode(err))
	require.Equal(t, 0, f.Root.Rank)
	require.Equal(t, syscall.SIGKILL, f.Root.Signal)
	require.Equal(t, Unknown, f.Root.ExitCode)
	require.Equal(t, []string{"last words"}, f.Root.Log)
	require.NotEmpty(t, f.Root.Hint)
	require.ErrorContains(t, err, "launch: rank 0 failed first: killed by SIGKILL ("+f.Root.Hint+")\n")
}

func TestPanicIsShown(t *testing.T) {
	b := newBench(t, 2, "panic", "1")
	f := fails(t, b.run(t))
	require.Equal(t, 2, f.Root.ExitCode)
	require.Equal(t, "panic: runtime error: invalid memory address or nil pointer dereference", f.Root.Log[0])
	require.LessOrEqual(t, len(f.Root.Log), tailLines)
}

func TestWhoIsBlamedIsTheRoot(t *testing.T) {
	b := newBench(t, 3, "blame", "2")
	b.Settle = 10 * time.Second
	err := b.run(t)
	f := fails(t, err)
	require.Equal(t, 2, f.Root.Rank)
	require.Equal(t, "the cause", f.Root.Message)
	require.Equal(t, 3, ExitCode(err))
	require.Equal(t, "rank 2 is lost", f.Others[0].Message)
	require.ErrorContains(t, err, "\n  error: the cause\n")
}

func TestIgnoringRanksAreKilledAfterTheGraceTime(t *testing.T) {
	b := newBench(t, 2, "ignore")
	b.Grace = 300 * time.Millisecond
	ctx, cancel := context.WithCancelCause(context.Background())
	ready := newReadyWriter(2, func() { cancel(errors.New("enough")) })
	b.Stdout = ready
	err := Run(ctx, b.Config)
	var i *InterruptedError
	require.ErrorAs(t, err, &i)
	require.Equal(t, []int{0, 1}, i.Killed)
	require.Equal(t, 128+15, ExitCode(err))
	require.EqualError(t, err, "launch: interrupted: enough; killed since they did not end in time: rank 0 1")
}

type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

func TestRestarts(t *testing.T) {
	b := newBench(t, 2, "flaky", "2")
	b.MaxRestarts = 2
	require.NoError(t, b.run(t))
	require.Equal(t, 2, strings.Count(b.log.String(), "a rank failed; all ranks are started again"), b.log.String())

	b = newBench(t, 2, "flaky", "2")
	b.MaxRestarts = 1
	f := fails(t, b.run(t))
	require.Equal(t, 1, f.Attempt)
	require.Equal(t, 4, f.Root.ExitCode)
}

func TestWhatCannotHealIsNotTriedAgain(t *testing.T) {
	b := newBench(t, 2, "hopeless")
	b.MaxRestarts = 5
	f := fails(t, b.run(t))
	require.Zero(t, f.Attempt)
	require.True(t, f.Root.Permanent)
	require.Equal(t, 2, f.Root.ExitCode)
	require.NotContains(t, b.log.String(), "started again")
}

func TestRestartsBackOff(t *testing.T) {
	b := backoff{first: time.Second}
	var pauses []time.Duration
	for _, ran := range []time.Duration{1, 1, 1, steady, 1} {
		pauses = append(pauses, b.next(ran))
	}
	require.Equal(t, []time.Duration{1e9, 2e9, 4e9, 1e9, 2e9}, pauses)
	for range 20 {
		require.LessOrEqual(t, b.next(0), maxRestartDelay)
	}
	b = backoff{first: 2 * time.Minute}
	require.Equal(t, []time.Duration{2 * time.Minute, 2 * time.Minute}, []time.Duration{b.next(0), b.next(0)})
}

// Without a folder for temporary files ranks get their token and leave their errors all the same.
func TestNoTemporaryFolder(t *testing.T) {
	if !holdsFiles {
		t.Skip("the system has no files without a name")
	}
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	b := newBench(t, 2, "secret")
	b.Token = "a token that the launcher was given"
	require.NoError(t, b.run(t), b.err.String())
	require.Equal(t, 4, strings.Count(b.out.String(), "token "+b.Token+"\n"), "%s", b.out.String())

	b = newBench(t, 2, "hopeless")
	b.MaxRestarts = 5
	f := fails(t, b.run(t))
	require.True(t, f.Root.Permanent)
	require.Contains(t, f.Root.Message, "a typing error")
	require.Empty(t, f.Root.LogFile)

	b = newBench(t, 1, "say", "x")
	b.Tee = Streams{all: stdout}
	require.ErrorContains(t, b.run(t), "launch: log folder: ", "logs were asked for, and need one")
}

func TestInterruptBetweenAttempts(t *testing.T) {
	b := newBench(t, 2, "flaky", "9")
	b.MaxRestarts, b.RestartDelay = 9, 20*time.Second
	signals := make(chan os.Signal, 1)
	b.Signals = signals
	b.Logger = slog.New(slog.NewTextHandler(writerFunc(func(line []byte) {
		if bytes.Contains(line, []byte("started again")) {
			signals <- syscall.SIGINT
		}
	}), nil))
	err := b.run(t)
	var i *InterruptedError
	require.ErrorAs(t, err, &i)
	require.Equal(t, syscall.SIGINT, i.Signal)
	require.Equal(t, 4, fails(t, err).Root.ExitCode)
}

func TestLogs(t *testing.T) {
	b := newBench(t, 2, "flaky", "1")
	b.MaxRestarts, b.LogDir, b.RunID = 1, filepath.Join(t.TempDir(), "logs"), "job"
	require.NoError(t, b.run(t))
	runs, err := filepath.Glob(filepath.Join(b.LogDir, "job_*"))
	require.NoError(t, err)
	require.Len(t, runs, 1)
	first := filepath.Join(runs[0], "attempt_0")
	text, err := os.ReadFile(filepath.Join(first, "0", "stdout.log"))
	require.NoError(t, err)
	require.Equal(t, "ready\n", string(text))
	require.FileExists(t, filepath.Join(first, "0", "stderr.log"))
	require.DirExists(t, filepath.Join(runs[0], "attempt_1", "1"))

	text, err = os.ReadFile(filepath.Join(first, "1", "error.json"))
	require.NoError(t, err)
	var file map[string]map[string]any
	require.NoError(t, json.Unmarshal(text, &file))
	require.Equal(t, "exit code 4", file["message"]["message"])
	require.Equal(t, 4.0, file["message"]["errorCode"])
	require.Contains(t, file["message"]["extraInfo"], "timestamp")
	require.Contains(t, file["message"]["extraInfo"], "py_callstack")
}

func TestRootCauseIsPassedOn(t *testing.T) {
	b := newBench(t, 2, "blame", "1")
	own := filepath.Join(t.TempDir(), "own.json")
	b.Env = append(b.Env, varErrorFile+"="+own)
	b.Settle = 10 * time.Second
	fails(t, b.run(t))
	f, ok := readErrorFile(own)
	require.True(t, ok)
	require.Equal(t, "the cause", f.Message.Message)
	require.Equal(t, 3, f.Message.ErrorCode)
}

func TestTeeAndRedirects(t *testing.T) {
	for _, row := range []struct {
		name            string
		redirects, tee  string
		show            []int
		out, err        string
		logOut0, logErr string // rank 0's log of stdout, rank 1's of stderr
	}{
		{"nothing chosen", "0", "0", []int{1}, "[1] x\n", "[1] err\n", "x\n", "err\n"},
		{"redirected", "3", "0", nil, "", "", "x\n", "err\n"},
		{"tee beats redirect", "3", "0:1,1:2", nil, "[0] x\n", "[1] err\n", "x\n", "err\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newBench(t, 2, "say", "x\n")
			b.LogDir = t.TempDir()
			b.ShowRanks = row.show
			var err error
			b.Redirects, err = ParseStreams(row.redirects)
			require.NoError(t, err)
			b.Tee, err = ParseStreams(row.tee)
			require.NoError(t, err)
			require.NoError(t, b.run(t))
			require.Equal(t, row.out, b.out.String())
			require.Equal(t, row.err, b.err.String())
			logs, err := filepath.Glob(filepath.Join(b.LogDir, "*", "attempt_0"))
			require.NoError(t, err)
			require.Len(t, logs, 1)
			for path, want := range map[string]string{filepath.Join("0", "stdout.log"): row.logOut0,
				filepath.Join("1", "stderr.log"): row.logErr} {
				text, err := os.ReadFile(filepath.Join(logs[0], path))
				require.NoError(t, err)
				require.Equal(t, want, string(text))
			}
		})
	}
}

// A child that a rank leaves behind ends with the rank, in the rank's group everywhere, and
// on Linux also in a session of its own that holds the rank's output open.
func TestLeftChildren(t *testing.T) {
	kinds := []string{"same"}
	if runtime.GOOS == "linux" {
		kinds = append(kinds, "own")
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			b := newBench(t, 1, "parent", kind)
			require.NoError(t, b.run(t))
			m := regexp.MustCompile(`(?m)^\[0\] child (\d+)$`).FindStringSubmatch(b.out.String())
			require.Len(t, m, 2, b.out.String())
			pid, err := strconv.Atoi(m[1])
			require.NoError(t, err)
			require.Eventually(t, func() bool { return !running(pid) }, 10*time.Second, 5*time.Millisecond)
			require.Equal(t, kind == "own", strings.Contains(b.log.String(), "in other sessions"), b.log.String())
		})
	}
}

func TestRefusesToStart(t *testing.T) {
	b := newBench(t, 1)
	b.Program = "no-such-program"
	require.EqualError(t, b.run(t), `launch: program: exec: "no-such-program": executable file not found in $PATH`)
	b.Program = filepath.Join(t.TempDir(), "garbage")
	require.NoError(t, os.WriteFile(b.Program, []byte("\x00\x01"), 0o700))
	require.ErrorContains(t, b.run(t), "launch: rank 0: fork/exec ")
	b = newBench(t, 2, "hang")
	b.LogDir = filepath.Join(os.Args[0], "below-a-file")
	require.ErrorContains(t, b.run(t), "launch: log_dir: ")
	b = newBench(t, 2, "hang")
	b.MasterAddr = "203.0.113.1" // documentation's addresses are nobody's
	require.ErrorContains(t, b.run(t), "launch: master_addr 203.0.113.1: ")
}

// Two launchers are two hosts of one job.
func TestTwoNodes(t *testing.T) {
	nodes := make([]*bench, 2)
	errs := make(chan error, len(nodes))
	for n := range nodes {
		b := newBench(t, 2, "place")
		b.Nodes, b.NodeRank, b.MasterAddr, b.MasterPort, b.Token = 2, n, "127.0.0.1", 4242, "secret"
		nodes[n] = b
		go func() { errs <- Run(context.Background(), b.Config) }()
	}
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
	for n, want := range [][]string{{"[0] 0/4 0/2 0/2", "[1] 1/4 1/2 0/2"}, {"[2] 2/4 0/2 1/2", "[3] 3/4 1/2 1/2"}} {
		require.ElementsMatch(t, want, strings.Split(strings.TrimSpace(nodes[n].out.String()), "\n"))
	}
}
