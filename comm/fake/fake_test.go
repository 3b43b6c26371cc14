// SPDX-License-Identifier: Apache-2.0

package fake_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/fake"
)

func TestCounts(t *testing.T) {
	g, e := fake.New(3, 8, comm.Options{})
	defer func() { require.NoError(t, g.Close()) }()
	require.Equal(t, comm.Info{Name: "fake", Path: "counts only: rank 3 of 8"}, g.Describe())
	data := comm.Of(make([]float32, 80))
	block, big := comm.Of(make([]float32, 10)), comm.Of(make([]float32, 80))
	require.NoError(t, comm.WaitAll(t.Context(),
		g.AllReduce(data, comm.Sum), g.AllReduce(data, comm.Sum), g.ReduceScatter(block, big, comm.Sum),
		g.AllGather(big, block),
		g.Broadcast(data, 3), g.Broadcast(data, 0), g.Reduce(data, comm.Max, 0), g.Gather(big, block, 0), g.Barrier(),
		g.Send(data, 4), g.Recv(data, 4)))
	sub, err := g.Sub("pair", []int{3, 5})
	require.NoError(t, err)
	require.NoError(t, sub.AllReduce(data, comm.Sum).Wait(t.Context()))
	require.NoError(t, sub.Close())
	other, err := g.Sub("others", []int{1, 2})
	require.NoError(t, err)
	require.Nil(t, other)
	got, all := map[comm.Op]int64{}, int64(0)
	for op, total := range e.Totals() {
		got[op] = total.Bytes
		all += total.Bytes
	}
	require.Equal(t, all, g.Sent(), "the group counts too, with its sub-groups")
	require.Equal(t, map[comm.Op]int64{
		comm.AllReduce: 2*(2*7*320/8) + 320, comm.ReduceScatter: 7 * 40, comm.AllGather: 7 * 40,
		comm.Broadcast: 7 * 320, comm.Reduce: 320,
		comm.Gather: 40, comm.Barrier: 0, comm.Send: 320, comm.Recv: 0,
	}, got)
	require.Equal(t, 3, e.Totals()[comm.AllReduce].Calls)
}

// Ranks that compare what they have go on under Mirror: all seem to have the same.
func TestMirror(t *testing.T) {
	g, e := fake.New(1, 3, comm.Options{})
	defer func() { require.NoError(t, g.Close()) }()
	e.Mirror = true
	all, err := comm.AllGatherObject(t.Context(), g, "mine")
	require.NoError(t, err)
	require.Equal(t, []string{"mine", "mine", "mine"}, all)
	require.Equal(t, 2, e.Totals()[comm.AllGather].Calls)
}

// One process plays a rank of a whole mesh.
func TestMesh(t *testing.T) {
	g, e := fake.New(5, 8, comm.Options{})
	defer func() { require.NoError(t, g.Close()) }()
	mesh, err := comm.Mesh{PP: 2, DPShard: 2, TP: 2}.Of(8)
	require.NoError(t, err)
	subs, err := mesh.Groups(g, comm.DPShard, comm.PP|comm.TP)
	require.NoError(t, err)
	require.Equal(t, 1, e.Totals()[comm.Barrier].Calls)
	for i, want := range [][]int{{5, 7}, {0, 1, 4, 5}} {
		require.Equal(t, len(want), subs[i].Size())
		require.Equal(t, slices.Index(want, subs[i].JobRank(subs[i].Rank())), subs[i].Rank())
		require.NoError(t, subs[i].Close())
	}
}
