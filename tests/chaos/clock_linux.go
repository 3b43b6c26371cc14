// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The wall clock of the machine is left alone. A program whose clock is to be wrong is started by this one, as chaos
// clock SOCKET PROGRAM..., which asks the kernel to stop the program at each question for the wall clock and hand the
// question to the harness (seccomp), and then becomes the program. A Go program asks without the kernel's help, through
// the vDSO; so the harness hides that from it when it starts (ptrace). The monotonic clock is a time namespace's: chaos
// skew SECONDS PROGRAM...

// wrapped does the work of the harness's helpers, such as the process that becomes a program with a wrong clock; false
// if argv asks for none.
func wrapped(argv []string) (code int, is bool) {
	if len(argv) < 2 {
		return 0, false
	}
	var err error
	switch argv[1] {
	case "clock":
		err = becomeWatched(argv[2], argv[3:])
	case "skew":
		err = becomeSkewed(argv[2], argv[3:])
	case "enter": // whether it can be done
		err = enter(argv[2])
	case "hide":
		err = hide(argv[2])
	case "tell": // what the clocks say
		var mono unix.Timespec
		err = unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono)
		fmt.Println(time.Now().Unix(), mono.Sec)
	default:
		return 0, false
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return 2, true
	}
	return 0, true
}

// clockCalls are the numbers of the system call that asks for a clock, and the architectures', as seccomp has them.
var clockCalls = map[string][2]uint32{"amd64": {228, unix.AUDIT_ARCH_X86_64}, "arm64": {113, unix.AUDIT_ARCH_AARCH64}}

// becomeWatched hands questions for the wall clock to whoever listens at a socket.
func becomeWatched(socket string, line []string) error {
	runtime.LockOSThread() // the filter is the thread's
	call, ok := clockCalls[runtime.GOARCH]
	if !ok {
		return errors.New("no numbers of system calls are known for " + runtime.GOARCH)
	}
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 4}, // the architecture
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call[1], Jf: 5},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call[0], Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16}, // its first argument, which clock
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.CLOCK_REALTIME, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
		uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	rank, _ := strconv.Atoi(os.Getenv("RANK")) // 0 without a launcher
	id := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, uint32(os.Getpid())), uint32(rank))
	if _, _, err := c.(*net.UnixConn).WriteMsgUnix(id, unix.UnixRights(int(fd)), nil); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		return fmt.Errorf("the harness: %w", err)
	}
	return become(line)
}

func become(line []string) error {
	path, err := exec.LookPath(line[0])
	if err != nil {
		return err
	}
	return syscall.Exec(path, line, os.Environ())
}

// becomeSkewed has the monotonic clock start so many seconds, times the rank and one, later.
func becomeSkewed(seconds string, line []string) error {
	n, err := strconv.Atoi(seconds)
	if err != nil {
		return err
	}
	rank, _ := strconv.Atoi(os.Getenv("RANK")) // 0 without a launcher
	n *= rank + 1
	if err := unix.Unshare(unix.CLONE_NEWTIME); err != nil {
		return fmt.Errorf("time namespace: %w", err)
	}
	text := fmt.Sprintf("monotonic %d 0\nboottime %d 0\n", n, n)
	if err := os.WriteFile("/proc/self/timens_offsets", []byte(text), 0); err != nil {
		return err
	}
	return become(line) // from here on it counts
}

func init() { runtime.LockOSThread() } // becomeSkewed is for the process's first thread

// clocks are the wall clocks of a job's ranks, as many as have asked.
type clocks struct {
	self     string // this program
	listener *net.UnixListener
	offset   [8]atomic.Int64 // of a rank, in nanoseconds
	asked    atomic.Int64
	running  sync.WaitGroup
}

func newClocks(self, socket string) (*clocks, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	c := &clocks{self: self, listener: l}
	for i := range c.offset { // each of another host, whose clock nobody has set
		c.offset[i].Store(int64(time.Duration(i*i-4) * 7 * time.Minute))
	}
	c.running.Go(c.serve)
	return c, nil
}

