// SPDX-License-Identifier: Apache-2.0

package fake_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/dist"
	"github.com/lockstep-ml/lockstep/dist/fake"
)

func TestCounts(t *testing.T) {
	g, e := fake.New(3, 8, dist.Options{})
	defer func() { require.NoError(t, g.Close()) }()
	require.Equal(t, dist.Info{Name: "fake", Path: "counts only: rank 3 of 8"}, g.Describe())
	data := dist.Of(make([]float32, 80))
	block, big := dist.Of(make([]float32, 10)), dist.Of(make([]float32, 80))
	require.NoError(t, dist.WaitAll(t.Context(),
		g.AllReduce(data, dist.Sum), g.AllReduce(data, dist.Sum), g.ReduceScatter(block, big, dist.Sum),
		g.AllGather(big, block),
		g.Broadcast(data, 3), g.Broadcast(data, 0), g.Reduce(data, dist.Max, 0), g.Gather(big, block, 0), g.Barrier(),
		g.Send(data, 4), g.Recv(data, 4)))
	sub, err := g.Sub("pair", []int{3, 5})
	require.NoError(t, err)
	require.NoError(t, sub.AllReduce(data, dist.Sum).Wait(t.Context()))
	require.NoError(t, sub.Close())
	other, err := g.Sub("others", []int{1, 2})
	require.NoError(t, err)
	require.Nil(t, other)
	got, all := map[dist.Op]int64{}, int64(0)
	for op, total := range e.Totals() {
		got[op] = total.Bytes
		all += total.Bytes
	}
	require.Equal(t, all, g.Sent(), "the group counts too, with its sub-groups")
	require.Equal(t, map[dist.Op]int64{
		dist.AllReduce: 2*(2*7*320/8) + 320, dist.ReduceScatter: 7 * 40, dist.AllGather: 7 * 40,
		dist.Broadcast: 7 * 320, dist.Reduce: 320,
		dist.Gather: 40, dist.Barrier: 0, dist.Send: 320, dist.Recv: 0,
	}, got)
	require.Equal(t, 3, e.Totals()[dist.AllReduce].Calls)
}

// Ranks that compare what they have go on under Mirror: all seem to have the same.
func TestMirror(t *testing.T) {
	g, e := fake.New(1, 3, dist.Options{})
	defer func() { require.NoError(t, g.Close()) }()
	e.Mirror = true
	all, err := dist.AllGatherObject(t.Context(), g, "mine")
	require.NoError(t, err)
	require.Equal(t, []string{"mine", "mine", "mine"}, all)
	require.Equal(t, 2, e.Totals()[dist.AllGather].Calls)
}
