// SPDX-License-Identifier: Apache-2.0

//go:build unix

package launch

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// markedProcesses lists the processes with the mark in their environment, where those can
// be read.
func markedProcesses(t *testing.T, mark string) []string {
	t.Helper()
	if runtime.GOOS != "linux" {
		return nil
	}
	var found []string
	paths, err := filepath.Glob("/proc/[0-9]*/environ")
	require.NoError(t, err)
	for _, path := range paths {
		text, err := os.ReadFile(path) // fails for others' processes and for those just gone
		if err == nil && bytes.Contains(text, []byte(mark)) {
			command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			found = append(found, fmt.Sprintf("%s %q", filepath.Dir(path), command))
		}
	}
	return found
}

// running reports whether a process runs; a zombie does not.
func running(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err != nil || !bytes.Contains(text, []byte(") Z "))
}

// readyWriter calls back when n lines with "ready" have been written.
type readyWriter struct {
	mu   sync.Mutex
	n    int
	call func()
}

func newReadyWriter(n int, call func()) *readyWriter { return &readyWriter{n: n, call: call} }

func (w *readyWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.n
	w.n -= strings.Count(string(p), "ready\n")
	if before > 0 && w.n <= 0 {
		w.call()
	}
	return len(p), nil
}

// launched is a launcher in a process of its own, whose ranks are ready.
type launched struct {
	cmd    *exec.Cmd
	out    io.ReadCloser
	stderr bytes.Buffer
	mark   string
	temp   string
	ready  []string
}

func startLauncher(t *testing.T, grace time.Duration, guard string, ranks, readyRanks int, part ...string) *launched {
	t.Helper()
	l := &launched{mark: "LAUNCH_TEST_MARK=" + random(8), temp: t.TempDir()}
	l.cmd = exec.Command(os.Args[0], append([]string{"launcher", grace.String(), guard, strconv.Itoa(ranks)},
		part...)...)
	l.cmd.Env = append(os.Environ(), role+"=1", l.mark, raceAtOnce, "TMPDIR="+l.temp,
		"LOCKSTEP_FLIGHT_DIR="+t.TempDir())
	l.cmd.Stderr = &l.stderr
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	l.out, err = l.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, l.cmd.Start())
	t.Cleanup(func() { // a launcher that does not end must not outlive the test
		if l.cmd.ProcessState == nil {
			l.cmd.Process.Kill()
			l.cmd.Wait()
		}
	})
	l.ready, err = readyLines(l.out, readyRanks)
	require.NoError(t, err)
	return l
}

// end waits for the launcher and gives its exit code and how long it took.
func (l *launched) end(t *testing.T) (code int, rest string, took time.Duration) {
	t.Helper()
	start := time.Now()
	text, err := io.ReadAll(l.out)
	require.NoError(t, err)
	err = l.cmd.Wait()
	if err != nil {
		require.ErrorAs(t, err, new(*exec.ExitError))
	}
	return l.cmd.ProcessState.ExitCode(), string(text), time.Since(start)
}

// TestCtrlC interrupts launchers again and again: with ranks that die of it, save first,
// ignore it, and leave children.
func TestCtrlC(t *testing.T) {
	rounds := 100
	if testing.Short() {
		rounds = 20
	}
	const grace = 20 * time.Second
	for i := range rounds {
		var l *launched
		sig, patience := syscall.SIGINT, grace
		if i%4 == 3 {
			sig = syscall.SIGTERM
		}
		part := []string{"hang", "polite", "hang", "ignore", "polite"}[i%5]
		if part == "ignore" {
			patience = 50 * time.Millisecond
		}
		guard := []string{"alone", "guard"}[i%2]
		l = startLauncher(t, patience, guard, 2, 2, part)
		require.NoError(t, l.cmd.Process.Signal(sig))
		code, rest, took := l.end(t)
		require.Equal(t, 128+int(sig), code, l.stderr.String())
		require.Less(t, took, grace, "the grace time was waited for")
		require.Contains(t, l.stderr.String(), "launch: interrupted by "+signalName(sig))
		require.Equal(t, part == "ignore", strings.Contains(l.stderr.String(),
			"killed since they did not end in time: rank 0 1"), l.stderr.String())
		if part == "polite" {
			require.Equal(t, 2, strings.Count(rest, "saved\n"), rest)
		}
		requireNothingLeft(t, l.mark)
		left, err := os.ReadDir(l.temp)
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// A second Ctrl-C does not wait for the grace time.
func TestSecondCtrlC(t *testing.T) {
	l := startLauncher(t, 50*time.Second, "alone", 2, 2, "ignore")
	require.NoError(t, l.cmd.Process.Signal(os.Interrupt))
	time.Sleep(2 * secondSignal)
	require.NoError(t, l.cmd.Process.Signal(os.Interrupt))
	code, _, took := l.end(t)
	require.Equal(t, 130, code)
	require.Less(t, took, 40*time.Second)
	require.Contains(t, l.stderr.String(), "rank 0 1")
	requireNothingLeft(t, l.mark)
}

// A launcher that is killed takes its ranks with it, with the guard also what those have
// started.
func TestLauncherKilled(t *testing.T) {
	for _, row := range []struct {
		guard string
		part  []string
	}{
		{"alone", []string{"ignore"}},
		{"guard", []string{"ignore"}},
		{"guard", []string{"family"}},
	} {
		if row.guard == "alone" && runtime.GOOS != "linux" {
			continue // only Linux has a parent's death signal
		}
		t.Run(row.guard+" "+row.part[0], func(t *testing.T) {
			l := startLauncher(t, time.Minute, row.guard, 2, 2, row.part...)
			require.NotEmpty(t, markedProcesses(t, l.mark))
			require.NoError(t, l.cmd.Process.Kill())
			require.Eventually(t, func() bool {
				return len(markedProcesses(t, l.mark)) == 0
			}, 20*time.Second, 5*time.Millisecond)
			code, _, _ := l.end(t) // every process that held the output is gone
			require.Equal(t, -1, code)
			if row.guard == "guard" {
				left, err := os.ReadDir(l.temp)
				require.NoError(t, err)
				require.Empty(t, left, "the guard removes the run's folder")
			}
		})
	}
}

// The guard kills the groups it knows of, by their numbers.
func TestGuardKills(t *testing.T) {
	child := exec.Command(os.Args[0], "ignore")
	child.Env = append(os.Environ(), role+"=1")
	child.SysProcAttr = guardAttributes()
	require.NoError(t, child.Start())
	killed, err := Guard(strings.NewReader(fmt.Sprintf("add %d\n", child.Process.Pid)))
	require.NoError(t, err)
	require.Equal(t, 1, killed)
	require.Error(t, child.Wait())
	require.Equal(t, syscall.SIGKILL, child.ProcessState.Sys().(syscall.WaitStatus).Signal())
}

// Wherever in its start a launcher is interrupted, it leaves nothing.
func TestCtrlCWhileStarting(t *testing.T) {
	rounds := 40
	if testing.Short() {
		rounds = 10
	}
	for i := range rounds {
		l := startLauncher(t, 20*time.Second, []string{"alone", "guard"}[i%2], 3, 0, "hang")
		time.Sleep(time.Duration(i*50/rounds) * time.Millisecond)
		require.NoError(t, l.cmd.Process.Signal(os.Interrupt))
		code, _, took := l.end(t)
		require.Contains(t, []int{130, -1}, code, "-1 before it listens to signals: %s", l.stderr.String())
		require.Less(t, took, 15*time.Second)
		requireNothingLeft(t, l.mark)
	}
}
