// SPDX-License-Identifier: Apache-2.0

package distributed

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// relay is the wire between two links: it hands frames on after a delay, until it is cut,
// and keeps what TCP carried.
type relay struct {
	delay time.Duration
	ends  [2]*os.File // packet sockets, one on each link
	cut   atomic.Bool
	flip  atomic.Bool // a bit of the next large frame

	mu      sync.Mutex
	streams map[flow]*recording
	passed  int // frames

	running sync.WaitGroup
}

// newRelay joins two links of a network namespace.
func newRelay(t testing.TB, namespace string, links [2]string, delay time.Duration) *relay {
	t.Helper()
	r := &relay{delay: delay, streams: map[flow]*recording{}}
	opened := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread, which is in the namespace now, ends with the goroutine
		opened <- r.open(namespace, links)
	}()
	require.NoError(t, <-opened)
	for i := range r.ends {
		r.running.Go(func() { r.carry(r.ends[i], r.ends[1-i]) })
	}
	t.Cleanup(func() {
		for _, end := range r.ends {
			require.NoError(t, end.Close())
		}
		r.running.Wait()
	})
	return r
}

// open opens the sockets; they stay in the namespace of the thread that opened them.
func (r *relay) open(namespace string, links [2]string) error {
	ns, err := unix.Open(filepath.Join("/run/netns", namespace), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(ns)
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		return err
	}
	for i, name := range links {
		link, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		all := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8) // in the network's byte order
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(all))
		if err != nil {
			return err
		}
		r.ends[i] = os.NewFile(uintptr(fd), name)
		for option, value := range map[int]int{unix.PACKET_IGNORE_OUTGOING: 1, unix.PACKET_VNET_HDR: 1} {
			if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, option, value); err != nil {
				return err
			}
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20); err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}); err != nil {
			return err
		}
	}
	return nil
}

// offload is the length of what stands before a frame: which checksums and cuts the hosts'
// kernels have left to the device. It goes on as it came.
const offload = 10

// held is a frame on its way.
type held struct {
	due   time.Time
	frame []byte
}

// carry hands frames on in one direction until the sockets are closed.
func (r *relay) carry(from, to *os.File) {
	line := make(chan held, 1<<14)
	r.running.Go(func() {
		for h := range line {
			time.Sleep(time.Until(h.due))
			if !r.cut.Load() {
				_, _ = to.Write(h.frame) // what a wire loses is sent again
			}
		}
	})
	defer close(line)
	buffer := make([]byte, offload+1<<17)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if r.cut.Load() {
			continue
		}
		h := held{due: time.Now().Add(r.delay), frame: append([]byte(nil), buffer[:n]...)}
		if n > 4<<10 && r.flip.CompareAndSwap(true, false) {
			h.frame[n/2] ^= 1
		}
		r.record(h.frame[offload:])
		line <- h
	}
}

// flow is one direction of a connection.
type flow struct{ from, to netip.AddrPort }

// recording is what a flow has carried, each byte once.
type recording struct {
	first uint32 // sequence number of the first byte
	bytes []byte
	later map[uint32][]byte // what came too early, by sequence number
}

// record takes a frame apart.
func (r *relay) record(frame []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passed++
	be := binary.BigEndian
	if len(frame) < 34 || be.Uint16(frame[12:]) != unix.ETH_P_IP || frame[23] != unix.IPPROTO_TCP {
		return
	}
	ip := frame[14:]
	ip = ip[:min(int(be.Uint16(ip[2:])), len(ip))] // short frames are padded
	tcp := ip[int(ip[0]&15)*4:]
	address := func(at, port int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[at:])), be.Uint16(tcp[port:]))
	}
	f := flow{from: address(12, 0), to: address(16, 2)}
	seq, data, syn := be.Uint32(tcp[4:]), tcp[tcp[12]>>4*4:], tcp[13]&2 != 0
	if syn {
		r.streams[f] = &recording{first: seq + 1, later: map[uint32][]byte{}}
	}
	if s := r.streams[f]; s != nil && len(data) > 0 {
		s.add(seq, data)
	}
}

// add appends what is new.
func (s *recording) add(seq uint32, data []byte) {
	skip := len(s.bytes) - int(int32(seq-s.first))
	if skip < 0 {
		s.later[seq] = append([]byte(nil), data...)
		return
	}
	if skip >= len(data) {
		return
	}
	s.bytes = append(s.bytes, data[skip:]...)
	for seq, data := range s.later {
		if int(int32(seq-s.first)) <= len(s.bytes) {
			delete(s.later, seq)
			s.add(seq, data)
			return // which goes on with the rest
		}
	}
}
