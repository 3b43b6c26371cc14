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

// Guard is the whole work of a guard, a process beside the launcher that ends the ranks if the launcher is killed and
// cannot. It reads from its standard input which process groups there are, and when the input ends without a farewell
// it kills them and removes the run's temporary folder. It returns how many groups it killed. The process should ignore
// the signals that end the launcher. On Linux it has its own name, so that killing the launcher by its name spares it.
func Guard(input io.Reader) (killed int, err error) {
	rename(guardName)
	groups := map[int]bool{}
	var id, dir string
	var kernel *killSwitch
	defer func() { kernel.close() }()
	s := bufio.NewScanner(input)
	for s.Scan() {
		verb, value, _ := strings.Cut(s.Text(), " ")
		number, numberErr := strconv.Atoi(value)
		var switchErr error // the others hold it too
		switch {
		case verb == "id":
			id = value
		case verb == "dir":
			dir = value
		case verb == "switch":
			kernel, switchErr = inheritKillSwitch()
		case verb == "done":
			return 0, nil
		case numberErr != nil || number <= 1:
			return 0, fmt.Errorf("launch: guard: %q is not a command: want add or remove with a process group, or "+
				"watch or forget with a process", s.Text())
		case verb == "add":
			groups[number] = true
			switchErr = kernel.add(-number)
		case verb == "remove":
			delete(groups, number)
			kernel.remove(-number)
		case verb == "watch":
			switchErr = kernel.addMarked(number, id)
		case verb == "forget":
			kernel.remove(number)
		}
		if switchErr != nil {
			slog.Debug("launch: guard", "error", switchErr)
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
// moment, with SIGKILL, still leaves one that ends the ranks and what they have started, and removes the temporary
// folder. If all are killed, the kernel ends the processes where it can: see killSwitch.
const guardCount = 3

// guardName is the name of guards for ps, pgrep and killall, and their first argument: killing processes by the
// launcher's name or command line spares them.
const guardName = "launch-guard"

// guardPause is how long a guard that has died soon after its start waits for its successor; others wait for none,
// since in between there is one guard alone.
const guardPause = 100 * time.Millisecond

// guards is the launcher's end. A guard that dies is replaced.
type guards struct {
	command []string // nil: there are no guards, and the kernel switch alone
	environ []string
	logger  *slog.Logger
	id      string
	kernel  *killSwitch // nil if there is none

	mu       sync.Mutex
	dir      string
	groups   map[int]bool
	strays   map[int]bool     // processes that have left the groups
	pipes    []io.WriteCloser // one for each guard; nil while it is being replaced
	released bool
	over     chan struct{} // closed with released
	ended    sync.WaitGroup
	problem  error // of a guard's process, after release
}

// startGuards starts the guards' processes, none without a command.
func startGuards(command []string, id string, environ []string, logger *slog.Logger) (*guards, error) {
	g := &guards{command: command, environ: environ, logger: logger, id: id, groups: map[int]bool{},
		strays: map[int]bool{}, over: make(chan struct{})}
	var err error
	if g.kernel, err = newKillSwitch(); err != nil {
		logger.Debug("the kernel ends nothing if the launcher and its guards are killed", "error", err)
	}
	if len(command) > 0 {
		g.pipes = make([]io.WriteCloser, guardCount)
	}
	g.ended.Go(g.watchStrays)
	for i := range g.pipes {
		cmd, err := g.start(i)
		if err != nil {
			return nil, errors.Join(err, g.release())
		}
		g.ended.Go(func() { g.keep(i, cmd) })
	}
	return g, nil
}

// start starts one guard, in its own group: a terminal's Ctrl-C must not reach it.
func (g *guards) start(i int) (*exec.Cmd, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.released {
		return nil, nil
	}
	cmd := exec.Command(g.command[0], g.command[1:]...)
	cmd.Args[0] = guardName
	cmd.Env, cmd.SysProcAttr, cmd.ExtraFiles = g.environ, guardAttributes(), g.kernel.files()
	pipe, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("launch: guard: %w", err)
	}
	orders := "id " + g.id + "\n"
	if g.kernel != nil {
		orders += "switch\n"
	}
	if g.dir != "" {
		orders += "dir " + g.dir + "\n"
	}
	for pgid := range g.groups {
		orders += "add " + strconv.Itoa(pgid) + "\n"
	}
	for pid := range g.strays {
		orders += "watch " + strconv.Itoa(pid) + "\n"
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
	g.note(g.kernel.add(-pgid))
}

// note takes down that the kernel switch could not be told of something. The lock is held.
func (g *guards) note(err error) {
	if err != nil {
		g.logger.Debug("the kernel ends less if the launcher and its guards are killed", "error", err)
	}
}

func (g *guards) remove(pgid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.groups, pgid)
	g.send("remove " + strconv.Itoa(pgid))
	g.kernel.remove(-pgid)
}

// strayPause is how long a process that has left the groups of the ranks is not known of.
const strayPause = 500 * time.Millisecond

// watchStrays tells the kernel switches of processes that have left the groups of the ranks, until release.
func (g *guards) watchStrays() {
	if g.kernel == nil {
		return
	}
	strays, tick := newStrays(g.id), time.NewTicker(strayPause)
	defer tick.Stop()
	for {
		select {
		case <-g.over:
			return
		case <-tick.C:
		}
		g.mu.Lock()
		found := strays.look(g.groups)
		for pid := range found {
			if !g.strays[pid] {
				g.send("watch " + strconv.Itoa(pid))
				g.note(g.kernel.addMarked(pid, g.id))
			}
		}
		for pid := range g.strays {
			if !found[pid] {
				g.send("forget " + strconv.Itoa(pid))
				g.kernel.remove(pid)
			}
		}
		g.strays = found
		g.mu.Unlock()
	}
}

// release ends the guards, whose ranks are all gone.
func (g *guards) release() error {
	g.mu.Lock()
	if !g.released {
		g.released = true
		close(g.over)
	}
	g.send("done")
	for _, pipe := range g.pipes {
		if pipe != nil {
			pipe.Close() // the guard has read the farewell, or is gone
		}
	}
	g.mu.Unlock()
	g.ended.Wait()
	g.kernel.close()
	return g.problem
}
