// SPDX-License-Identifier: Apache-2.0

package distributed

import (
	"encoding/binary"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
)

// connection is one between two ranks on different hosts, as the relay saw it: what
// followed the handshake.
type connection struct {
	kind             string
	dialer, listener netip.AddrPort
	rank             int       // of the dialer
	sent             [2][]byte // by the dialer, by the listener
}

// connections takes apart what the relay has recorded.
func (r *relay) connections(t testing.TB) []connection {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []connection
	for f, s := range r.streams {
		require.Empty(t, s.later, "a gap in what %v sent", f)
		back := r.streams[flow{f.to, f.from}]
		if back == nil || len(s.bytes) == 0 {
			continue
		}
		var hello struct {
			Protocol string
			Hello    struct {
				Kind string
				Rank int
			}
		}
		greeting, rest := frame(s.bytes)
		if json.Unmarshal(greeting, &hello) != nil || hello.Protocol == "" {
			continue // the listener's half
		}
		c := connection{kind: hello.Hello.Kind, rank: hello.Hello.Rank, dialer: f.from, listener: f.to}
		_, c.sent[0] = frame(rest)
		_, rest = frame(back.bytes)
		_, c.sent[1] = frame(rest)
		list = append(list, c)
	}
	return list
}

// requireSecret checks that the hosts have spoken, and that all of it was TLS.
func (r *relay) requireSecret(t testing.TB) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	total := 0
	for f, s := range r.streams {
		total += len(s.bytes)
		require.Empty(t, s.later, "a gap in what %v sent", f)
		for b := s.bytes; len(b) > 0; {
			require.GreaterOrEqual(t, len(b), 5, "%v", f)
			kind, n := b[0], 5+int(binary.BigEndian.Uint16(b[3:]))
			require.True(t, kind >= 20 && kind <= 23 && b[1] == 3, "%v: no record of TLS: %x", f, b[:5])
			b = b[min(n, len(b)):]
		}
	}
	require.Greater(t, total, 24*23392*4)
}

// frame cuts off the first one of a handshake.
func frame(b []byte) (first, rest []byte) {
	if len(b) < 4 {
		return nil, nil
	}
	n := min(4+int(binary.BigEndian.Uint32(b)), len(b))
	return b[4:n], b[n:]
}

// requireFormula checks, for two hosts of two ranks, that what crossed the link is what
// docs/from-one-core-to-many.md says, to the byte. The connections of all pairs carry the
// signatures, from which follows what must have come behind them, and on the rails. It
// returns the calls and what each host has sent for them.
func (r *relay) requireFormula(t testing.TB) (calls []comm.Signature, sent [2]int) {
	t.Helper()
	const pairs, rails = "data/tcp/world", "data/tcp/world/rail"
	list := r.connections(t)
	ranks := map[netip.AddrPort]int{} // who listens where
	for _, c := range list {
		if strings.HasPrefix(c.kind, rails) {
			ranks[c.listener] = c.rank - 2
		}
	}
	require.Len(t, ranks, 2, "each rank of a host has a rail to the other host")
	var railed, headed [2]int
	seen := 0
	for _, c := range list {
		listener, known := ranks[c.listener]
		for way, b := range c.sent {
			from, to := c.rank, listener
			if way == 1 {
				from, to = to, from
			}
			switch {
			case strings.HasPrefix(c.kind, rails):
				railed[from/2] += len(b)
			case c.kind == pairs:
				require.True(t, known)
				theirs := signatures(t, b, from, to)
				if calls == nil {
					calls = theirs
				}
				require.Equal(t, calls, theirs, "rank %d to rank %d", from, to)
				headed[from/2] += len(b)
				seen++
			}
		}
	}
	require.Equal(t, 2*4, seen, "each rank has a connection to each on the other host")
	var want [2]int
	for _, c := range calls {
		for host := range want {
			want[host] += between(c, host)
		}
	}
	require.Equal(t, want, railed, "the bytes of reductions")
	return calls, [2]int{railed[0] + headed[0], railed[1] + headed[1]}
}

// signatures are those of the calls of one rank, as it sent them to another one; what
// follows each must be what the flat algorithm of its operation sends.
func signatures(t testing.TB, b []byte, from, to int) []comm.Signature {
	t.Helper()
	var list []comm.Signature
	for len(b) > 0 {
		s, err := comm.DecodeSignature(b)
		require.NoError(t, err, "rank %d to rank %d, after %v", from, to, list)
		list = append(list, s)
		n := comm.SignatureBytes + 1 + flat(t, s, from, to)
		require.LessOrEqual(t, n, len(b), "%v", s)
		b = b[n:]
	}
	return list
}

// flat is what one rank sends to another behind a signature: nothing, if the operation goes
// over the rails.
func flat(t testing.TB, s comm.Signature, from, to int) int {
	t.Helper()
	block := s.Count * s.DType.Size()
	switch s.Op {
	case comm.Barrier, comm.AllReduce, comm.ReduceScatter, comm.AllGather, comm.Broadcast:
		return 0
	case comm.AllToAll:
		return block
	case comm.Gather:
		if to == s.Root {
			return block
		}
		return 0
	case comm.Scatter:
		if from == s.Root {
			return block
		}
		return 0
	}
	require.Fail(t, "no formula", "%v", s)
	return 0
}

// between is what one of two hosts of two ranks sends to the other over its rails.
func between(s comm.Signature, host int) int {
	bytes := s.Count * s.DType.Size()
	switch s.Op {
	case comm.AllReduce:
		return bytes
	case comm.ReduceScatter, comm.AllGather:
		return 2 * bytes // a block for each rank, or of each
	case comm.Broadcast:
		if s.Root/2 == host {
			return bytes
		}
	}
	return 0
}