// wrap is what stands before a program's command line.
func (c *clocks) wrap(wall bool) []string {
	if wall {
		return []string{c.self, "clock", c.listener.Addr().String()}
	}
	return []string{c.self, "skew", "86400"}
}

// jump moves all clocks, each otherwise: by days, into the past or the future.
func (c *clocks) jump(pick uint64) {
	for i := range c.offset {
		c.offset[i].Store(int64(time.Duration(int64(pick>>(4*i)%16)-8) * 11 * time.Hour))
	}
}

// close ends it; what still asks is told that there is no such call.
func (c *clocks) close() error {
	err := c.listener.Close()
	c.running.Wait()
	return err
}

// serve takes in programs.
func (c *clocks) serve() {
	for {
		conn, err := c.listener.AcceptUnix()
		if err != nil {
			return // closed
		}
		c.running.Go(func() {
			defer conn.Close()
			_ = c.watch(conn) // the program says so if it was left alone
		})
	}
}

// watch answers a program's questions until it ends.
func (c *clocks) watch(conn *net.UnixConn) error {
	id, rights := make([]byte, 8), make([]byte, unix.CmsgSpace(4))
	if _, _, _, _, err := conn.ReadMsgUnix(id, rights); err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) != 1 {
		return errors.Join(err, errors.New("no descriptor came"))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return err
	}
	defer unix.Close(fds[0])
	pid, rank := int(binary.LittleEndian.Uint32(id)), int(binary.LittleEndian.Uint32(id[4:]))
	if err := c.hideClock(pid, conn); err != nil {
		return err
	}
	return c.answer(fds[0], &c.offset[rank%len(c.offset)])
}

// hideClock lets a program begin, and hides the vDSO from it. That is a separate process: the kernel tells of the
// program's stops whoever waits in the process that traces it, also os/exec, which waits for the end.
func (c *clocks) hideClock(pid int, conn net.Conn) error {
	cmd := exec.Command(c.self, "hide", strconv.Itoa(pid))
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	if _, err = io.ReadFull(out, make([]byte, 1)); err == nil {
		_, err = conn.Write([]byte{1})
	}
	return errors.Join(err, cmd.Wait())
}

// hide traces a process until it has become a program.
func hide(id string) error {
	pid, err := strconv.Atoi(id)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	const seize, exitOptions = 0x4206, unix.PTRACE_O_TRACEEXEC
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, seize, uintptr(pid), 0, exitOptions, 0, 0); errno != 0 {
		return fmt.Errorf("ptrace: %w", errno)
	}
	fmt.Print(".") // it may begin
	for {
		// Nobody is woken by an end that another one, who has started the process, has been told.
		var info stopInfo
		err := unix.Waitid(unix.P_PID, pid, (*unix.Siginfo)(unsafe.Pointer(&info)),
			unix.WSTOPPED|unix.WALL|unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil // it has ended
		case info.pid == 0 && gone(pid):
			return nil
		case info.pid == 0:
			time.Sleep(200 * time.Microsecond)
		case info.status>>8 != unix.PTRACE_EVENT_EXEC: // a signal, before the program begins
			_ = unix.PtraceCont(pid, int(info.status&0x7f)) // it may have been killed
		default:
			err := hideVDSO(pid)
			return errors.Join(err, unix.PtraceDetach(pid))
		}
	}
}

// stopInfo is the kernel's siginfo_t of a child.
type stopInfo struct {
	signo, errno, code, _ int32
	pid                   int32
	uid                   uint32
	status                int32
	_                     [128]byte
}

// gone tells whether a process has ended, also one that waits to be reaped.
func gone(pid int) bool {
	fields := stat(pid)
	return len(fields) == 0 || fields[0] == "Z" || fields[0] == "X"
}

// stat are the fields behind the name of /proc/PID/stat, none if the process is gone.
func stat(pid int) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // see above
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}

