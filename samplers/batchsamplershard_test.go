// SPDX-License-Identifier: Apache-2.0

package samplers_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/samplers"
)

type lists = [][]int64

// runs returns consecutive batches of size samples that begin at each of the given samples.
func runs(size int64, begins ...int64) lists {
	out := lists{}
	for _, b := range begins {
		batch := make([]int64, size)
		for i := range batch {
			batch[i] = b + int64(i)
		}
		out = append(out, batch)
	}
	return out
}

func shardOf(t require.TestingT, b *samplers.Batch, rank, world int,
	o samplers.BatchSamplerShardOptions) *samplers.BatchSamplerShard {
	s, err := samplers.NewBatchSamplerShard(b, samplers.Shard{Rank: rank, WorldSize: world}, o)
	require.NoError(t, err)
	return s
}

func batchesOf(s *samplers.BatchSamplerShard, epoch int64) lists {
	out := lists{}
	for j := range s.Len() {
		out = append(out, s.At(epoch, j))
	}
	return out
}

// The tables of accelerate's BatchSamplerShard for two ranks.
func TestBatchShardTables(t *testing.T) {
	type table struct {
		n      int64
		drop   bool
		p0, p1 lists
	}
	three := func(drop bool) table {
		return table{drop: drop, p0: runs(3, 0, 6, 12), p1: runs(3, 3, 9, 15)}
	}
	with := func(base table, n int64, p0, p1 []int64) table {
		base.n = n
		if p0 != nil {
			base.p0 = append(slices.Clip(base.p0), p0)
		}
		if p1 != nil {
			base.p1 = append(slices.Clip(base.p1), p1)
		}
		return base
	}
	five := table{p0: runs(2, 0, 4, 8, 12, 16), p1: runs(2, 2, 6, 10, 14, 18)}
	fiveDrop := table{drop: true, p0: five.p0, p1: five.p1}
	none := lists{}
	for _, c := range []struct {
		size   int
		o      samplers.BatchSamplerShardOptions
		tables []table
	}{
		{3, samplers.BatchSamplerShardOptions{EvenBatches: true}, []table{
			with(three(false), 24, []int64{18, 19, 20}, []int64{21, 22, 23}),
			with(three(true), 24, []int64{18, 19, 20}, []int64{21, 22, 23}),
			with(three(false), 21, []int64{18, 19, 20}, []int64{0, 1, 2}),
			with(three(true), 21, nil, nil),
			with(three(false), 22, []int64{18, 19, 20}, []int64{21, 0, 1}),
			with(three(true), 22, nil, nil),
			with(three(false), 20, []int64{18, 19, 0}, []int64{1, 2, 3}),
			with(three(true), 20, nil, nil),
			{2, false, lists{{0, 1, 0}}, lists{{1, 0, 1}}},
			{2, true, none, none},
			{0, false, none, none},
		}},
		{3, samplers.BatchSamplerShardOptions{}, []table{
			with(three(false), 24, []int64{18, 19, 20}, []int64{21, 22, 23}),
			with(three(true), 24, []int64{18, 19, 20}, []int64{21, 22, 23}),
			with(three(false), 21, []int64{18, 19, 20}, nil),
			with(three(true), 21, nil, nil),
			with(three(false), 22, []int64{18, 19, 20}, []int64{21}),
			with(three(true), 22, nil, nil),
			with(three(false), 20, []int64{18, 19}, nil),
			with(three(true), 20, nil, nil),
			{2, false, lists{{0, 1}}, none},
			{2, true, none, none},
		}},
		{4, samplers.BatchSamplerShardOptions{SplitBatches: true, EvenBatches: true}, []table{
			with(five, 24, []int64{20, 21}, []int64{22, 23}),
			with(fiveDrop, 24, []int64{20, 21}, []int64{22, 23}),
			with(five, 22, []int64{20, 21}, []int64{0, 1}),
			with(fiveDrop, 22, nil, nil),
			with(five, 21, []int64{20, 0}, []int64{1, 2}),
			with(fiveDrop, 21, nil, nil),
			{2, false, lists{{0, 1}}, lists{{0, 1}}},
			{2, true, none, none},
			{3, false, lists{{0, 1}}, lists{{2, 0}}},
		}},
		{4, samplers.BatchSamplerShardOptions{SplitBatches: true}, []table{
			with(five, 24, []int64{20, 21}, []int64{22, 23}),
			with(fiveDrop, 24, []int64{20, 21}, []int64{22, 23}),
			with(five, 22, []int64{20, 21}, nil),
			with(fiveDrop, 22, nil, nil),
			with(five, 21, []int64{20}, nil),
			with(fiveDrop, 21, nil, nil),
			{2, false, lists{{0, 1}}, none},
			{2, true, none, none},
		}},
	} {
		for _, want := range c.tables {
			t.Run(fmt.Sprintf("split=%v/even=%v/n=%d/drop=%v", c.o.SplitBatches, c.o.EvenBatches, want.n, want.drop),
				func(t *testing.T) {
					b, err := samplers.NewBatch(samplers.NewSequential(want.n), c.size, want.drop)
					require.NoError(t, err)
					for rank, expected := range []lists{want.p0, want.p1} {
						s := shardOf(t, b, rank, 2, c.o)
						require.Equal(t, expected, batchesOf(s, 3))
						require.EqualValues(t, len(expected), s.Len())
					}
				})
		}
	}
}

