// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

// start makes ranks that live in the test's process but share nothing except connections.
func start(t *testing.T, n int, opts comm.Options) []*comm.Group { return startOn(t, n, n, opts) }

// startOn is start with so many ranks on each make-believe host.
func startOn(t *testing.T, n, perHost int, opts comm.Options) []*comm.Group {
	return startWith(t, n, opts, onHosts(perHost))
}

// onHosts puts so many ranks on each make-believe host.
func onHosts(perHost int) func(*rendezvous.Config) {
	return func(c *rendezvous.Config) { c.HostID = fmt.Sprint("host ", c.Rank/perHost) }
}

// startWith is start with changed configurations.
func startWith(t *testing.T, n int, opts comm.Options, change func(*rendezvous.Config)) []*comm.Group {
	return startOver(t, n, opts, change, func(int, *Transport) {})
}

// startOver is startWith over a transport that is altered.
func startOver(t *testing.T, n int, opts comm.Options, change func(*rendezvous.Config),
	alter func(rank int, over *Transport)) []*comm.Group {
	return commtest.Open(t, n, change, func(job *rendezvous.Job) (*comm.Group, error) {
		over := connections(job)
		alter(job.Rank, &over)
		return NewOver(job, over, opts)
	})
}

func TestConformance(t *testing.T) {
	commtest.Run(t, commtest.Engine{Name: "tcp", Path: "flat", Start: start, Leftovers: commtest.Leftovers})
}

// The suite over encrypted connections.
func TestConformanceOverTLS(t *testing.T) {
	commtest.Run(t, commtest.Engine{
		Name: "tcp", Path: "flat", Ranks: []int{3}, Leftovers: commtest.Leftovers,
		Start: func(t *testing.T, n int, opts comm.Options) []*comm.Group {
			return startWith(t, n, opts, func(c *rendezvous.Config) {
				c.HostID, c.TLS.Mode = fmt.Sprint("host ", c.Rank), rendezvous.TLSAlways
			})
		},
	})
}

// atOnce is an Exchange over connections.
func atOnce(send, receive []Part) (int, error) {
	type end struct {
		rank int
		err  error
	}
	ends := make(chan end)
	for _, p := range send {
		go func() {
			_, err := p.Conn.Write(p.Bytes)
			ends <- end{p.Rank, err}
		}()
	}
	for _, p := range receive {
		go func() {
			_, err := io.ReadFull(p.Conn, p.Bytes)
			ends <- end{p.Rank, err}
		}()
	}
	var failed end
	for range len(send) + len(receive) {
		if e := <-ends; failed.err == nil && e.err != nil {
			failed = e
		}
	}
	return failed.rank, failed.err
}

// The suite over a transport that exchanges parts at once, as MPI's does, on hosts of one rank and of two.
func TestConformanceOfExchanges(t *testing.T) {
	for perHost, n := range map[int]int{1: 3, 2: 4} {
		if testing.Short() && perHost == 1 {
			continue
		}
		t.Run(fmt.Sprint(perHost, " per host"), func(t *testing.T) {
			commtest.Run(t, commtest.Engine{
				Name: "tcp", Ranks: []int{n}, Leftovers: commtest.Leftovers,
				Start: func(t *testing.T, n int, opts comm.Options) []*comm.Group {
					return startOver(t, n, opts, onHosts(perHost), func(_ int, over *Transport) {
						over.Exchange = atOnce
					})
				},
			})
		})
	}
}

// A rank may have its part of a transport's own all-reduce, and close the group, long before another rank has.
func TestARankThatIsDoneMayLeave(t *testing.T) {
	t.Parallel()
	for _, ends := range []bool{true, false} {
		groups := startOver(t, 2, comm.Options{FastOrder: true}, onHosts(1), func(rank int, over *Transport) {
			over.AllReduce = func(_ *comm.Call, why func() error) (bool, error) {
				begun := time.Now()
				for rank == 0 && (!ends || time.Since(begun) < patience/2) {
					if err := why(); err != nil {
						return true, err
					}
					time.Sleep(time.Millisecond)
				}
				return true, nil
			}
		})
		data := make([]float32, 8)
		h := groups[0].AllReduce(comm.Of(data), comm.Sum)
		require.NoError(t, groups[1].AllReduce(comm.Of(data), comm.Sum).Wait(t.Context()))
		require.NoError(t, groups[1].Close())
		err := h.Wait(t.Context())
		if ends {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "it left the job")
		}
		_ = groups[0].Close() // it may have failed
	}
}

// A message may lie in the connection for longer than a host may be silent: its receiver has other things to do, and
// its kernel answers.
func TestMessageWaitsForItsReceiver(t *testing.T) {
	t.Parallel()
	const silence = time.Second
	groups := startWith(t, 2, comm.Options{}, func(c *rendezvous.Config) {
		c.HostID, c.Silence = fmt.Sprint("host ", c.Rank), silence
	})
	sent, got := make([]int64, 4<<20), make([]int64, 4<<20) // more than connections hold
	for i := range sent {
		sent[i] = int64(i)
	}
	h := groups[0].Send(comm.Of(sent), 1)
	time.Sleep(2 * silence)
	require.NoError(t, comm.WaitAll(t.Context(), groups[1].Recv(comm.Of(got), 0), h))
	require.Equal(t, sent, got)
	for _, g := range groups {
		require.NoError(t, g.Close())
	}
}
