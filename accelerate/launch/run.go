// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/lockstep-ml/lockstep/comm/env"
)

// run is one call of Run.
type run struct {
	config  Config
	program string // found in PATH
	id      string // random; every process of the run inherits it
	dir     string // log files and error files; "" if there is no folder for them
	keepDir bool
	held    []*os.File // files without a name: the token, and error files where there is no folder
	console console
	guards  *guards
	token   *os.File // holds the secret, and has no name
	signals inbox
	elastic *elastic // nil where the hosts are fixed
	backoff backoff
}

// Run starts the ranks of this host and waits until all have ended. It returns nil if all
// ended with exit code 0, after restarts or without; a *FailureError with the root cause if
// one failed for good; an *InterruptedError if a signal or the end of ctx (which counts as
// SIGTERM) ended the job; or what kept the ranks from being started. ExitCode turns each
// into an exit code. When Run returns, no process that it or a rank has started is left,
// except for those that shed their environment on purpose.
func Run(ctx context.Context, c Config) error {
	if err := unsupported(); err != nil {
		return err
	}
	if err := c.Validate(); err != nil {
		return err
	}
	r := &run{config: c.withDefaults(), id: random(8)}
	r.backoff.first = r.config.RestartDelay
	r.signals = inbox{ctx: ctx, done: ctx.Done(), in: r.config.Signals}
	if err := r.prepare(); err != nil {
		return err
	}
	// On Linux a rank is killed when the thread that has started it ends: see attributes.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	run := r.attempts
	if r.config.Elastic != nil {
		run = r.rounds
	}
	err := run()
	return errors.Join(err, r.cleanUp())
}

func random(bytes int) string {
	b := make([]byte, bytes)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// prepare finds the program, and makes what the configuration leaves to the launcher.
func (r *run) prepare() error {
	c := &r.config
	program, err := exec.LookPath(c.Program)
	if err != nil {
		return fmt.Errorf("launch: program: %w", err)
	}
	// A relative path is meant from here, whatever the ranks' working directory is.
	if r.program, err = filepath.Abs(program); err != nil {
		return fmt.Errorf("launch: program: %w", err)
	}
	if c.Token == "" {
		c.Token = random(32)
	}
	switch {
	case c.RunID == "" && c.Nodes > 1:
		c.RunID = "none" // torchrun's default: all hosts have the same
	case c.RunID == "":
		c.RunID = r.id
	}
	if r.token, err = secretFile(c.Token); err != nil {
		return fmt.Errorf("launch: job token: %w", err)
	}
	r.held = append(r.held, r.token)
	if r.guards, err = startGuards(c.Guard, r.id, override(c.Env, nil, env.VarJobToken), c.Logger); err != nil {
		return errors.Join(err, r.cleanUp())
	}
	if err := r.makeDir(); err != nil {
		return errors.Join(err, r.cleanUp())
	}
	if !r.keepDir && r.dir != "" {
		r.guards.folder(r.dir)
	}
	return nil
}

// makeDir makes the run's folder, which holds the error files if nothing else. Those can do without: see errorFile.
func (r *run) makeDir() error {
	c := &r.config
	parent := c.LogDir
	if parent != "" {
		if err := os.MkdirAll(parent, 0o755); err != nil {
			return fmt.Errorf("launch: log_dir: %w", err)
		}
	}
	r.keepDir = parent != "" || c.Redirects.any() || c.Tee.any()
	dir, err := os.MkdirTemp(parent, c.RunID+"_")
	if err == nil {
		r.dir, err = filepath.Abs(dir)
	}
	if err != nil && !r.keepDir && holdsFiles {
		return nil
	}
	if err != nil {
		return fmt.Errorf("launch: log folder: %w", err)
	}
	if r.keepDir {
		c.Logger.Info("the ranks' logs", "folder", r.dir)
	}
	return nil
}

// rankDir makes and names a rank's folder in an attempt, "" if there is none for the run.
func (r *run) rankDir(attempt, localRank int) (string, error) {
	if r.dir == "" {
		return "", nil
	}
	dir := filepath.Join(r.dir, "attempt_"+strconv.Itoa(attempt), strconv.Itoa(localRank))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("launch: log folder: %w", err)
	}
	return dir, nil
}

// cleanUp removes what only the run itself needed.
func (r *run) cleanUp() error {
	if r.guards != nil {
		if err := r.guards.release(); err != nil { // the job did without it
			r.config.Logger.Warn("the guard process failed", "error", err)
		}
	}
	for _, f := range r.held {
		_ = f.Close() // it has no name, and goes with its contents
	}
	if r.keepDir || r.dir == "" {
		return nil
	}
	if err := os.RemoveAll(r.dir); err != nil {
		return fmt.Errorf("launch: temporary folder: %w", err)
	}
	return nil
}

// attempts starts the group until it ends well, is interrupted, or has failed too often.
func (r *run) attempts() error {
	for n := 0; ; n++ {
		err := r.attempt(n)
		failure, failed := errors.AsType[*FailureError](err)
		if !failed {
			return err
		}
		_, interrupted := errors.AsType[*InterruptedError](err)
		if n == r.config.MaxRestarts || failure.Root.Permanent || interrupted {
			r.passOn(failure)
			return err
		}
		pause := r.backoff.next(failure.Root.After)
		r.config.Logger.Warn("a rank failed; all ranks are started again", "attempt", n, "max_restarts",
			r.config.MaxRestarts, "in", pause,
			"rank", failure.Root.Rank, "cause", failure.Root.how(), "message", failure.Root.Message)
		if err := r.sleep(pause); err != nil {
			r.passOn(failure)
			return errors.Join(failure, err)
		}
	}
}

// sleep waits, unless the job is interrupted.
func (r *run) sleep(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return nil
		case <-r.signals.done:
			return &InterruptedError{Signal: syscall.SIGTERM, Cause: context.Cause(r.signals.ctx)}
		case s := <-r.signals.in:
			if sig, ok := s.(syscall.Signal); ok {
				return &InterruptedError{Signal: sig}
			}
		}
	}
}

// passOn copies the root cause into the launcher's own error file, if the launcher runs
// under another one.
func (r *run) passOn(failure *FailureError) {
	path := lookup(r.config.Env, varErrorFile)
	if path == "" {
		return
	}
	f, ok := readErrorFile(failure.Root.ErrorFile)
	if !ok {
		return
	}
	f.Message.ErrorCode = failure.Root.code()
	if err := writeErrorFile(path, f); err != nil {
		r.config.Logger.Warn("the root cause could not be reported", "error", err)
	}
}

// inbox is where interrupts come from.
type inbox struct {
	ctx  context.Context
	done <-chan struct{} // nil once seen
	in   <-chan os.Signal
}

// stopwatch is a timer that may not run.
type stopwatch struct {
	c     <-chan time.Time
	timer *time.Timer
}

// start lets it run from now, unless it does already.
func (s *stopwatch) start(d time.Duration) {
	if s.timer == nil {
		s.timer = time.NewTimer(d)
		s.c = s.timer.C
	}
}

func (s *stopwatch) stop() {
	if s.timer != nil {
		s.timer.Stop()
	}
}
