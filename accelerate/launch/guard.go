// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Guard is the whole work of a guard, a process beside the launcher that ends the ranks if
// the launcher is killed and cannot. It reads from its standard input which process groups
// there are, and when the input ends without a farewell it kills them and removes the run's
// temporary folder. It returns how many groups it killed. The process should ignore the
// signals that end the launcher. On Linux it has a name of its own, so that killing the launcher by its name spares it.
func Guard(input io.Reader) (killed int, err error) {
	rename(guardName)
	groups := map[int]bool{}
	var id, dir string
	s := bufio.NewScanner(input)
	for s.Scan() {
		verb, value, _ := strings.Cut(s.Text(), " ")
		pgid, numberErr := strconv.Atoi(value)
		switch {
		case verb == "id":
			id = value
		case verb == "dir":
			dir = value
		case verb == "done":
			return 0, nil
		case numberErr != nil || pgid <= 1:
			return 0, fmt.Errorf("launch: guard: %q is not a command; want add or remove with a process group",
				s.Text())
		case verb == "add":
			groups[pgid] = true
		case verb == "remove":
			delete(groups, pgid)
		}
	}
	for pgid := range groups {
		if signalGroup(pgid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	if id != "" {
		sweep(id)
	}
	if dir != "" {
		err = os.RemoveAll(dir)
	}
	return killed, errors.Join(s.Err(), err)
}

// guardCount is how many guards a launcher has: whoever kills the launcher and all guards except one at the same
// moment, with SIGKILL, still leaves one that ends the ranks and what they have started. Nothing unprivileged on Linux
// does so without a process that lives: a parent's death signal does not reach grandchildren, and a cgroup or a PID
// namespace needs permission.
const guardCount = 3

// guardName is the name of guards for ps, pgrep and killall, and their first argument: killing processes by the
// launcher's name or command line spares them.
const guardName = "launch-guard"

// guardPause is how long a guard that has died soon after its start waits for its successor; others wait for none,
// since in between there is one guard alone.
const guardPause = 100 * time.Millisecond

// guards is the launcher's end. A guard that dies is replaced.
type guards struct {
	command []string
	environ []string
	logger  *slog.Logger
	id      string

	mu       sync.Mutex
	dir      string
	groups   map[int]bool
	pipes    []io.WriteCloser // one for each guard; nil while it is being replaced
	released bool
	ended    sync.WaitGroup
	problem  error // of a guard's process, after release
}

// startGuards starts the guards' processes.
func startGuards(command []string, id string, environ []string, logger *slog.Logger) (*guards, error) {
	g := &guards{command: command, environ: environ, logger: logger, id: id, groups: map[int]bool{},
		pipes: make([]io.WriteCloser, guardCount)}
	for i := range g.pipes {
		cmd, err := g.start(i)
		if err != nil {
			return nil, errors.Join(err, g.release())
		}
		g.ended.Go(func() { g.keep(i, cmd) })
	}
	return g, nil
}

// start starts one guard, in a group of its own: a terminal's Ctrl-C must not reach it.
func (g *guards) start(i int) (*exec.Cmd, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.released {
		return nil, nil
	}
	cmd := exec.Command(g.command[0], g.command[1:]...)
	cmd.Args[0] = guardName
	cmd.Env, cmd.SysProcAttr = g.environ, guardAttributes()
	pipe, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("launch: guard: %w", err)
	}
	orders := "id " + g.id + "\n"
	if g.dir != "" {
		orders += "dir " + g.dir + "\n"
	}
	for pgid := range g.groups {
		orders += "add " + strconv.Itoa(pgid) + "\n"
	}
	io.WriteString(pipe, orders) // a guard that is gone is noticed by keep
	g.pipes[i] = pipe
	return cmd, nil
}

// keep replaces a guard whenever it dies.
func (g *guards) keep(i int, cmd *exec.Cmd) {
	for cmd != nil {
		started := time.Now()
		err := cmd.Wait()
		g.mu.Lock()
		g.pipes[i] = nil
		released := g.released
		if released && err != nil {
			g.problem = fmt.Errorf("launch: guard: %w", err)
		}
		g.mu.Unlock()
		if released {
			return
		}
		g.logger.Warn("a guard process ended and is replaced", "error", err)
		if time.Since(started) < guardPause {
			time.Sleep(guardPause)
		}
		if cmd, err = g.start(i); err != nil {
			g.logger.Warn("a guard process could not be replaced: if the launcher is killed, what ranks have started "+
				"may keep running", "error", err)
		}
	}
}

// send gives an order. The lock is held.
func (g *guards) send(order string) {
	for _, pipe := range g.pipes {
		if pipe != nil {
			io.WriteString(pipe, order+"\n") // as in start
		}
	}
}

// folder is to be removed if the launcher cannot.
func (g *guards) folder(dir string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !strings.Contains(dir, "\n") { // an order is a line
		g.dir = dir
		g.send("dir " + dir)
	}
}

func (g *guards) add(pgid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.groups[pgid] = true
	g.send("add " + strconv.Itoa(pgid))
}

func (g *guards) remove(pgid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.groups, pgid)
	g.send("remove " + strconv.Itoa(pgid))
}

// release ends the guards, whose ranks are all gone.
func (g *guards) release() error {
	g.mu.Lock()
	g.released = true
	g.send("done")
	for _, pipe := range g.pipes {
		if pipe != nil {
			pipe.Close() // the guard has read the farewell, or is gone
		}
	}
	g.mu.Unlock()
	g.ended.Wait()
	return g.problem
}
