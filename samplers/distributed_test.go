// SPDX-License-Identifier: Apache-2.0

package samplers_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/samplers"
)

func distributed(t require.TestingT, order samplers.Sampler, rank, world int, drop bool) *samplers.Distributed {
	d, err := samplers.NewDistributed(order, samplers.Shard{Rank: rank, WorldSize: world}, drop)
	require.NoError(t, err)
	return d
}

// torch's rules, worked out by hand.
func TestDistributedTables(t *testing.T) {
	for _, c := range []struct {
		n, world int
		drop     bool
		want     lists // by rank
	}{
		{6, 2, false, lists{{0, 2, 4}, {1, 3, 5}}},
		{6, 2, true, lists{{0, 2, 4}, {1, 3, 5}}},
		{7, 2, false, lists{{0, 2, 4, 6}, {1, 3, 5, 0}}},
		{7, 2, true, lists{{0, 2, 4}, {1, 3, 5}}},
		{10, 3, false, lists{{0, 3, 6, 9}, {1, 4, 7, 0}, {2, 5, 8, 1}}},
		{10, 3, true, lists{{0, 3, 6}, {1, 4, 7}, {2, 5, 8}}},
		{2, 5, false, lists{{0}, {1}, {0}, {1}, {0}}}, // the head, repeated
		{2, 5, true, lists{{}, {}, {}, {}, {}}},
		{0, 2, false, lists{{}, {}}},
	} {
		for rank, want := range c.want {
			d := distributed(t, samplers.NewSequential(int64(c.n)), rank, c.world, c.drop)
			require.Equal(t, want, epochOf(d, 3), "%+v", c)
			require.EqualValues(t, len(want)*c.world, d.Total())
		}
	}
}

func TestDistributedCoversTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, world := rapid.Int64Range(1, 50).Draw(t, "n"), rapid.IntRange(1, 9).Draw(t, "world")
		drop, epoch := rapid.Bool().Draw(t, "drop"), rapid.Int64Range(0, 5).Draw(t, "epoch")
		order := samplers.NewRandom(n, 3)
		row := make([]int64, distributed(t, order, 0, world, drop).Total())
		for rank := range world {
			for i, index := range epochOf(distributed(t, order, rank, world, drop), epoch) {
				row[i*world+rank] = index
			}
		}
		require.Zero(t, len(row)%world)
		whole := epochOf(order, epoch)
		if drop {
			require.Equal(t, whole[:int(n)/world*world], row)
			return
		}
		require.Less(t, len(row)-int(n), world)
		require.Equal(t, repeat(whole, len(row)), row)
	})
}

func TestDistributedSkipFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, world := rapid.Int64Range(0, 50).Draw(t, "n"), rapid.IntRange(1, 9).Draw(t, "world")
		d := distributed(t, samplers.NewRandom(n, 3), rapid.IntRange(0, world-1).Draw(t, "rank"), world,
			rapid.Bool().Draw(t, "drop"))
		own := rapid.Int64Range(0, n/int64(world)).Draw(t, "own")
		rest, err := d.SkipFirst(own * int64(world))
		require.NoError(t, err)
		require.Equal(t, epochOf(d, 2)[own:], epochOf(rest, 2))
	})
}

func TestDistributedResumesOnOtherRanks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, 50).Draw(t, "n")
		before, after := rapid.IntRange(1, 6).Draw(t, "before"), rapid.IntRange(1, 6).Draw(t, "after")
		order := samplers.NewRandom(n, 3)
		d := distributed(t, order, 0, before, false)
		own := rapid.Int64Range(0, d.Len()).Draw(t, "own")
		text, err := json.Marshal(d.StateAt(6, own))
		require.NoError(t, err)
		var st samplers.State
		require.NoError(t, json.Unmarshal(text, &st))
		done := min(own*int64(before), n)
		want := epochOf(order, 6)[done:]
		var row []int64
		for rank := range after {
			epoch, rest, err := distributed(t, order, rank, after, false).Resume(st)
			require.NoError(t, err)
			if done == n {
				require.EqualValues(t, 7, epoch)
				require.Equal(t, distributed(t, order, rank, after, false).Len(), rest.Len())
				continue
			}
			require.EqualValues(t, 6, epoch)
			row = append(row, epochOf(rest, epoch)...)
		}
		for _, index := range want {
			if done < n {
				require.Contains(t, row, index)
			}
		}
	})
}

func TestDistributedMisuse(t *testing.T) {
	order := samplers.NewRandom(5, 8)
	for shard, want := range map[samplers.Shard]string{
		{Rank: 0, WorldSize: 0}:  "samplers: world size is 0, want at least 1",
		{Rank: 2, WorldSize: 2}:  "samplers: rank is 2, want 0 to 1",
		{Rank: -1, WorldSize: 2}: "samplers: rank is -1, want 0 to 1",
	} {
		_, err := samplers.NewDistributed(order, shard, false)
		require.EqualError(t, err, want)
	}
	d := distributed(t, order, 1, 2, true)
	require.EqualValues(t, 8, d.Seed())
	require.Zero(t, d.Fingerprint())
	require.Panics(t, func() { d.At(0, 2) })
	require.Panics(t, func() { d.StateAt(0, 3) })
	_, err := d.SkipFirst(6)
	require.EqualError(t, err, "samplers: 6 samples to skip, want 0 to 5")
	_, _, err = d.Resume(samplers.State{Seed: 8, Samples: 6})
	require.EqualError(t, err, "samplers: the state was saved with 6 samples per epoch, there are 5")
}

func TestReplicaShard(t *testing.T) {
	for rank, want := range []int{0, 0, 1, 1, 2, 2} {
		s, err := samplers.ReplicaShard(rank, 6, 2)
		require.NoError(t, err)
		require.Equal(t, samplers.Shard{Rank: want, WorldSize: 3}, s)
	}
	_, err := samplers.ReplicaShard(0, 6, 4)
	require.EqualError(t, err, "samplers: 4 ranks per model replica, want a divisor of the world size 6")
	_, err = samplers.ReplicaShard(6, 6, 2)
	require.EqualError(t, err, "samplers: rank is 6, want 0 to 5")
}
