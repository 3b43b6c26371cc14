// SPDX-License-Identifier: Apache-2.0

package samplers_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/samplers"
)

func iterableShard(t require.TestingT, batchSize, rank, world int,
	o samplers.IterableDatasetShardOptions) *samplers.IterableDatasetShard {
	s, err := samplers.NewIterableDatasetShard(batchSize, samplers.Shard{Rank: rank, WorldSize: world}, o)
	require.NoError(t, err)
	return s
}

func collect(s *samplers.IterableDatasetShard, n int64) []int64 {
	out := []int64{}
	for i := range s.Len(n) {
		out = append(out, s.Index(i)%n)
	}
	return out
}

func TestIterableShardTables(t *testing.T) {
	for _, c := range []struct {
		n    int64
		size int
		o    samplers.IterableDatasetShardOptions
		want lists
	}{
		{12, 2, samplers.IterableDatasetShardOptions{}, lists{{0, 1, 4, 5, 8, 9}, {2, 3, 6, 7, 10, 11}}},
		{8, 4, samplers.IterableDatasetShardOptions{}, lists{{0, 1, 2, 3}, {4, 5, 6, 7}}},
		{8, 4, samplers.IterableDatasetShardOptions{SplitBatches: true}, lists{{0, 1, 4, 5}, {2, 3, 6, 7}}},
		{9, 2, samplers.IterableDatasetShardOptions{}, lists{{0, 1, 4, 5, 8, 0}, {2, 3, 6, 7, 1, 2}}},
		{9, 2, samplers.IterableDatasetShardOptions{DropLast: true}, lists{{0, 1, 4, 5}, {2, 3, 6, 7}}},
		{2, 4, samplers.IterableDatasetShardOptions{}, lists{{0, 1, 0, 1}, {0, 1, 0, 1}}},
		{2, 4, samplers.IterableDatasetShardOptions{DropLast: true}, lists{{}, {}}},
		{0, 4, samplers.IterableDatasetShardOptions{}, lists{{}, {}}},
	} {
		for rank, want := range c.want {
			require.Equal(t, want, collect(iterableShard(t, c.size, rank, 2, c.o), c.n), "%+v", c)
		}
	}
}

func TestIterableShardMisuse(t *testing.T) {
	two := samplers.Shard{Rank: 0, WorldSize: 2}
	_, err := samplers.NewIterableDatasetShard(0, two, samplers.IterableDatasetShardOptions{})
	require.EqualError(t, err, "samplers: batch size is 0: want at least 1")
	_, err = samplers.NewIterableDatasetShard(3, two, samplers.IterableDatasetShardOptions{SplitBatches: true})
	require.EqualError(t, err, "samplers: split_batches with a batch size of 3: want a multiple of the world size 2")
	for shard, want := range map[samplers.Shard]string{
		{Rank: 0, WorldSize: 0}:  "samplers: world size is 0: want at least 1",
		{Rank: 2, WorldSize: 2}:  "samplers: rank is 2: want 0 to 1",
		{Rank: -1, WorldSize: 2}: "samplers: rank is -1: want 0 to 1",
	} {
		_, err = samplers.NewIterableDatasetShard(1, shard, samplers.IterableDatasetShardOptions{})
		require.EqualError(t, err, want)
	}
}