func drawBatch(t *rapid.T, maxSize int) *samplers.Batch {
	n, size := rapid.Int64Range(0, 60).Draw(t, "n"), rapid.IntRange(1, maxSize).Draw(t, "size")
	b, err := samplers.NewBatch(samplers.NewRandom(n, 7), size, rapid.Bool().Draw(t, "drop"))
	require.NoError(t, err)
	return b
}

func repeat(head []int64, n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = head[i%len(head)]
	}
	return out
}

// The rule told the other way round: the epoch in one row, made as long as whole rounds, then cut.
func TestBatchShardIsTheRowCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.IntRange(1, 6).Draw(t, "world")
		b := drawBatch(t, 5)
		o := samplers.BatchSamplerShardOptions{EvenBatches: rapid.Bool().Draw(t, "even")}
		epoch := rapid.Int64Range(0, 3).Draw(t, "epoch")
		var row []int64
		for j := range b.Len() {
			row = append(row, b.At(epoch, j)...)
		}
		round := b.Size() * world
		if over := len(row) % round; over > 0 && b.DropLast() {
			row = row[:len(row)-over]
		} else if over > 0 && o.EvenBatches {
			row = append(row, repeat(row[:min(round, len(row)):min(round, len(row))], round-over)...)
		}
		want := make([]lists, world)
		for rank := range want {
			want[rank] = lists{}
		}
		for i := 0; len(row) > 0; i++ {
			k := min(b.Size(), len(row))
			want[i%world] = append(want[i%world], row[:k:k])
			row = row[k:]
		}
		for rank := range world {
			require.Equal(t, want[rank], batchesOf(shardOf(t, b, rank, world, o), epoch))
		}
	})
}

// The slices of all ranks are the batch, completed from the first.
func TestBatchShardSplitIsTheBatchCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.IntRange(1, 4).Draw(t, "world")
		n, each := rapid.Int64Range(0, 40).Draw(t, "n"), rapid.IntRange(1, 3).Draw(t, "each")
		b, err := samplers.NewBatch(samplers.NewRandom(n, 7), each*world, rapid.Bool().Draw(t, "drop"))
		require.NoError(t, err)
		even := rapid.Bool().Draw(t, "even")
		for j := range b.Len() {
			want := b.At(2, j)
			if even {
				want = append(want, repeat(b.At(2, 0), b.Size()-len(want))...)
			}
			var got []int64
			for rank := range world {
				s := shardOf(t, b, rank, world,
					samplers.BatchSamplerShardOptions{SplitBatches: true, EvenBatches: even})
				if j < s.Len() {
					require.LessOrEqual(t, len(s.At(2, j)), each)
					got = append(got, s.At(2, j)...)
				}
			}
			require.Equal(t, want, got)
		}
	})
}

func TestBatchShardPositions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.IntRange(1, 4).Draw(t, "world")
		b := drawBatch(t, 4)
		samples := b.Samples()
		seen := map[int64]bool{}
		for rank := range world {
			s := shardOf(t, b, rank, world, samplers.BatchSamplerShardOptions{EvenBatches: true})
			for j := range s.Len() {
				m := s.MicroBatch(3, j)
				for k, index := range m.Indices {
					p := m.Position + int64(k) - 3*samples
					require.False(t, seen[p])
					seen[p] = true
					if p < samples {
						require.Equal(t, b.At(3, p/int64(b.Size()))[p%int64(b.Size())], index)
					}
				}
			}
		}
		for p := range int64(len(seen)) {
			require.True(t, seen[p])
		}
	})
}

func TestBatchShardSkipFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.IntRange(1, 4).Draw(t, "world")
		b := drawBatch(t, 4)
		for rank := range world {
			s := shardOf(t, b, rank, world,
				samplers.BatchSamplerShardOptions{EvenBatches: rapid.Bool().Draw(t, "even")})
			all := batchesOf(s, 5)
			for own := int64(0); own*int64(world) <= b.Len(); own++ {
				rest, err := s.SkipFirst(own * int64(world))
				require.NoError(t, err)
				require.Equal(t, all[own:], batchesOf(rest, 5))
			}
		}
	})
}

func TestBatchShardMisuse(t *testing.T) {
	b, err := samplers.NewBatch(samplers.NewRandom(20, 4), 3, false)
	require.NoError(t, err)
	two := samplers.Shard{Rank: 1, WorldSize: 2}
	_, err = samplers.NewBatchSamplerShard(b, two, samplers.BatchSamplerShardOptions{SplitBatches: true})
	require.EqualError(t, err, "samplers: split_batches with a batch size of 3: want a multiple of the world size 2")
	_, err = samplers.NewBatchSamplerShard(b, samplers.Shard{}, samplers.BatchSamplerShardOptions{})
	require.ErrorContains(t, err, "world size is 0")
	s := shardOf(t, b, 1, 2, samplers.BatchSamplerShardOptions{})
	require.EqualValues(t, 3, s.Len())
	require.Panics(t, func() { s.At(0, 3) })
	require.Panics(t, func() { s.At(-1, 0) })
	require.Panics(t, func() { b.First(8) })
	_, err = s.SkipFirst(8)
	require.EqualError(t, err, "samplers: 8 batches to skip: want 0 to 7")
}
