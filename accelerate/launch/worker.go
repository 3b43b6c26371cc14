// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/lockstep-ml/lockstep/internal/terminal"
)

// pipeWait is how long output is awaited after a rank's end: only a process in a separate session can still hold the
// pipe.
const pipeWait = 2 * time.Second

// worker is the process of one rank.
type worker struct {
	run       *run
	attempt   int
	rank      int
	localRank int
	dir       string // "" if it has none
	errorFile string // what a failing rank leaves
	cmd       *exec.Cmd
	out, err  *stream
	started   time.Time

	mu     sync.Mutex
	reaped bool // its process group's number may be another's
	asked  bool // this launcher has signalled it
	idle   bool // and it stood still when it first did so
	killed bool // by the launcher's goroutine alone: SIGKILL because it did not end

	// Once it has been sent to the channel of the ended:
	at          time.Time
	unprompted  bool // it ended before it was signalled
	stopped     bool // it stood still when it was signalled
	status      syscall.WaitStatus
	maxRSS      int64
	waitProblem error
}

// newWorker prepares a rank's process.
func (r *run) newWorker(attempt, localRank, port int) (*worker, error) {
	c := &r.config
	w := &worker{run: r, attempt: attempt, rank: c.NodeRank*c.ProcsPerNode + localRank, localRank: localRank}
	var err error
	if w.dir, err = r.rankDir(attempt, localRank); err != nil {
		return nil, err
	}
	if w.errorFile, err = w.newErrorFile(); err != nil {
		return nil, err
	}
	if w.out, err = w.stream(stdout, "stdout.log", c.Stdout); err != nil {
		return nil, err
	}
	if w.err, err = w.stream(stderr, "stderr.log", c.Stderr); err != nil {
		w.out.close()
		return nil, err
	}
	w.cmd = exec.Command(r.program, c.Args...)
	w.cmd.Args[0] = c.Program
	w.cmd.Dir = c.Dir
	w.cmd.Env = r.environ(attempt, localRank, port, w.errorFile, w.columns())
	w.cmd.Stdout, w.cmd.Stderr = w.out, w.err
	w.cmd.SysProcAttr = attributes()
	w.cmd.WaitDelay = pipeWait
	return w, nil
}

// newErrorFile names the rank's error file: in its folder, else one without a name that this process holds open and
// the rank opens through it.
func (w *worker) newErrorFile() (string, error) {
	if w.dir != "" {
		return filepath.Join(w.dir, "error.json"), nil
	}
	f, err := unnamedFile("lockstep-error")
	if err != nil {
		return "", fmt.Errorf("launch: error file: %w", err)
	}
	w.run.held = append(w.run.held, f)
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()), nil
}

// stream opens what one of the rank's streams is written to.
func (w *worker) stream(which int, name string, shown io.Writer) (*stream, error) {
	c := &w.run.config
	last := strconv.Itoa(c.WorldSize() - 1)
	s := &stream{prefix: fmt.Sprintf("[%*d] ", len(last), w.rank), console: &w.run.console,
		logger: c.Logger.With("rank", w.rank)}
	tee, redirect := c.Tee.has(w.localRank, which), c.Redirects.has(w.localRank, which)
	if (tee || !redirect) && (c.ShowRanks == nil || slices.Contains(c.ShowRanks, w.localRank)) {
		s.shown = shown
	}
	if c.LogDir == "" && !tee && !redirect {
		return s, nil
	}
	f, err := os.Create(filepath.Join(w.dir, name))
	if err != nil {
		s.close()
		return nil, fmt.Errorf("launch: log file: %w", err)
	}
	s.file = f
	return s, nil
}

// columns is how long the rank's lines may be where both of its streams appear on a terminal, behind their prefixes,
// and nowhere else; 0 if they may have any length.
func (w *worker) columns() int {
	c := &w.run.config
	if w.out.file != nil || w.err.file != nil || w.out.shown == nil || w.err.shown == nil {
		return 0
	}
	return max(0, min(terminal.Width(c.Stdout), terminal.Width(c.Stderr))-len(w.out.prefix))
}

// start starts the process; the worker is sent to ended once it, all processes of its
// group, and its output have come to an end.
func (w *worker) start(inherit []*os.File, ended chan<- *worker) error {
	w.cmd.ExtraFiles = inherit
	w.started = time.Now()
	if err := w.cmd.Start(); err != nil {
		w.out.close()
		w.err.close()
		return fmt.Errorf("launch: rank %d: %w", w.rank, err)
	}
	w.run.guards.add(w.pid())
	go func() {
		w.wait()
		ended <- w
	}()
	return nil
}

func (w *worker) pid() int { return w.cmd.Process.Pid }

// wait waits for the process, and ends what it has left in its group.
func (w *worker) wait() {
	pid := w.pid()
	held := awaitExit(pid) // the process is still there, as a zombie: its number is nobody else's
	if held {
		w.over(pid)
	}
	err := w.cmd.Wait()
	if !held {
		w.over(pid)
	}
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended && !errors.Is(err, exec.ErrWaitDelay) {
		w.waitProblem = err
	}
	if state := w.cmd.ProcessState; state != nil {
		w.status, _ = state.Sys().(syscall.WaitStatus)
		w.maxRSS = peakMemory(state)
	}
	w.awaitGroup(pid)
	w.out.close()
	w.err.close()
	w.run.guards.remove(pid)
}

// over takes down the process's end; from here on it gets no signal.
func (w *worker) over(pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = time.Now()
	w.unprompted, w.stopped = !w.asked, w.idle
	w.reaped = true
	w.endGroup(pid)
}

// endGroup kills what is left in the process group.
func (w *worker) endGroup(pgid int) {
	err := signalGroup(pgid, syscall.SIGKILL)
	// EPERM: zombies alone, on macOS
	if err != nil && !errors.Is(err, syscall.ESRCH) && !errors.Is(err, syscall.EPERM) {
		w.run.config.Logger.Warn("a rank's process group could not be killed", "rank", w.rank, "error", err)
	}
}

// awaitGroup waits until the killed group is empty. A process that hangs in the kernel may
// take its time; it is left after the grace time.
func (w *worker) awaitGroup(pgid int) {
	c := &w.run.config
	deadline := time.Now().Add(c.Grace)
	for pause := time.Millisecond; groupAlive(pgid); pause = min(2*pause, c.MonitorInterval) {
		if time.Now().After(deadline) {
			c.Logger.Warn("processes of a rank's group are still running after SIGKILL", "rank", w.rank,
				"process group", pgid)
			return
		}
		time.Sleep(pause)
	}
}

// signal sends to the rank's process group; false if the rank has ended.
func (w *worker) signal(sig syscall.Signal) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reaped {
		return false
	}
	w.idle = w.idle || !w.asked && standsStill(w.pid())
	w.asked = true
	if err := signalGroup(w.pid(), sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		w.run.config.Logger.Warn("a rank could not be signalled", "rank", w.rank, "signal", signalName(sig), "error",
			err)
	}
	return true
}

// failed reports whether the ended process did not end with exit code 0.
func (w *worker) failed() bool {
	return w.waitProblem != nil || !w.status.Exited() || w.status.ExitStatus() != 0
}
