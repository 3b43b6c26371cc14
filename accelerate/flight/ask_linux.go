// SPDX-License-Identifier: Apache-2.0

package flight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockstep-ml/lockstep/internal/procfs"
)

// patience is how long one side waits for the other. A process that does not answer by then is stopped, or has no
// memory or processor to answer with.
const patience = 5 * time.Second

// maxAnswer is the most that a process may answer, in bytes.
const maxAnswer = 1 << 20

// address names the socket of a process. It is no file, and ends with the process.
func address(pid int) string { return fmt.Sprintf("@lockstep-flight-%d", pid) }

// answer writes the records for whoever of this user asks for them, and says where.
func answer(log *slog.Logger) (hangUp func()) {
	l, err := net.Listen("unix", address(os.Getpid()))
	if err != nil { // another process has the name: the signal works still
		log.Debug("lockstep debug flight --pid will not work for this process", "error", err)
		return func() {}
	}
	go func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // no descriptors, for instance
				time.Sleep(100 * time.Millisecond)
				continue
			}
			serve(c.(*net.UnixConn)) // one at a time: nothing is gained by more
		}
	}()
	return func() { _ = l.Close() }
}

func serve(c *net.UnixConn) {
	defer c.Close()
	peer, err := credentials(c)
	if err != nil || int(peer.Uid) != os.Geteuid() && peer.Uid != 0 {
		return
	}
	text, err := json.Marshal(write())
	if err == nil && c.SetDeadline(time.Now().Add(patience)) == nil {
		_, _ = c.Write(text) // whoever asked may have gone
	}
}

// credentials says who is at the other end.
func credentials(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *unix.Ucred
	var e error
	err = raw.Control(func(fd uintptr) { peer, e = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return peer, errors.Join(err, e)
}

// Ask makes a process write its flight records, and returns where they are. ErrNoRank is for a process that has none.
// It sends no signal, which would end a process that does not expect it.
func Ask(ctx context.Context, pid int) (w Written, err error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	fail := func(err error) error { return fmt.Errorf("flight: process %d: %w", pid, err) }
	if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
		return w, fail(ErrNoProcess)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", address(pid))
	if errors.Is(err, syscall.ECONNREFUSED) {
		return w, fail(ErrNoRank)
	}
	if err != nil {
		return w, fail(err)
	}
	defer conn.Close()
	c := conn.(*net.UnixConn)
	peer, err := credentials(c)
	if err != nil {
		return w, fail(err)
	}
	if int(peer.Pid) != pid || int(peer.Uid) != os.Geteuid() && os.Geteuid() != 0 {
		return w, fail(fmt.Errorf("process %d of user %d answers instead", peer.Pid, peer.Uid))
	}
	deadline, _ := ctx.Deadline() // there is one: see above
	if err := c.SetReadDeadline(deadline); err != nil {
		return w, fail(err)
	}
	text, err := io.ReadAll(io.LimitReader(c, maxAnswer))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return w, fail(fmt.Errorf("no answer within %v; %s", time.Since(began).Round(10*time.Millisecond), state(pid)))
	}
	if err != nil {
		return w, fail(err)
	}
	if err := json.Unmarshal(text, &w); err != nil {
		return w, fail(fmt.Errorf("its answer is incomplete: %w", err))
	}
	return w, nil
}

// state says what the kernel knows of a process.
func state(pid int) string {
	switch c, _, _, _ := procfs.Stat(pid); c {
	case 'T', 't':
		return "it is stopped: kill -CONT continues it"
	case 'D':
		return "it waits for a device, such as a disk"
	case 'Z', 'X', 0:
		return "it has ended"
	}
	return "it is alive"
}

// Descendants returns the processes that a process has started, and those that they have, without the process itself.
func Descendants(pid int) []int {
	children := map[int][]int{}
	for _, id := range procfs.Processes() {
		if _, parent, _, ok := procfs.Stat(id); ok {
			children[parent] = append(children[parent], id)
		}
	}
	list := []int{pid}
	for i := 0; i < len(list); i++ {
		list = append(list, children[list[i]]...)
	}
	return list[1:]
}
