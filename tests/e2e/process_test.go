// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// process is a program under way.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	lines  *bufio.Reader // of standard error
	stdout strings.Builder
	stderr strings.Builder // as far as read
}

func start(t testing.TB, argv ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: command(t, argv...)}
	pipe, err := p.cmd.StderrPipe()
	require.NoError(t, err)
	p.lines, p.cmd.Stdout = bufio.NewReader(pipe), &p.stdout
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() { _ = p.cmd.Process.Kill() }) // if the test ends before the process
	return p
}

// await reads standard error up to a line that contains text, and reports whether there
// was one before the end.
func (p *process) await(text string) bool {
	p.t.Helper()
	for {
		line, err := p.lines.ReadString('\n')
		p.stderr.WriteString(line)
		if err != nil {
			require.ErrorIs(p.t, err, io.EOF)
			return false
		}
		if strings.Contains(line, text) {
			return true
		}
	}
}

// signal sends one; a process that is gone already is none of its business.
func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		require.ErrorIs(p.t, err, os.ErrProcessDone)
	}
}

// wait waits for the end.
func (p *process) wait() result {
	p.t.Helper()
	_, err := io.Copy(&p.stderr, p.lines)
	require.NoError(p.t, err)
	if err := p.cmd.Wait(); err != nil {
		var exit *exec.ExitError
		require.True(p.t, errors.As(err, &exit), "%v", err)
	}
	return result{p.cmd.ProcessState.ExitCode(), p.stdout.String(), p.stderr.String(), p.cmd.ProcessState}
}
