// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	crand "crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lockstep-ml/lockstep/tests/internal/twohosts"
)

// target is a port that a job listens on.
type target struct {
	host    int // where
	address string
}

// targets are all that a job listens on, wherever.
func (j *job) targets() []target {
	var list []target
	seen := map[target]bool{}
	for _, p := range living(j.marker) {
		sockets := sockets(p.pid)
		for _, file := range []string{"tcp", "tcp6"} {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", p.pid, file)) // it may be gone
			for line := range strings.Lines(string(text)) {
				f := strings.Fields(line)
				if len(f) < 10 || f[3] != "0A" || !sockets[f[9]] { // 0A is listening
					continue
				}
				t := target{address: j.reachable(f[1])}
				// 0 where there is none
				t.host, _ = strconv.Atoi(strings.TrimPrefix(p.variable("LOCKSTEP_HOST_ID"), "host"))
				if !seen[t] {
					seen[t] = true
					list = append(list, t)
				}
			}
		}
	}
	return list
}

// sockets are the inodes of a process's.
func sockets(pid int) map[string]bool {
	list := map[string]bool{}
	for _, name := range names(fmt.Sprintf("/proc/%d/fd", pid)) {
		link, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, name)) // it may be closed
		if inode, ok := strings.CutPrefix(link, "socket:["); ok {
			list[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return list
}

// reachable turns the kernel's form of an address and port into one that can be dialled: the loopback where it listens
// on all.
func (j *job) reachable(kernel string) string {
	host, port, _ := strings.Cut(kernel, ":")
	n, _ := strconv.ParseUint(port, 16, 16) // the kernel's
	raw, _ := hex.DecodeString(host)
	for i := 0; i+4 <= len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	a, _ := netip.AddrFromSlice(raw)
	if a = a.Unmap(); !a.IsValid() || a.IsUnspecified() {
		a = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.AddrPortFrom(a, uint16(n)).String()
}

// on calls f where a host's sockets are.
func (j *job) on(host int, f func() error) error {
	if j.layout != hosts {
		return f()
	}
	return twohosts.In(j.hosts.Names[host], f)
}

// dial connects to a target, from its own host or, if that works, from the other one.
func (j *job) dial(t target, away bool) (net.Conn, error) {
	host := t.host
	if away && strings.HasPrefix(t.address, "10.") {
		host = 1 - host
	}
	var c net.Conn
	err := j.on(host, func() (err error) {
		c, err = net.DialTimeout("tcp", t.address, time.Second)
		return err
	})
	return c, err
}

// strangers connects to all ports of a job from now on, until it ends. What do says with each connection is done with
// it at once; those it keeps are held to the end, so many at most.
func strangers(do func(c net.Conn, n int) (keep bool)) action {
	return func(j *job, f fault) (func() error, error) {
		if len(j.meetingPlace(f)) == 0 && len(j.targets()) == 0 {
			return nil, nil
		}
		j.begin(f)
		over := make(chan struct{})
		j.whileItLasts(over, func(stop <-chan struct{}) { j.bother(f, do, stop) })
		return func() error { close(over); return nil }, nil
	}
}

// meetingPlace is where rank 0 will listen, for strangers that come before the ranks do: where two launchers were told
// to meet.
func (j *job) meetingPlace(f fault) []target {
	switch {
	case f.step > 0 || j.layout.launchers() < 2:
		return nil
	case j.layout == hosts:
		return []target{{0, fmt.Sprintf("%s:%d", twohosts.Address(0), j.port)}}
	}
	return []target{{0, fmt.Sprintf("127.0.0.1:%d", j.port)}}
}

// whileItLasts calls f in the background. It is told to stop when the fault is over.
func (j *job) whileItLasts(over <-chan struct{}, f func(stop <-chan struct{})) {
	j.background.Go(func() { f(over) })
}

// held is how many silent connections there are at a time: more than a listener has places for.
const held = 300

func (j *job) bother(f fault, do func(net.Conn, int) bool, stop <-chan struct{}) {
	var kept []net.Conn
	defer func() {
		for _, c := range kept {
			_ = c.Close() // it may have been hung up
		}
	}()
	var list []target
	var looked time.Time
	for n := int(f.pick % 100); ; {
		select {
		case <-stop:
			return
		case <-time.After(200 * time.Microsecond):
		}
		if time.Since(looked) > 50*time.Millisecond { // it takes longer than to connect
			list, looked = append(j.meetingPlace(f), j.targets()...), time.Now()
		}
		for _, t := range list {
			for range 10 {
				n++
				c, err := j.dial(t, n%2 == 0)
				if err != nil {
					break // it listens no more, or not yet
				}
				j.mu.Lock()
				j.counts.connections++
				j.mu.Unlock()
				if do(c, n) && len(kept) < held {
					kept = append(kept, c)
				} else {
					_ = c.Close() // nothing was promised
				}
			}
		}
	}
}

// writeGarbage says what no rank would say.
func writeGarbage(c net.Conn, n int) (keep bool) {
	noise := make([]byte, 64<<10)
	_, _ = crand.Read(noise) // never fails
	messages := [][]byte{
		noise, []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), {0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, noise[:7],
		binary.BigEndian.AppendUint32(nil, 1<<31-1), binary.LittleEndian.AppendUint32(nil, 1<<31-1),
		bytes.Repeat([]byte{'{'}, 4096), {0},
		append(binary.BigEndian.AppendUint32(nil, 2), '{', '}'),
	}
	_ = c.SetDeadline(time.Now().Add(50 * time.Millisecond)) // the worst is that it stays
	_, _ = c.Write(messages[n%len(messages)])                // it may hang up
	if n%3 == 0 {
		_, _ = io.CopyN(c, c, 512) // what it says, back to it
	}
	return n%10 == 0
}

// sayNothing is silent.
func sayNothing(net.Conn, int) (keep bool) { return true }

// rendezvous is where a rank of the job was told to meet the others: host, address and port; false if there is none.
func (j *job) rendezvous() (address, port string, world string, ok bool) {
	for _, p := range living(j.marker) {
		if p.rank() == 0 {
			return p.variable("MASTER_ADDR"), p.variable("MASTER_PORT"), p.variable("WORLD_SIZE"), true
		}
	}
	return "", "", "", false
}

// stranger starts clm as a rank of the job, with its own token, on the first host.
func (j *job) stranger(address, port, world string) (*program, error) {
	out := filepath.Join(j.h.dir, "stranger")
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, err
	}
	line := append([]string{j.h.bin("clm")}, j.h.argv(filepath.Join(out, "out"), batch(1))...)
	line = append(line, "--ddp_timeout", "2")
	if j.layout == hosts {
		line = append([]string{"ip", "netns", "exec", j.hosts.Names[0]}, line...)
	}
	size, _ := strconv.Atoi(world) // a launcher's
	rank := strconv.Itoa(rand.IntN(max(size, 2)-1) + 1)
	return start("stranger", line, out, environ("TMPDIR="+out, "RANK="+rank, "LOCAL_RANK="+rank,
		"WORLD_SIZE="+strconv.Itoa(max(size, 2)), "LOCAL_WORLD_SIZE="+world,
		"MASTER_ADDR="+address, "MASTER_PORT="+port,
		"LOCKSTEP_JOB_TOKEN=a token of quite another job, which is long enough"))
}

// wrongTokens starts real programs that want to be ranks of the job, with another token.
func wrongTokens(j *job, f fault) (func() error, error) {
	address, port, world, ok := j.rendezvous()
	if !ok {
		return nil, nil
	}
	j.begin(f)
	return j.strange(func() (string, string, string) { return address, port, world })
}

// strange starts one stranger after the other until it is undone.
func (j *job) strange(where func() (address, port, world string)) (undo func() error, err error) {
	over, failed := make(chan struct{}), make(chan error, 1)
	j.whileItLasts(over, func(stop <-chan struct{}) {
		defer close(failed)
		for {
			p, err := j.stranger(where())
			if err != nil {
				failed <- err
				return
			}
			j.mu.Lock()
			j.counts.connections++
			j.mu.Unlock()
			select {
			case <-stop:
			case <-p.ended:
			}
			p.signal(syscall.SIGKILL)
			<-p.ended
			j.note("a stranger ended with code %d and had printed:\n%s", p.code(), p.printed)
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	return func() error {
		close(over)
		return <-failed
	}, nil
}

// halfHandshakes lets a real program begin what it does not end: a proxy stands between it and a port, and hands on so
// many bytes of its, and no more.
func halfHandshakes(j *job, f fault) (func() error, error) {
	list := j.targets()
	if len(list) == 0 {
		return nil, nil
	}
	j.begin(f)
	var l net.Listener
	if err := j.on(0, func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}); err != nil {
		return nil, err
	}
	j.background.Go(func() { j.serveHalves(l) })
	_, port, _ := net.SplitHostPort(l.Addr().String()) // Go's
	undo, err := j.strange(func() (string, string, string) { return "127.0.0.1", port, strconv.Itoa(max(j.ranks, 2)) })
	return func() error {
		err := undo()
		_ = l.Close() // ends serveHalves
		return err
	}, err
}

func (j *job) serveHalves(l net.Listener) {
	var kept []net.Conn
	for {
		near, err := l.Accept()
		if err != nil {
			break
		}
		kept = append(kept, near)
		list := j.targets()
		if len(list) == 0 {
			continue
		}
		far, err := j.dial(list[rand.IntN(len(list))], false)
		if err != nil {
			continue
		}
		j.mu.Lock()
		j.counts.connections++
		j.mu.Unlock()
		kept = append(kept, far)
		j.background.Go(func() { _, _ = io.Copy(near, far) })
		j.background.Go(func() {
			_, _ = io.CopyN(far, near, rand.Int64N(400)) // and then it is silent
			if rand.IntN(2) == 0 {
				_ = far.Close() // or gone
			}
		})
	}
	for _, c := range kept {
		_ = c.Close() // the end
	}
}
