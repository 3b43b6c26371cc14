// SPDX-License-Identifier: Apache-2.0

//go:build unix

package tcp

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// counted is a connection that counts what is written.
type counted struct {
	net.Conn
	n *atomic.Int64
}

// Write implements io.Writer.
func (c counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// countTo makes a writer count.
func countTo(w *writer, n *atomic.Int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conn = counted{w.conn, n}
}

// enginesOn makes the engines of a group on so many hosts.
func enginesOn(t *testing.T, hosts, perHost int) []*engine {
	n := hosts * perHost
	members := make([]int, n)
	for r := range members {
		members[r] = r
	}
	return commtest.Open(t, n, onHosts(perHost), func(job *rendezvous.Job) (*engine, error) {
		return newEngine(job, connections(job), "world", members)
	})
}

// hierarchy makes groups on so many hosts, and counts what each host sends to others.
func hierarchy(t *testing.T, hosts, perHost int) (groups []*comm.Group, sent []atomic.Int64) {
	sent = make([]atomic.Int64, hosts)
	for r, e := range enginesOn(t, hosts, perHost) {
		require.NotNil(t, e.hierarchy)
		for to, p := range e.peers {
			if p != nil && to/perHost != r/perHost {
				countTo(p.out, &sent[r/perHost])
			}
		}
		for _, p := range e.hierarchy.rail.peers {
			if p != nil {
				countTo(p.out, &sent[r/perHost])
			}
		}
		groups = append(groups, comm.New(e, comm.Options{}))
	}
	return groups, sent
}

// What hosts send to each other, to the byte: the table of docs/from-one-core-to-many.md.
func TestBytesBetweenHosts(t *testing.T) {
	t.Parallel()
	for _, shape := range [][2]int{{2, 2}, {3, 2}, {4, 2}, {2, 4}} {
		m, r := shape[0], shape[1]
		if testing.Short() && m != 3 && r != 4 { // the race detector's run: three hosts, and four ranks on one
			continue
		}
		t.Run(fmt.Sprintf("%d hosts of %d ranks", m, r), func(t *testing.T) {
			groups, sent := hierarchy(t, m, r)
			const count = 300_007
			root := m*r - 1
			block := func(g *comm.Group, b []float32) comm.Buffer { return comm.Of(b[g.Rank()*count:][:count]) }
			bytes := count * 4
			// half of it as float32 there, half of it back as it is
			once := map[string]int{"all-reduce": bytes, "half precision": count * 3}
			others := func(per int) []int { // the same from each host
				list := make([]int, m)
				for h := range list {
					list[h] = per
				}
				return list
			}
			for name, c := range map[string]struct {
				call func(g *comm.Group) *comm.Handle
				want []int // by host; nil: in total
			}{
				"all-reduce": {func(g *comm.Group) *comm.Handle {
					return g.AllReduce(comm.Of(make([]float32, count)), comm.Sum)
				}, nil},
				"half precision": {func(g *comm.Group) *comm.Handle {
					return g.AllReduce(comm.Bytes(make([]byte, 2*count), dtype.BFloat16), comm.Sum)
				}, nil},
				"broadcast": {func(g *comm.Group) *comm.Handle {
					return g.Broadcast(comm.Of(make([]float32, count)), root)
				},
					append(make([]int, m-1), (m-1)*bytes)},
				"reduce-scatter": {func(g *comm.Group) *comm.Handle {
					return g.ReduceScatter(comm.Of(make([]float32, count)), comm.Of(make([]float32, m*r*count)),
						comm.Sum)
				}, others((m - 1) * r * bytes)},
				"all-gather": {func(g *comm.Group) *comm.Handle {
					out := make([]float32, m*r*count)
					return g.AllGather(comm.Of(out), block(g, out))
				}, others((m - 1) * r * bytes)},
				"all-to-all": {func(g *comm.Group) *comm.Handle {
					return g.AllToAll(comm.Of(make([]float32, m*r*count)), comm.Of(make([]float32, m*r*count)))
				}, others((m - 1) * r * r * bytes)},
				"barrier": {func(g *comm.Group) *comm.Handle { return g.Barrier() }, others(0)},
			} {
				var handles []*comm.Handle
				for h := range sent {
					sent[h].Store(0)
				}
				for _, g := range groups {
					handles = append(handles, c.call(g))
				}
				require.NoError(t, comm.WaitAll(context.Background(), handles...))
				total, signatures := 0, (m-1)*r*r*headBytes
				for h := range sent {
					n := int(sent[h].Load()) - signatures
					total += n
					if c.want != nil {
						require.Equal(t, c.want[h], n, "%s, host %d", name, h)
					} else if m == 2 {
						slack := map[string]float64{"half precision": 1000} // shares differ by some elements
						require.InDelta(t, once[name], n, slack[name], "%s, host %d", name, h)
					}
				}
				if c.want == nil {
					require.Equal(t, 2*(m-1)*once[name], total, name)
				}
			}
			closed := make(chan error)
			for _, g := range groups {
				go func() { closed <- g.Close() }()
			}
			for range groups {
				require.NoError(t, <-closed)
			}
		})
	}
}

// Under FastOrder large buffers go around a ring: each rank writes to the next alone, 2(n−1)/n of an all-reduce's
// buffer and (n−1)/n of a reduce-scatter's. Signatures, which go to all, are left out.
func TestFastOrderWritesToNeighboursOnly(t *testing.T) {
	t.Parallel()
	const n, count = 5, 1_500_000
	sent := make([][n]atomic.Int64, n)
	var groups []*comm.Group
	for r, e := range enginesOn(t, n, 1) {
		groups = append(groups, comm.New(e, comm.Options{FastOrder: true}))
		for to, p := range e.peers {
			if p != nil {
				countTo(p.out, &sent[r][to])
			}
		}
	}
	for name, k := range map[string]struct {
		call func(g *comm.Group) *comm.Handle
		want int
	}{
		"all-reduce": {func(g *comm.Group) *comm.Handle {
			return g.AllReduce(comm.Of(make([]float32, count)), comm.Sum)
		}, 2 * (n - 1) * count / n * 4},
		"reduce-scatter": {func(g *comm.Group) *comm.Handle {
			return g.ReduceScatter(comm.Of(make([]float32, count/n)), comm.Of(make([]float32, count)), comm.Sum)
		}, (n - 1) * count / n * 4},
	} {
		var handles []*comm.Handle
		for r, g := range groups {
			for to := range sent[r] {
				sent[r][to].Store(0)
			}
			handles = append(handles, k.call(g))
		}
		require.NoError(t, comm.WaitAll(t.Context(), handles...))
		for r := range groups {
			for to := range n {
				want := 0
				if to != r {
					want = headBytes
				}
				if to == (r+1)%n {
					want += k.want
				}
				require.EqualValues(t, want, sent[r][to].Load(), "%s: from rank %d to %d", name, r, to)
			}
		}
	}
	closed := make(chan error)
	for _, g := range groups {
		go func() { closed <- g.Close() }()
	}
	for range groups {
		require.NoError(t, <-closed)
	}
}
