// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/local"
)

func TestConformance(t *testing.T) {
	commtest.Run(t, commtest.Engine{
		Name: "local", Path: "memory of one process",
		Start:     func(_ *testing.T, n int, opts comm.Options) []*comm.Group { return local.New(n, opts) },
		Leftovers: commtest.Leftovers,
	})
}

func sum(g *comm.Group) error {
	return g.AllReduce(comm.Of([]float32{1}), comm.Sum).Wait(context.Background())
}

func TestRunReportsTheRootCause(t *testing.T) {
	cause := errors.New("no such file")
	err := local.Run(4, comm.Options{}, func(g *comm.Group) error {
		if g.Rank() == 2 {
			return cause
		}
		return sum(g)
	})
	require.ErrorIs(t, err, cause)
	require.EqualError(t, err, "rank 2: no such file")
	require.NoError(t, local.Run(4, comm.Options{}, sum))
}

func TestRunReportsARankThatReturnsEarly(t *testing.T) {
	err := local.Run(3, comm.Options{}, func(g *comm.Group) error {
		if g.Rank() == 1 {
			return nil
		}
		return sum(g)
	})
	var lost *comm.RankLostError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, 1, lost.Rank)
}

func TestRunRaisesAPanicWhenAllRanksHaveEnded(t *testing.T) {
	seen := make([]error, 3)
	require.PanicsWithValue(t, "boom", func() {
		_ = local.Run(3, comm.Options{}, func(g *comm.Group) error {
			if g.Rank() == 0 {
				panic("boom")
			}
			seen[g.Rank()] = sum(g)
			return nil
		})
	})
	for _, err := range seen[1:] {
		require.ErrorContains(t, err, "rank 0 aborted: panic: boom")
	}
}
