// SPDX-License-Identifier: Apache-2.0

//go:build unix

package distributed

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/syncbuffer"
)

// patience is when a test gives up on something that takes a second on an idle machine.
const patience = 5 * time.Minute

// process is a program under way, in its own process group as a shell would have it.
type process struct {
	t              testing.TB
	cmd            *exec.Cmd
	stdout, stderr *syncbuffer.Buffer
	marker         string       // a variable in the environment of it and all that it starts
	tmp            string       // its temporary folder
	others         map[int]bool // processes that it has not started
	ended          chan struct{}
	endedAt        time.Time
}

// start starts a command line, without the caller's settings and places in other jobs.
func start(t testing.TB, line []string, env ...string) *process {
	t.Helper()
	p := &process{
		t: t, cmd: exec.Command(line[0], line[1:]...), stdout: &syncbuffer.Buffer{},
		stderr: &syncbuffer.Buffer{}, ended: make(chan struct{}),
		marker: fmt.Sprintf("DISTRIBUTED_TEST=%016x", rand.Uint64()), tmp: t.TempDir(),
	}
	p.cmd.Dir = t.TempDir()
	p.cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "LOCKSTEP_") && !strings.HasPrefix(e, "LOCKSTEP_KERNELS=")
	})
	p.cmd.Env = append(append(p.cmd.Env, p.marker, "TMPDIR="+p.tmp), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // the state says how it ended
		p.endedAt = time.Now()
		close(p.ended)
	}()
	t.Cleanup(func() { // if the test ends before the process
		select {
		case <-p.ended:
		default:
			p.signal(syscall.SIGKILL)
			<-p.ended
		}
	})
	return p
}

// signal sends one to the process's group, as a terminal does.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := syscall.Kill(-p.cmd.Process.Pid, s); !errors.Is(err, syscall.ESRCH) {
		require.NoError(p.t, err)
	}
}

// wait waits for the end.
func (p *process) wait() {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		require.FailNow(p.t, "it does not end", "stdout:\n%s\nstderr:\n%s", p.stdout, p.stderr)
	}
}

// code is the exit code as shells have it: 128 + n if signal n ended the process.
func (p *process) code() int {
	if s, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal())
	}
	return p.cmd.ProcessState.ExitCode()
}

// await waits until a condition holds, which it must before the process ends. It asks 100 times a second: some
// conditions look at every process of the machine.
func (p *process) await(what string, holds func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		select {
		case <-p.ended:
			require.FailNow(p.t, "it ended before "+what, "stdout:\n%s\nstderr:\n%s", p.stdout, p.stderr)
		default:
		}
		if time.Now().After(deadline) {
			require.FailNow(p.t, "no "+what, "stdout:\n%s\nstderr:\n%s", p.stdout, p.stderr)
		}
	}
}

// awaitPrinted waits for a text on standard error.
func (p *process) awaitPrinted(text string) {
	p.t.Helper()
	p.await(text, func() bool { return strings.Contains(p.stderr.String(), text) })
}

// requireNoTrace checks that what failed did so in words.
func requireNoTrace(t testing.TB, texts ...string) {
	t.Helper()
	for _, text := range texts {
		for _, trace := range []string{"panic", "goroutine ", "runtime error", "fatal error", ".go:"} {
			require.NotContains(t, text, trace)
		}
	}
}

// backends are those that processes of one host can have; with -short, the one that they do
// have unless they ask for another.
func backends() []string {
	if testing.Short() {
		return []string{"shm"}
	}
	return []string{"shm", "tcp"}
}
