// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/dist"
	"github.com/lockstep-ml/lockstep/dist/disttest"
	"github.com/lockstep-ml/lockstep/dist/rendezvous"
)

// start makes ranks that live in the test's process but share nothing except connections.
func start(t *testing.T, n int, opts dist.Options) []*dist.Group { return startOn(t, n, n, opts) }

// startOn is start with so many ranks on each make-believe host.
func startOn(t *testing.T, n, perHost int, opts dist.Options) []*dist.Group {
	return startWith(t, n, opts, func(c *rendezvous.Config) { c.HostID = fmt.Sprint("host ", c.Rank/perHost) })
}

// startWith is start with changed configurations.
func startWith(t *testing.T, n int, opts dist.Options, change func(*rendezvous.Config)) []*dist.Group {
	groups, errs, done := make([]*dist.Group, n), make([]error, n), make(chan struct{})
	for r, job := range disttest.Jobs(t, n, change) {
		go func() {
			defer func() { done <- struct{}{} }()
			groups[r], errs[r] = New(job, opts)
			_ = job.Close()
		}()
	}
	for range n {
		<-done
	}
	for r, err := range errs {
		require.NoError(t, err, "rank %d", r)
	}
	return groups
}

func TestConformance(t *testing.T) {
	disttest.Run(t, disttest.Engine{Name: "tcp", Path: "flat", Start: start, Leftovers: disttest.Leftovers})
}

// The suite over encrypted connections.
func TestConformanceOverTLS(t *testing.T) {
	disttest.Run(t, disttest.Engine{
		Name: "tcp", Path: "flat", Ranks: []int{3}, Leftovers: disttest.Leftovers,
		Start: func(t *testing.T, n int, opts dist.Options) []*dist.Group {
			return startWith(t, n, opts, func(c *rendezvous.Config) {
				c.HostID, c.TLS.Mode = fmt.Sprint("host ", c.Rank), rendezvous.TLSAlways
			})
		},
	})
}

// A message may lie in the connection for longer than a host may be silent: its receiver has other things to do, and
// its kernel answers.
func TestMessageWaitsForItsReceiver(t *testing.T) {
	t.Parallel()
	const silence = time.Second
	groups := startWith(t, 2, dist.Options{}, func(c *rendezvous.Config) {
		c.HostID, c.Silence = fmt.Sprint("host ", c.Rank), silence
	})
	sent, got := make([]int64, 4<<20), make([]int64, 4<<20) // more than connections hold
	for i := range sent {
		sent[i] = int64(i)
	}
	h := groups[0].Send(dist.Of(sent), 1)
	time.Sleep(2 * silence)
	require.NoError(t, dist.WaitAll(t.Context(), groups[1].Recv(dist.Of(got), 0), h))
	require.Equal(t, sent, got)
	for _, g := range groups {
		require.NoError(t, g.Close())
	}
}
