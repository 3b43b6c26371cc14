// SPDX-License-Identifier: Apache-2.0

package comm_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
)

func TestMeshArrangesRanks(t *testing.T) {
	axes, err := comm.ParseAxes("pp=2, dp=-1,tp=2")
	require.NoError(t, err)
	m, err := comm.NewMesh(12, axes...)
	require.NoError(t, err)
	require.Equal(t, "pp=2,dp=3,tp=2", m.String())
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, m.Peers(7, "pp", "dp", "tp"))
	require.Equal(t, []int{7}, m.Peers(7))
	require.Equal(t, []int{6, 7}, m.Peers(7, "tp"))
	require.Equal(t, []int{7, 9, 11}, m.Peers(9, "dp"))
	require.Equal(t, []int{1, 7}, m.Peers(7, "pp"))
	require.Equal(t, []int{1, 3, 5, 7, 9, 11}, m.Peers(3, "pp", "dp"))
	require.Equal(t, 3, m.Coord(7, "pp", "dp"))
	require.Equal(t, 6, m.Size("pp", "dp", "cp"))
	for rank := range 12 {
		for _, along := range [][]string{{"pp"}, {"dp"}, {"tp"}, {"pp", "tp"}} {
			require.Equal(t, rank, m.Peers(rank, along...)[m.Coord(rank, along...)], "rank %d along %v", rank, along)
		}
	}
}

func TestMeshThatDoesNotFit(t *testing.T) {
	for _, k := range []struct {
		world      int
		axes, want string
	}{
		{8, "dp=3,tp=2", "comm: mesh dp=3,tp=2 does not fit 8 ranks: want sizes whose product is 8"},
		{8, "dp=-1,tp=3", "comm: mesh dp=-1,tp=3 does not fit 8 ranks: want sizes whose product is 8"},
		{8, "dp=-1,tp=-1", "comm: mesh dp=-1,tp=-1: want sizes from 1 to 8 ranks, and −1 at most once"},
		{8, "dp=0", "comm: mesh dp=0: want sizes from 1 to 8 ranks, and −1 at most once"},
		{8, "dp=8,tp=8", "comm: mesh dp=8,tp=8 has more than the 8 ranks of the job"},
		{4, "dp=2,dp=2", `comm: mesh dp=2,dp=2: axis 1 is named "dp": want names, each once`},
	} {
		axes, err := comm.ParseAxes(k.axes)
		require.NoError(t, err)
		_, err = comm.NewMesh(k.world, axes...)
		assert.EqualError(t, err, k.want)
	}
	for _, bad := range []string{"", "dp", "dp=", "=2", "dp=two", "dp=2,,tp=1"} {
		_, err := comm.ParseAxes(bad)
		assert.ErrorContains(t, err, "want axes as dp=2,tp=4", bad)
	}
}

func TestMeshGroups(t *testing.T) {
	m, err := comm.NewMesh(4, comm.Axis{Name: "dp", Size: 2}, comm.Axis{Name: "tp", Size: 2})
	require.NoError(t, err)
	sums := make([]string, 4)
	var all sync.WaitGroup
	for rank, g := range local.New(4, comm.Options{}) {
		all.Go(func() {
			for _, axis := range []string{"dp", "tp"} {
				sub, err := m.Group(g, axis)
				if !assert.NoError(t, err) {
					return
				}
				v := []int64{int64(rank)}
				assert.NoError(t, sub.AllReduce(comm.Of(v), comm.Sum).Wait(t.Context()))
				sums[rank] += fmt.Sprintf("%s %d of %d: %d. ", sub.Name(), sub.Rank(), sub.Size(), v[0])
				assert.NoError(t, sub.Close())
			}
			assert.NoError(t, g.Close())
		})
	}
	all.Wait()
	require.Equal(t, []string{
		"world/dp 0 of 2: 2. world/tp 0 of 2: 1. ",
		"world/dp 0 of 2: 4. world/tp 1 of 2: 1. ",
		"world/dp 1 of 2: 2. world/tp 0 of 2: 5. ",
		"world/dp 1 of 2: 4. world/tp 1 of 2: 5. ",
	}, sums)
}
