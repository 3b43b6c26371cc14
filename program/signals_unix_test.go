// SPDX-License-Identifier: Apache-2.0

//go:build unix

package program_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/syncbuffer"
	"github.com/lockstep-ml/lockstep/program"
)

// child is a process that plays a role and has said that it is ready.
type child struct {
	*exec.Cmd
	stdout *bufio.Reader
	stderr *syncbuffer.Buffer
	ended  chan struct{}
}

func start(t *testing.T, cmd *exec.Cmd) *child {
	t.Helper()
	handled := make(chan os.Signal, 1) // under nohup a program would inherit that SIGHUP is ignored
	signal.Notify(handled, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(handled) })
	c := &child{Cmd: cmd, stderr: &syncbuffer.Buffer{}, ended: make(chan struct{})}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = c.stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // if it still runs
		<-c.ended
	})
	c.stdout = bufio.NewReader(out)
	line, err := c.stdout.ReadString('\n')
	require.NoError(t, err, "%s", c.stderr)
	require.Equal(t, "ready\n", line)
	go func() {
		_, _ = io.Copy(io.Discard, c.stdout)
		_ = cmd.Wait() // the state says how it ended
		close(c.ended)
	}()
	return c
}

func (c *child) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	require.NoError(t, c.Process.Signal(s))
}

// await waits for a text on standard error.
func (c *child) await(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(c.stderr.String(), text) }, time.Minute,
		time.Millisecond, "%s", text)
}

// wait waits for the end and returns the exit code, and the signal that ended it if one did.
func (c *child) wait(t *testing.T) (code int, by syscall.Signal) {
	t.Helper()
	select {
	case <-c.ended:
	case <-time.After(time.Minute):
		require.FailNow(t, "it does not end", "%s", c.stderr)
	}
	status, ok := c.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	if status.Signaled() {
		return -1, status.Signal()
	}
	return status.ExitStatus(), 0
}

// codes are the exit codes of programs that a signal interrupts.
var codes = map[syscall.Signal]int{
	syscall.SIGINT: program.ExitInterrupted, syscall.SIGTERM: program.ExitInterrupted,
	syscall.SIGHUP: program.ExitInterrupted, syscall.SIGQUIT: program.ExitInterrupted,
	syscall.SIGUSR1: 128 + int(syscall.SIGUSR1),
}

var names = map[syscall.Signal]string{
	syscall.SIGINT: "SIGINT", syscall.SIGTERM: "SIGTERM", syscall.SIGHUP: "SIGHUP", syscall.SIGQUIT: "SIGQUIT",
	syscall.SIGUSR1: "SIGUSR1",
}

func TestSignalsEndTheContext(t *testing.T) {
	for s, want := range codes {
		t.Run(names[s], func(t *testing.T) {
			t.Parallel()
			c := start(t, command(t, "wait"))
			c.signal(t, s)
			code, by := c.wait(t)
			require.Equal(t, want, code, "%v: %s", by, c.stderr)
			text := c.stderr.String()
			require.Contains(t, text, names[s]+": stopping after what is under way; interrupt again to stop at once\n")
			require.True(t, strings.HasSuffix(text, filepath.Base(os.Args[0])+": loop: interrupted: "+names[s]+"\n"),
				"%s", text)
			// the program may be about to wait still
			dump := strings.HasPrefix(text, "SIGQUIT: quit\n\ngoroutine ") &&
				strings.Contains(text, "program_test.init.func")
			require.Equal(t, s == syscall.SIGQUIT, dump, "the stacks of all goroutines: %s", text)
		})
	}
}

// The second signal ends a program that does not heed the first, as if nothing handled it.
func TestASecondSignalEndsAtOnce(t *testing.T) {
	for s := range codes {
		if s == syscall.SIGHUP {
			continue
		}
		t.Run(names[s], func(t *testing.T) {
			t.Parallel()
			c := start(t, command(t, "hang"))
			c.signal(t, s)
			c.await(t, "interrupt again to stop at once")
			c.repeat(s)
			code, by := c.wait(t)
			if s == syscall.SIGQUIT { // Go's own end: its dump, and 2
				require.Equal(t, 2, code)
				require.Equal(t, 2, strings.Count(c.stderr.String(), "SIGQUIT: quit\n"))
				return
			}
			if s == syscall.SIGUSR1 { // which Go ignores
				s = syscall.SIGTERM
			}
			require.Equal(t, s, by, "code %d: %s", code, c.stderr)
		})
	}
}

// repeat sends a signal until it counts as a second one.
func (c *child) repeat(s syscall.Signal) {
	for range 1000 {
		_ = c.Process.Signal(s) // it may have ended
		select {
		case <-c.ended:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// A program that talks to a person takes Ctrl-C for its answer, and others end it as before.
func TestAnInterruptMayStopAnAnswerAlone(t *testing.T) {
	c := start(t, command(t, "talk"))
	c.signal(t, syscall.SIGINT)
	c.await(t, "the answer is stopped\n")
	require.NotContains(t, c.stderr.String(), "SIGINT")
	c.signal(t, syscall.SIGINT)
	code, _ := c.wait(t)
	require.Equal(t, program.ExitInterrupted, code)
	require.Contains(t, c.stderr.String(), "SIGINT: stopping")
}

// A terminal that goes away after Ctrl-C must not end the save; another Ctrl-C still does.
func TestAHangupIsNoSecondSignal(t *testing.T) {
	c := start(t, command(t, "hang"))
	c.signal(t, syscall.SIGINT)
	c.await(t, "interrupt again to stop at once")
	deadline := time.Now().Add(600 * time.Millisecond) // twice the time in which a signal does not count
	for time.Now().Before(deadline) {
		c.signal(t, syscall.SIGHUP)
		time.Sleep(50 * time.Millisecond)
	}
	c.repeat(syscall.SIGINT)
	_, by := c.wait(t)
	require.Equal(t, syscall.SIGINT, by)
}

// Under nohup a hangup ends nothing.
func TestIgnoredHangupsStayIgnored(t *testing.T) {
	shell, err := exec.LookPath("sh")
	require.NoError(t, err)
	cmd := command(t, "wait")
	cmd.Args = []string{"sh", "-c", `trap "" HUP; exec "$0"`, cmd.Path}
	cmd.Path = shell
	c := start(t, cmd)
	c.signal(t, syscall.SIGHUP)
	c.signal(t, syscall.SIGTERM)
	code, _ := c.wait(t)
	require.Equal(t, program.ExitInterrupted, code)
	require.NotContains(t, c.stderr.String(), "SIGHUP")
	require.Contains(t, c.stderr.String(), "interrupted: SIGTERM\n")
}

// Who reads the output may go; what the program starts is not affected.
func TestAClosedPipeEndsNothing(t *testing.T) {
	for _, closed := range []string{"stdout", "stderr", "both"} {
		t.Run(closed, func(t *testing.T) {
			cmd := command(t, "print")
			r, w, err := os.Pipe()
			require.NoError(t, err)
			require.NoError(t, r.Close())
			if closed != "stderr" {
				cmd.Stdout = w
			}
			if closed != "stdout" {
				cmd.Stderr = w
			}
			err = cmd.Run()
			require.NoError(t, w.Close())
			require.NoError(t, err, "%v", cmd.ProcessState)
			require.FileExists(t, filepath.Join(cmd.Dir, "done"))
		})
	}
}