// hideVDSO makes the entry of a program's auxiliary vector that leads to the vDSO one that is passed over.
func hideVDSO(pid int) error {
	const sysinfo, ignore, startStack = 33, 1, 25
	fields := stat(pid)
	if len(fields) <= startStack {
		return errors.New("it has ended")
	}
	stack, err := strconv.ParseInt(fields[startStack], 10, 64) // where the arguments are
	if err != nil {
		return err
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	word := func(at int64) uint64 {
		b := make([]byte, 8)
		if _, e := memory.ReadAt(b, at); e != nil {
			err = e
		}
		return binary.NativeEndian.Uint64(b)
	}
	at := stack + 8*int64(1+word(stack)+1) // the arguments, and a zero
	for err == nil && word(at) != 0 {
		at += 8 // the environment
	}
	for at += 8; err == nil && word(at) != 0; at += 16 {
		if word(at) == sysinfo {
			_, err = memory.WriteAt(binary.NativeEndian.AppendUint64(nil, ignore), at)
			return err
		}
	}
	return errors.Join(err, errors.New("no vDSO"))
}

// notification is the kernel's struct seccomp_notif, response its struct seccomp_notif_resp.
type (
	notification struct {
		id         uint64
		pid, flags uint32
		nr         int32
		arch       uint32
		ip         uint64
		args       [6]uint64
	}
	response struct {
		id    uint64
		value int64
		error int32
		flags uint32
	}
)

const (
	receive = 0xc0502100
	send    = 0xc0182101
)

// answer says what time it is.
func (c *clocks) answer(fd int, offset *atomic.Int64) error {
	for {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			if poll[0].Revents&unix.POLLHUP != 0 {
				return nil // nobody is left to ask
			}
			continue
		}
		var n notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), receive, uintptr(unsafe.Pointer(&n))); errno != 0 {
			continue // it has ended, or was interrupted and asks again
		}
		c.asked.Add(1)
		r := response{id: n.id}
		if err := tell(int(n.pid), int64(n.args[1]), time.Now().Add(time.Duration(offset.Load()))); err != nil {
			r.error = -int32(unix.EFAULT)
		}
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), send, uintptr(unsafe.Pointer(&r))) // see above
	}
}

// tell writes a time where a process needs it.
func tell(pid int, at int64, t time.Time) error {
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	b := binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, uint64(t.Unix())),
		uint64(t.Nanosecond()))
	_, err = memory.WriteAt(b, at)
	return err
}

// told runs chaos tell and returns the wall clock and the monotonic one of a program, in seconds.
func told(wrapper []string, self string) (wall, mono int64, err error) {
	line := append(wrapper, self, "tell")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, line[0], line[1:]...).CombinedOutput()
	if err == nil {
		_, err = fmt.Sscan(string(out), &wall, &mono)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %s", err, out)
	}
	return wall, mono, nil
}

// tryWallClock finds out whether a program's wall clock can be moved here.
func tryWallClock(self string) error {
	dir, err := os.MkdirTemp(filepath.Dir(self), "clock-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c, err := newClocks(self, filepath.Join(dir, "socket"))
	if err != nil {
		return err
	}
	c.offset[0].Store(int64(-1000 * time.Hour))
	wall, _, err := told(c.wrap(true), self)
	if err = errors.Join(err, c.close()); err != nil {
		return err
	}
	if d := time.Until(time.Unix(wall, 0)); d > -999*time.Hour || d < -1001*time.Hour {
		return fmt.Errorf("a program's clock was to be %v off and was %v off", -1000*time.Hour, d)
	}
	return nil
}

// tryMonotonicClock finds out whether a program's monotonic clock can be moved here.
func tryMonotonicClock(self string) error {
	_, before, err := told(nil, self)
	if err != nil {
		return err
	}
	_, after, err := told((&clocks{self: self}).wrap(false), self)
	if err == nil && after-before < 80_000 {
		err = fmt.Errorf("a program's monotonic clock was to be 86400 s ahead and was %d", after-before)
	}
	return err
}
