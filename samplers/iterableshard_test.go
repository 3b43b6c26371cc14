// SPDX-License-Identifier: Apache-2.0

package samplers_test

import (
	"encoding/json"
	"errors"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/samplers"
)

func iterableShard(t require.TestingT, batchSize, rank, world int,
	o samplers.IterableShardOptions) *samplers.IterableShard {
	s, err := samplers.NewIterableShard(batchSize, samplers.Shard{Rank: rank, WorldSize: world}, o)
	require.NoError(t, err)
	return s
}

func items(n int64) iter.Seq2[int64, error] {
	return func(yield func(int64, error) bool) {
		for i := range n {
			if !yield(i, nil) {
				return
			}
		}
	}
}

func collect(t require.TestingT, s *samplers.IterableShard, n, skip int64) []int64 {
	out := []int64{}
	for item, err := range samplers.ShardItems(s, items(n), skip) {
		require.NoError(t, err)
		out = append(out, item)
	}
	return out
}

func TestIterableShardTables(t *testing.T) {
	for _, c := range []struct {
		n    int64
		size int
		o    samplers.IterableShardOptions
		want lists
	}{
		{12, 2, samplers.IterableShardOptions{}, lists{{0, 1, 4, 5, 8, 9}, {2, 3, 6, 7, 10, 11}}},
		{8, 4, samplers.IterableShardOptions{}, lists{{0, 1, 2, 3}, {4, 5, 6, 7}}},
		{8, 4, samplers.IterableShardOptions{SplitBatches: true}, lists{{0, 1, 4, 5}, {2, 3, 6, 7}}},
		{9, 2, samplers.IterableShardOptions{}, lists{{0, 1, 4, 5, 8, 0}, {2, 3, 6, 7, 1, 2}}},
		{9, 2, samplers.IterableShardOptions{DropLast: true}, lists{{0, 1, 4, 5}, {2, 3, 6, 7}}},
		{2, 4, samplers.IterableShardOptions{}, lists{{0, 1, 0, 1}, {0, 1, 0, 1}}},
		{2, 4, samplers.IterableShardOptions{DropLast: true}, lists{{}, {}}},
		{0, 4, samplers.IterableShardOptions{}, lists{{}, {}}},
	} {
		for rank, want := range c.want {
			require.Equal(t, want, collect(t, iterableShard(t, c.size, rank, 2, c.o), c.n, 0), "%+v", c)
		}
	}
}

// The stream, the closed form and the sampler for orders of known length agree.
func TestIterableShardClosedForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, size := rapid.Int64Range(0, 50).Draw(t, "n"), rapid.IntRange(1, 5).Draw(t, "size")
		world := rapid.IntRange(1, 5).Draw(t, "world")
		rank := rapid.IntRange(0, world-1).Draw(t, "rank")
		o := samplers.IterableShardOptions{DropLast: rapid.Bool().Draw(t, "drop")}
		if o.SplitBatches = rapid.Bool().Draw(t, "split"); o.SplitBatches {
			size *= world
		}
		s := iterableShard(t, size, rank, world, o)
		got := collect(t, s, n, 0)
		require.EqualValues(t, s.Len(n), len(got))
		for i, item := range got {
			require.Equal(t, s.Index(int64(i))%n, item)
		}
	})
}

func TestIterableShardResumes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, size := rapid.Int64Range(0, 50).Draw(t, "n"), rapid.IntRange(1, 5).Draw(t, "size")
		world := rapid.IntRange(1, 5).Draw(t, "world")
		s := iterableShard(t, size, world-1, world, samplers.IterableShardOptions{})
		all := collect(t, s, n, 0)
		own := rapid.IntRange(0, len(all)).Draw(t, "own")
		text, err := json.Marshal(s.StateAt(2, int64(own)))
		require.NoError(t, err)
		var st samplers.IterableState
		require.NoError(t, json.Unmarshal(text, &st))
		require.EqualValues(t, 2, st.Epoch)
		require.Equal(t, all[own/size*size:], collect(t, s, n, st.Items))

		// On another number of ranks: nothing of the rest is lost.
		other := rapid.IntRange(1, 5).Draw(t, "other")
		seen := map[int64]bool{}
		for rank := range other {
			for _, item := range collect(t, iterableShard(t, size, rank, other, samplers.IterableShardOptions{}), n,
				st.Items) {
				seen[item] = true
			}
		}
		for i := st.Items; i < n; i++ {
			require.True(t, seen[i])
		}
	})
}

func TestShardItemsErrorsAndEarlyEnd(t *testing.T) {
	torn := errors.New("torn")
	stream := func(yield func(int64, error) bool) {
		for i := range int64(5) {
			if !yield(i, nil) {
				return
			}
		}
		yield(0, torn)
	}
	s := iterableShard(t, 1, 0, 2, samplers.IterableShardOptions{})
	var got []int64
	var err error
	for item, e := range samplers.ShardItems(s, stream, 0) {
		if err = e; e == nil {
			got = append(got, item)
		}
	}
	require.Equal(t, []int64{0, 2}, got)
	require.ErrorIs(t, err, torn)
	for item := range samplers.ShardItems(s, stream, 0) {
		require.Zero(t, item)
		break
	}
}

func TestIterableShardMisuse(t *testing.T) {
	two := samplers.Shard{Rank: 0, WorldSize: 2}
	_, err := samplers.NewIterableShard(0, two, samplers.IterableShardOptions{})
	require.EqualError(t, err, "samplers: batch size is 0, want at least 1")
	_, err = samplers.NewIterableShard(3, two, samplers.IterableShardOptions{SplitBatches: true})
	require.EqualError(t, err, "samplers: split_batches with a batch size of 3, want a multiple of the world size 2")
	for shard, want := range map[samplers.Shard]string{
		{Rank: 0, WorldSize: 0}:  "samplers: world size is 0, want at least 1",
		{Rank: 2, WorldSize: 2}:  "samplers: rank is 2, want 0 to 1",
		{Rank: -1, WorldSize: 2}: "samplers: rank is -1, want 0 to 1",
	} {
		_, err = samplers.NewIterableShard(1, shard, samplers.IterableShardOptions{})
		require.EqualError(t, err, want)
	}
}
