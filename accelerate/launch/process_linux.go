// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/internal/procfs"
)

// attributes gives a rank a process group, and a parent's death signal: the kernel kills
// the rank when the thread that has started it ends, and that is Run's.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// holdsFiles says that unnamedFile needs no folder, and that other processes can open what it returns.
const holdsFiles = true

// unnamedFile returns a file without a name, in memory.
func unnamedFile(what string) (*os.File, error) {
	fd, err := unix.MemfdCreate(what, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), what), nil
}

// secretFile returns a file without a name that holds a text, which nobody can change.
func secretFile(text string) (*os.File, error) {
	f, err := unnamedFile("lockstep-token")
	if err != nil {
		secret, second := removedFile(text)
		if second != nil {
			return nil, errors.Join(err, second)
		}
		return secret, nil
	}
	if _, err = f.WriteString(text); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS,
			unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// rename gives this process another name for ps, pkill and killall.
func rename(name string) {
	_ = os.WriteFile("/proc/self/comm", []byte(name), 0) // it works under any name
}

// awaitExit waits until a child has ended and leaves it unreaped, so that its number is not
// given to another process. It reports whether that was possible.
func awaitExit(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}

// groupAlive reports whether a process of the group runs. Those that have ended and wait to
// be reaped, in a container perhaps for ever, do not count.
func groupAlive(pgid int) bool {
	if errors.Is(syscall.Kill(-pgid, 0), syscall.ESRCH) {
		return false
	}
	for _, pid := range procfs.Processes() {
		if state, _, group, ok := procfs.Stat(pid); ok && group == pgid && state != 'Z' && state != 'X' {
			return true
		}
	}
	return false
}

// standsStill reports whether a process stands still for a signal or a debugger.
func standsStill(pid int) bool {
	state, _, _, ok := procfs.Stat(pid)
	return ok && (state == 'T' || state == 't')
}

// sweep kills every process that was started with the launch's number in its environment,
// wherever it has gone, and returns how many there were.
func sweep(id string) int {
	marker := launchMarker(id)
	killed := 0
	for _, pid := range procfs.Processes() {
		if !marked(pid, marker) {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0) // from here on the number cannot come to mean another
		if err != nil {
			if errors.Is(err, unix.ENOSYS) && syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed++
			}
			continue
		}
		if marked(pid, marker) && unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
			awaitPidfd(fd)
			killed++
		}
		unix.Close(fd) // opened above; nothing was written
	}
	return killed
}

// launchMarker is the entry that all processes of a launch have in their environment.
func launchMarker(id string) []byte { return []byte(env.VarLaunchID + "=" + id) }

// awaitPidfd waits, for a second at most, until the process has ended.
func awaitPidfd(fd int) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(p, 1000); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// marked reports whether a process was started with the variable.
func marked(pid int, marker []byte) bool {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	if err != nil {
		return false
	}
	for entry := range bytes.SplitSeq(text, []byte{0}) {
		if bytes.Equal(entry, marker) {
			return true
		}
	}
	return false
}

// peakMemory is the most memory that an ended process held at once, in bytes.
func peakMemory(state *os.ProcessState) int64 { return resident(state) << 10 }
