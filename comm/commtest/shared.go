// SPDX-License-Identifier: Apache-2.0

package commtest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
)

// shared checks memory that ranks have together, or that an engine which has none says so.
func (e Engine) shared(t *testing.T) {
	const ranks, each64 = 3, 4099 // values of a rank
	groups := e.start(t, ranks, comm.Options{})
	errs := make([]error, ranks)
	each(groups, func(g *comm.Group) error {
		m, err := g.AllocShared(8 * ranks * each64)
		if !g.SharesMemory() {
			require.ErrorContains(t, err, "want at least 0, and an engine for the ranks of one host, local or shm")
			return nil
		}
		if err != nil {
			return err
		}
		require.EqualValues(t, 8*each64, g.Allocated(), "a rank's part of the memory is counted")
		all := comm.View[int64](m)
		for i := range each64 {
			all[g.Rank()*each64+i] = int64(100*g.Rank() + i + 1)
		}
		if err := g.Barrier().Wait(t.Context()); err != nil {
			return err
		}
		for r := range ranks {
			for i := range each64 {
				if want := int64(100*r + i + 1); all[r*each64+i] != want {
					require.Equal(t, want, all[r*each64+i], "value %d of rank %d, seen by rank %d", i, r, g.Rank())
				}
			}
		}
		if err := g.Close(); err != nil {
			return err
		}
		require.EqualValues(t, 1, all[0], "the memory stays until it is freed, though the group is closed")
		err = m.Free()
		require.Zero(t, g.Allocated())
		return err
	}, func(r int, err error) { errs[r] = err })
	require.Equal(t, make([]error, ranks), errs)
}
