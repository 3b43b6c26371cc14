package tcp

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/dist"
	"github.com/lockstep-ml/lockstep/dist/disttest"
	"github.com/lockstep-ml/lockstep/dist/rendezvous"
)

// start makes ranks that live in the test's process but share nothing except connections.
func start(t *testing.T, n int, opts dist.Options) []*dist.Group { return startOn(t, n, n, opts) }

// startOn is start with so many ranks on each make-believe host.
func startOn(t *testing.T, n, perHost int, opts dist.Options) []*dist.Group {
	groups, errs, done := make([]*dist.Group, n), make([]error, n), make(chan struct{})
	for r, job := range disttest.Jobs(t, n, func(c *rendezvous.Config) { c.HostID = fmt.Sprint("host ", c.Rank/perHost) }) {
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
