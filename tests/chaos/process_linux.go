// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lockstep-ml/lockstep/internal/syncbuffer"
)

// program is a process that the harness has started, in its own process group.
type program struct {
	name    string
	cmd     *exec.Cmd
	printed *syncbuffer.Buffer
	ended   chan struct{}
}

// start starts a command line.
func start(name string, line []string, dir string, environ []string) (*program, error) {
	p := &program{name: name, cmd: exec.Command(line[0], line[1:]...), printed: &syncbuffer.Buffer{},
		ended: make(chan struct{})}
	p.cmd.Dir, p.cmd.Env = dir, environ
	p.cmd.Stdout, p.cmd.Stderr = p.printed, p.printed
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = 5 * time.Second // for those that inherited the output
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // the state says how it ended
		close(p.ended)
	}()
	return p, nil
}

// signal sends one to the process's group, as a terminal does.
func (p *program) signal(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }

func (p *program) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// code is the exit code as shells have it: 128 + n if signal n ended the process.
func (p *program) code() int {
	if s, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal())
	}
	return p.cmd.ProcessState.ExitCode()
}

// found is a living process.
type found struct {
	pid     int
	line    []string // its command line
	environ []string
}

// living are the processes that have the variable marker in their environment, except for those that have ended and
// wait to be reaped.
func living(marker string) []found {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var list []found
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		environ, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil || !bytes.Contains(environ, []byte(marker)) {
			continue // ended meanwhile, or none of ours
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")) // empty if it has just ended
		list = append(list, found{pid, strings.Split(string(line), "\x00"), strings.Split(string(environ), "\x00")})
	}
	return list
}

// variable is one of an environment's, of which the last of a name counts.
func (f found) variable(name string) (value string) {
	for _, e := range f.environ {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			value = v
		}
	}
	return value
}

// rank is the process's rank under a launcher, -1 if it has none.
func (f found) rank() int {
	n, err := strconv.Atoi(f.variable("RANK"))
	if err != nil {
		return -1
	}
	return n
}

func (f found) guard() bool { return slices.Contains(f.line, "launch-guard") }

// String names the process.
func (f found) String() string {
	return strconv.Itoa(f.pid) + " (" + strings.TrimSpace(strings.Join(f.line[:min(len(f.line), 4)], " ")) + ")"
}
