// SPDX-License-Identifier: Apache-2.0

package distributed

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// relay keeps what TCP carries over the wire between two hosts.
type relay struct {
	mu      sync.Mutex
	streams map[flow]*recording
	passed  int // frames

	flip atomic.Bool // a bit of the next large frame
}

// flow is one direction of a connection.
type flow struct{ from, to netip.AddrPort }

// recording is what a flow has carried, each byte once.
type recording struct {
	first uint32 // sequence number of the first byte
	bytes []byte
	later map[uint32][]byte // what came too early, by sequence number
}

// pass is what the wire calls for each frame before it continues.
func (r *relay) pass(frame []byte) {
	if len(frame) > 4<<10 && r.flip.CompareAndSwap(true, false) {
		frame[len(frame)/2] ^= 1
	}
	r.record(frame)
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
			return // which continues with the rest
		}
	}
}
