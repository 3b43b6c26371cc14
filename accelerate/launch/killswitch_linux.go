// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/lockstep-ml/lockstep/internal/procfs"
)

// killSwitch lets the kernel kill process groups and single processes when the last process that holds it has ended, by
// SIGKILL too. The launcher and its guards hold it.
//
// It is a pipe that nothing is written to. Signal-driven I/O (F_SETOWN, F_SETSIG and O_ASYNC, see fcntl(2)) sends
// SIGKILL to a target when the pipe's last writer is closed, and an ending process closes its own. The reader that
// names the target must still be open at that moment. In which order an ending process gives up its descriptors depends
// on the kernel, but it is always by their numbers, so each target has a reader below the writer and one above. The
// kernel remembers a target itself, not its number, which may come to mean another process later.
type killSwitch struct {
	reader, writer *os.File // the latter has a high number

	mu     sync.Mutex
	armed  map[int][2]int // readers, by target: -1 times a process group, or a process
	closed bool
}

// killSwitchWriter is the writer's number, if so many files may be open.
const killSwitchWriter = 4096

// newKillSwitch makes one that has no targets yet.
func newKillSwitch() (*killSwitch, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	return holdKillSwitch(p[0], p[1])
}

// killSwitchFirst is the number of the first of files in a process that was started with them.
const killSwitchFirst = 3

// inheritKillSwitch takes over what files of another process has passed on to this one.
func inheritKillSwitch() (*killSwitch, error) {
	return holdKillSwitch(killSwitchFirst, killSwitchFirst+1)
}

// files are for a process that shall hold the switch too.
func (k *killSwitch) files() []*os.File {
	if k == nil {
		return nil
	}
	return []*os.File{k.reader, k.writer}
}

// holdKillSwitch takes over a pipe.
func holdKillSwitch(reader, writer int) (*killSwitch, error) {
	var limit unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	high := -1
	if err == nil {
		high, err = unix.FcntlInt(uintptr(writer), unix.F_DUPFD_CLOEXEC, min(killSwitchWriter, int(limit.Cur/2)))
	}
	err = errors.Join(err, unix.Close(writer))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("launch: kill switch: %w", err), unix.Close(reader))
	}
	unix.CloseOnExec(reader)
	return &killSwitch{reader: os.NewFile(uintptr(reader), "kill switch"),
		writer: os.NewFile(uintptr(high), "kill switch"), armed: map[int][2]int{}}, nil
}

// add makes a process group (a negative number) or a process a target.
func (k *killSwitch) add(target int) error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.armed[target]; ok || k.closed {
		return nil
	}
	below, err := k.arm(target, 0)
	if err != nil {
		return fmt.Errorf("launch: kill switch: %w", err)
	}
	above, err := k.arm(target, int(k.writer.Fd())+1)
	if err != nil {
		return errors.Join(fmt.Errorf("launch: kill switch: %w", err), unix.Close(below))
	}
	k.armed[target] = [2]int{below, above}
	return nil
}

// arm opens a reader with at least this number that names a target.
func (k *killSwitch) arm(target, least int) (fd int, err error) {
	path := "/proc/self/fd/" + strconv.Itoa(int(k.reader.Fd()))
	fd, err = unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil && fd < least {
		low := fd
		fd, err = unix.FcntlInt(uintptr(low), unix.F_DUPFD_CLOEXEC, least)
		err = errors.Join(err, unix.Close(low))
	}
	for _, c := range [][2]int{{unix.F_SETOWN, target}, {unix.F_SETSIG, int(unix.SIGKILL)},
		{unix.F_SETFL, unix.O_NONBLOCK | unix.O_ASYNC}} {
		if err == nil {
			_, err = unix.FcntlInt(uintptr(fd), c[0], c[1])
		}
	}
	if err != nil && fd >= 0 {
		err = errors.Join(err, unix.Close(fd))
	}
	return fd, err
}

// remove ends what add has begun.
func (k *killSwitch) remove(target int) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.disarm(target)
}

func (k *killSwitch) disarm(target int) {
	readers, ok := k.armed[target]
	if !ok { // it was gone before add, or is not ours
		return
	}
	for _, fd := range readers {
		_ = unix.Close(fd) // it was opened by arm; nothing was written
	}
	delete(k.armed, target)
}

// addMarked makes a process a target that has been started by the launch with this number.
func (k *killSwitch) addMarked(pid int, id string) error {
	if k == nil || !marked(pid, launchMarker(id)) {
		return nil
	}
	err := k.add(pid)
	if err == nil && !marked(pid, launchMarker(id)) { // the number may mean another by now
		k.remove(pid)
	}
	return err
}

// close lets go of all targets, then of the switch.
func (k *killSwitch) close() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for target := range k.armed {
		k.disarm(target)
	}
	k.closed = true
	_ = k.writer.Close() // nothing was written
	_ = k.reader.Close()
}

// strays finds processes of a launch that have left the process groups of its ranks, without looking at each process of
// the machine each time.
type strays struct {
	marker []byte
	last   int          // the number of the newest process at the last look
	again  map[int]bool // could not be read then: they were about to start a program, or have ended
	known  map[int]bool // processes of the launch
}

func newStrays(id string) *strays {
	return &strays{marker: launchMarker(id), last: -1, known: map[int]bool{}}
}

// look returns those that live now.
func (s *strays) look(groups map[int]bool) map[int]bool {
	for _, pid := range s.newcomers() {
		if marked(pid, s.marker) {
			s.known[pid] = true
		}
	}
	found := map[int]bool{}
	for pid := range s.known {
		state, _, group, ok := procfs.Stat(pid)
		switch {
		case !ok || state == 'Z' || state == 'X' || !marked(pid, s.marker):
			delete(s.known, pid)
		case !groups[group]:
			found[pid] = true
		}
	}
	return found
}

// newcomers lists processes that were started since the last look, and those of the one before once more: a process
// has its environment only once its program runs.
func (s *strays) newcomers() (pids []int) {
	newest := newestProcess()
	if newest == s.last && len(s.again) == 0 {
		return nil
	}
	fresh := map[int]bool{}
	for _, pid := range procfs.Processes() {
		// numbers are given in a circle
		isNew := s.last < 0 || newest < 0 || s.last <= newest && s.last < pid && pid <= newest ||
			newest < s.last && (pid > s.last || pid <= newest)
		if isNew {
			fresh[pid] = true
		}
		if isNew || s.again[pid] {
			pids = append(pids, pid)
		}
	}
	s.last, s.again = newest, fresh
	return pids
}

// newestProcess is the number that was given last, -1 if it cannot be read.
func newestProcess() int {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return -1
	}
	fields := bytes.Fields(text)
	if len(fields) == 0 {
		return -1
	}
	pid, err := strconv.Atoi(string(fields[len(fields)-1]))
	if err != nil {
		return -1
	}
	return pid
}
