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
	m, err := comm.ParseMesh("tp=2, dp_shard=-1,pp=2")
	require.NoError(t, err)
	require.Equal(t, comm.Mesh{PP: 2, DPShard: -1, TP: 2}, m)
	m, err = m.Of(12)
	require.NoError(t, err)
	require.Equal(t, comm.Mesh{PP: 2, DPReplicate: 1, DPShard: 3, CP: 1, TP: 2}, m)
	require.Equal(t, "pp=2,dp_shard=3,tp=2", m.String())
	require.Equal(t, comm.PP|comm.DPShard|comm.TP, m.Axes())
	require.Equal(t, "pp×dp_shard×tp", m.Axes().String())
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, m.Peers(7, comm.PP|comm.DPShard|comm.TP))
	require.Equal(t, []int{7}, m.Peers(7, 0))
	require.Equal(t, []int{7}, m.Peers(7, comm.CP))
	require.Equal(t, []int{6, 7}, m.Peers(7, comm.TP))
	require.Equal(t, []int{7, 9, 11}, m.Peers(9, comm.DPShard|comm.DPReplicate))
	require.Equal(t, []int{1, 7}, m.Peers(7, comm.PP))
	require.Equal(t, []int{1, 3, 5, 7, 9, 11}, m.Peers(3, comm.PP|comm.DPShard))
	require.Equal(t, 3, m.Coord(7, comm.PP|comm.DPShard))
	require.Equal(t, 6, m.Size(comm.PP|comm.DPShard|comm.CP))
	for rank := range 12 {
		for _, along := range []comm.Axes{comm.PP, comm.DPShard, comm.TP, comm.PP | comm.TP} {
			require.Equal(t, rank, m.Peers(rank, along)[m.Coord(rank, along)], "rank %d along %v", rank, along)
		}
	}
}

func TestMeshDrawing(t *testing.T) {
	for want, m := range map[string]comm.Mesh{
		"dp_replicate=4 [0 1 2 3]":                                         {DPReplicate: 4},
		"dp_replicate=2,dp_shard=2 [[0 1] [2 3]]":                          {DPReplicate: 2, DPShard: 2},
		"pp=2,dp_shard=3,tp=2 [[[0 1] [2 3] [4 5]] [[6 7] [8 9] [10 11]]]": {PP: 2, DPShard: 3, TP: 2},
		"dp_shard=17": {DPShard: 17},
	} {
		m, err := m.Of(m.Size(^comm.Axes(0)))
		require.NoError(t, err)
		require.Equal(t, want, m.Drawing())
	}
}

func TestMeshThatDoesNotFit(t *testing.T) {
	for _, k := range []struct {
		world      int
		axes, want string
	}{
		{8, "dp_shard=3,tp=2", "comm: mesh dp_shard=3,tp=2 does not fit 8 ranks: want sizes whose product is 8"},
		{8, "dp_shard=-1,tp=3", "comm: mesh dp_shard=-1,tp=3 does not fit 8 ranks: want sizes whose product is 8"},
		{8, "dp_shard=-1,tp=-1", "comm: mesh dp_shard=-1,tp=-1: want sizes from 1 to 8 ranks, and −1 at most once"},
		{8, "dp_shard=-2", "comm: mesh dp_shard=-2: want sizes from 1 to 8 ranks, and −1 at most once"},
		{8, "dp_shard=8,tp=8", "comm: mesh dp_shard=8,tp=8 has more than the 8 ranks of the job"},
		{8, "tp=1", "comm: mesh dp_shard=1 does not fit 8 ranks: want sizes whose product is 8"},
	} {
		m, err := comm.ParseMesh(k.axes)
		require.NoError(t, err)
		_, err = m.Of(k.world)
		assert.EqualError(t, err, k.want)
	}
}

func TestMeshThatCannotBeRead(t *testing.T) {
	for _, bad := range []string{"", "tp", "tp=", "=2", "tp=two", "pp=2,,tp=1"} {
		_, err := comm.ParseMesh(bad)
		assert.ErrorContains(t, err, "want axes as dp_shard=2,tp=4", bad)
	}
	for _, unknown := range []string{"dp", "ep", "dp_foo", "TP"} {
		_, err := comm.ParseMesh("pp=2," + unknown + "=2")
		assert.EqualError(t, err, fmt.Sprintf(`comm: mesh "pp=2,%s=2": unknown axis %q: want axes among pp, `+
			`dp_replicate, dp_shard, cp, tp`, unknown, unknown))
	}
	_, err := comm.ParseMesh("tp=2,tp=2")
	assert.EqualError(t, err, `comm: mesh "tp=2,tp=2": axis "tp" is given twice: want each once`)
}

// All groups of a mesh are made in one collective call.
func TestMeshGroups(t *testing.T) {
	m, err := comm.Mesh{DPShard: 2, TP: 2}.Of(4)
	require.NoError(t, err)
	sums := make([]string, 4)
	var all sync.WaitGroup
	for rank, g := range local.New(4, comm.Options{}) {
		all.Go(func() {
			defer func() { assert.NoError(t, g.Close()) }()
			subs, err := m.Groups(g, comm.DPShard, comm.TP)
			if !assert.NoError(t, err) {
				return
			}
			assert.Len(t, g.Flight().Entries, 1)
			for _, sub := range subs {
				v := []int64{int64(rank)}
				assert.NoError(t, sub.AllReduce(comm.Of(v), comm.Sum).Wait(t.Context()))
				sums[rank] += fmt.Sprintf("%s %d of %d: %d. ", sub.Name(), sub.Rank(), sub.Size(), v[0])
				assert.NoError(t, sub.Close())
			}
		})
	}
	all.Wait()
	require.Equal(t, []string{
		"world/dp_shard 0 of 2: 2. world/tp 0 of 2: 1. ",
		"world/dp_shard 0 of 2: 4. world/tp 1 of 2: 1. ",
		"world/dp_shard 1 of 2: 2. world/tp 0 of 2: 5. ",
		"world/dp_shard 1 of 2: 4. world/tp 1 of 2: 5. ",
	}, sums)
}
