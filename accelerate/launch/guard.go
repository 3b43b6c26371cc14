// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Guard is the whole work of a guard, a process beside the launcher that ends the ranks if
// the launcher is killed and cannot. It reads from its standard input which process groups
// there are, and when the input ends without a farewell it kills them and removes the run's
// temporary folder. It returns how many groups it killed. The process should ignore the
// signals that end the launcher.
func Guard(input io.Reader) (killed int, err error) {
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
			return 0, fmt.Errorf("launch: guard: %q is not a command; want add or remove with a process group", s.Text())
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

// guard is the launcher's end.
type guard struct {
	cmd *exec.Cmd

	mu   sync.Mutex
	pipe io.WriteCloser
}

// startGuard starts the guard's process in a group of its own: a terminal's Ctrl-C must not
// reach it.
func startGuard(command []string, id string, environ []string) (*guard, error) {
	g := &guard{cmd: exec.Command(command[0], command[1:]...)}
	g.cmd.Env = environ
	g.cmd.SysProcAttr = guardAttributes()
	var err error
	if g.pipe, err = g.cmd.StdinPipe(); err == nil {
		err = g.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("launch: guard: %w", err)
	}
	g.send("id " + id)
	return g, nil
}

// send gives an order. A guard that is gone is noticed by release.
func (g *guard) send(order string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	io.WriteString(g.pipe, order+"\n") // see above
}

// folder is to be removed if the launcher cannot.
func (g *guard) folder(dir string) {
	if !strings.Contains(dir, "\n") { // an order is a line
		g.send("dir " + dir)
	}
}

func (g *guard) add(pgid int)    { g.send("add " + strconv.Itoa(pgid)) }
func (g *guard) remove(pgid int) { g.send("remove " + strconv.Itoa(pgid)) }

// release ends the guard, whose ranks are all gone.
func (g *guard) release() error {
	g.send("done")
	g.pipe.Close() // it has read the farewell, or is gone
	if err := g.cmd.Wait(); err != nil {
		return fmt.Errorf("launch: guard: %w", err)
	}
	return nil
}
