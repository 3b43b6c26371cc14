// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

// flipper is a relay that, when it is armed, flips one bit of what passes.
type flipper struct {
	armed   atomic.Bool
	address string
}

// newFlipper relays connections to an address until the test ends.
func newFlipper(t *testing.T, to string) *flipper {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := &flipper{address: l.Addr().String()}
	var running sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	running.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				_ = a.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, a, b)
			mu.Unlock()
			for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
				running.Go(func() { f.carry(way[0], way[1]) })
			}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range conns { // a test that failed has not closed its group
			_ = c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return f
}

func (f *flipper) carry(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	for b := make([]byte, 64<<10); ; {
		n, err := from.Read(b)
		if n > 8<<10 && f.armed.CompareAndSwap(true, false) { // gradients, no signature
			b[n/2] ^= 1 << 6 // more than rounding hides
		}
		if err != nil {
			return
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

// A relay between two hosts that does not know the token and flips one bit of a gradient fails the job on both. Without
// TLS nobody notices: that is what insecure-plaintext means.
func TestFlippedBitFailsTheConnection(t *testing.T) {
	t.Parallel()
	const count = 1 << 20
	for _, mode := range []rendezvous.TLSMode{rendezvous.TLSAlways, rendezvous.TLSNone} {
		t.Run(string(mode), func(t *testing.T) {
			jobs := commtest.Jobs(t, 2, func(c *rendezvous.Config) {
				c.HostID, c.TLS.Mode = []string{"host 0", "host 1"}[c.Rank], mode
			})
			f := newFlipper(t, jobs[0].Peers[0].Address)
			jobs[1].Peers[0].Address = f.address
			groups, opened := make([]*comm.Group, 2), make(chan error)
			for r, j := range jobs {
				go func() {
					var err error
					groups[r], err = New(j, comm.Options{Timeout: 30 * time.Second})
					_ = j.Close()
					opened <- err
				}()
			}
			for range jobs {
				require.NoError(t, <-opened)
			}
			sum := func() (errs [2]error, data [2][]float32) {
				var handles [2]*comm.Handle
				for r, g := range groups {
					data[r] = make([]float32, count)
					for i := range data[r] {
						data[r][i] = float32(i)
					}
					handles[r] = g.AllReduce(comm.Of(data[r]), comm.Sum)
				}
				for r, h := range handles {
					errs[r] = h.Wait(t.Context())
				}
				return errs, data
			}
			errs, data := sum()
			require.Equal(t, [2]error{}, errs)
			require.Equal(t, data[0], data[1])
			f.armed.Store(true)
			errs, data = sum()
			require.False(t, f.armed.Load(), "a bit was flipped")
			if mode == rendezvous.TLSNone {
				require.Equal(t, [2]error{}, errs)
				want := make([]float32, count)
				for i := range want {
					want[i] = 2 * float32(i)
				}
				require.False(t, slices.Equal(want, data[0]) && slices.Equal(want, data[1]))
			} else {
				for r, err := range errs {
					require.ErrorContains(t, err, "bad record MAC", "rank %d", r)
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
