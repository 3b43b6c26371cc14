// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
)

// The launcher is told which rank of the job failed, whatever its number in the group that noticed.
func TestBlamedRanksAreThoseOfTheJob(t *testing.T) {
	err := local.Run(4, comm.Options{}, func(g *comm.Group) error {
		a, err := New(args.Default("out"), WithGroup(g), WithMesh(comm.Mesh{DPReplicate: 2, DPShard: 2}))
		if err != nil {
			return err
		}
		if err := a.Open(t.Context()); err != nil {
			return err
		}
		defer a.Close()
		if g.Rank() == 3 {
			a.ShardRanks().Group().Abort(errors.New("out of disk"))
		}
		for err == nil { // the group of all ends with the sub-group
			err = g.Barrier().Wait(t.Context())
		}
		require.Equal(t, []int{3}, blamed(err), "rank %d: %v", g.Rank(), err)
		return nil
	})
	require.NoError(t, err)
}

// A rank that could not read its data is blamed by the others, and blames no other.
func TestTheRankWithoutDataIsBlamed(t *testing.T) {
	gone := errors.New("tokens.bin: input/output error")
	err := local.Run(2, comm.Options{}, func(g *comm.Group) error {
		a, err := New(args.Default("out"), WithGroup(g))
		if err != nil {
			return err
		}
		var own error
		if g.Rank() == 1 {
			own = gone
		}
		err = a.ShareDataError(t.Context(), own)
		require.EqualError(t, err, "rank 1: tokens.bin: input/output error")
		if g.Rank() == 1 {
			require.ErrorIs(t, err, gone)
			require.Empty(t, blamed(err))
		} else {
			require.Equal(t, []int{1}, blamed(err))
		}
		return nil
	})
	require.NoError(t, err)
}
