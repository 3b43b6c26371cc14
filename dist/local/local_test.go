// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/dist"
	"github.com/lockstep-ml/lockstep/dist/disttest"
	"github.com/lockstep-ml/lockstep/dist/local"
)

func TestConformance(t *testing.T) {
	disttest.Run(t, disttest.Engine{
		Name: "local", Path: "memory of one process",
		Start:     func(_ *testing.T, n int, opts dist.Options) []*dist.Group { return local.New(n, opts) },
		Leftovers: disttest.Leftovers,
	})
}

func sum(g *dist.Group) error {
	return g.AllReduce(dist.Of([]float32{1}), dist.Sum).Wait(context.Background())
}

func TestRunReportsTheRootCause(t *testing.T) {
	cause := errors.New("no such file")
	err := local.Run(4, dist.Options{}, func(g *dist.Group) error {
		if g.Rank() == 2 {
			return cause
		}
		return sum(g)
	})
	require.ErrorIs(t, err, cause)
	require.EqualError(t, err, "rank 2: no such file")
	require.NoError(t, local.Run(4, dist.Options{}, sum))
}

func TestRunReportsARankThatReturnsEarly(t *testing.T) {
	err := local.Run(3, dist.Options{}, func(g *dist.Group) error {
		if g.Rank() == 1 {
			return nil
		}
		return sum(g)
	})
	var lost *dist.RankLostError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, 1, lost.Rank)
}

func TestRunRaisesAPanicWhenAllRanksHaveEnded(t *testing.T) {
	seen := make([]error, 3)
	require.PanicsWithValue(t, "boom", func() {
		_ = local.Run(3, dist.Options{}, func(g *dist.Group) error {
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
