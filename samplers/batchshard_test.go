// SPDX-License-Identifier: Apache-2.0

package samplers_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/samplers"
)

type lists = [][]int64

// runs gives consecutive batches of size samples that begin at each of the given samples.
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

func shardOf(t require.TestingT, b samplers.Batches, rank, world int,
	o samplers.BatchShardOptions) *samplers.BatchShard {
	s, err := samplers.NewBatchShard(b, samplers.Shard{Rank: rank, WorldSize: world}, o)
	require.NoError(t, err)
	return s
}

func batchesOf(s *samplers.BatchShard, epoch int64) lists {
	out := lists{}
	for e := s.Epoch(epoch); ; {
		m, ok := e.Next()
		if !ok {
			return out
		}
		out = append(out, m.Indices)
	}
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
		o      samplers.BatchShardOptions
		tables []table
	}{
		{3, samplers.BatchShardOptions{EvenBatches: true}, []table{
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
		{3, samplers.BatchShardOptions{}, []table{
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
		{4, samplers.BatchShardOptions{SplitBatches: true, EvenBatches: true}, []table{
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
		{4, samplers.BatchShardOptions{SplitBatches: true}, []table{
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

// The tables of accelerate's BatchSamplerShard for batches of varying size.
func TestBatchShardVaryingSizes(t *testing.T) {
	mixed := lists{{0, 1, 2}, {3, 4}, {5, 6, 7, 8}, {9, 10, 11}, {12, 13}}
	seven := lists{{0}, {1, 2}, {3, 4, 5}, {6}, {7, 8}, {9, 10, 11}, {12, 13}}
	for name, c := range map[string]struct {
		list       lists
		even, drop bool
		want       []lists
	}{
		"uneven":       {mixed, false, false, []lists{{{0, 1, 2}, {5, 6, 7, 8}, {12, 13}}, {{3, 4}, {9, 10, 11}}}},
		"whole rounds": {mixed[:4], true, false, []lists{{{0, 1, 2}, {5, 6, 7, 8}}, {{3, 4}, {9, 10, 11}}}},
		"even": {mixed, true, false,
			[]lists{{{0, 1, 2}, {5, 6, 7, 8}, {12, 13}}, {{3, 4}, {9, 10, 11}, {0, 1, 2}}}},
		"one on two":   {mixed[:1], true, false, []lists{{{0, 1, 2}}, {{0, 1, 2}}}},
		"one on three": {mixed[:1], true, false, []lists{{{0, 1, 2}}, {{0, 1, 2}}, {{0, 1, 2}}}},
		"drop":         {mixed, true, true, []lists{{{0, 1, 2}, {5, 6, 7, 8}}, {{3, 4}, {9, 10, 11}}}},
		"six on three": {seven[:6], true, false, []lists{{{0}, {6}}, {{1, 2}, {7, 8}}, {{3, 4, 5}, {9, 10, 11}}}},
		"seven on three": {seven, true, false,
			[]lists{{{0}, {6}, {12, 13}}, {{1, 2}, {7, 8}, {0}}, {{3, 4, 5}, {9, 10, 11}, {1, 2}}}},
		"seven, uneven": {seven, false, false,
			[]lists{{{0}, {6}, {12, 13}}, {{1, 2}, {7, 8}}, {{3, 4, 5}, {9, 10, 11}}}},
		"two on five":     {seven[:2], true, false, []lists{{{0}}, {{1, 2}}, {{0}}, {{1, 2}}, {{0}}}},
		"nothing on two":  {nil, true, false, []lists{{}, {}}},
		"nothing, uneven": {nil, false, false, []lists{{}, {}}},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := samplers.NewBatchList(c.list, c.drop)
			require.NoError(t, err)
			for rank, want := range c.want {
				require.Equal(t, want,
					batchesOf(shardOf(t, list, rank, len(c.want), samplers.BatchShardOptions{EvenBatches: c.even}), 0))
			}
		})
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
		o := samplers.BatchShardOptions{EvenBatches: rapid.Bool().Draw(t, "even")}
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
				s := shardOf(t, b, rank, world, samplers.BatchShardOptions{SplitBatches: true, EvenBatches: even})
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
			s := shardOf(t, b, rank, world, samplers.BatchShardOptions{EvenBatches: true})
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
			s := shardOf(t, b, rank, world, samplers.BatchShardOptions{EvenBatches: rapid.Bool().Draw(t, "even")})
			all := batchesOf(s, 5)
			for own := int64(0); own*int64(world) <= b.Len(); own++ {
				rest, err := s.SkipFirst(own * int64(world))
				require.NoError(t, err)
				require.Equal(t, all[own:], batchesOf(rest, 5))
			}
		}
	})
}

// A place saved by some ranks is resumed by others: what is left is seen once, but for the completion of the last
// round.
func TestBatchShardResumesOnOtherRanks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		split := rapid.Bool().Draw(t, "split")
		before, after := rapid.SampledFrom([]int{1, 2, 3, 6}).Draw(t, "before"),
			rapid.SampledFrom([]int{1, 2, 3, 6}).Draw(t, "after")
		n := rapid.Int64Range(1, 60).Draw(t, "n")
		b, err := samplers.NewBatch(samplers.NewRandom(n, 9), 6, false)
		require.NoError(t, err)
		o := samplers.BatchShardOptions{SplitBatches: split, EvenBatches: rapid.Bool().Draw(t, "even")}
		first := shardOf(t, b, 0, before, o)
		own := rapid.Int64Range(0, first.Len()).Draw(t, "own")
		st := first.StateAt(4, own)
		for rank := range before {
			require.Equal(t, st, shardOf(t, b, rank, before, o).StateAt(4, own))
		}
		text, err := json.Marshal(st)
		require.NoError(t, err)
		var saved samplers.State
		require.NoError(t, json.Unmarshal(text, &saved))

		seen := map[int64]bool{}
		done := int(min(own*int64(map[bool]int{true: 6, false: 6 * before}[split]), n))
		for p := range done {
			seen[b.At(4, int64(p/6))[p%6]] = true
		}
		for rank := range after {
			epoch, rest, err := shardOf(t, b, rank, after, o).Resume(saved)
			require.NoError(t, err)
			if epoch == 5 {
				require.EqualValues(t, n, done)
				continue
			}
			require.EqualValues(t, 4, epoch)
			for j := range rest.Len() {
				m := rest.MicroBatch(epoch, j)
				for k, index := range m.Indices {
					if m.Position+int64(k) < 5*n {
						require.False(t, seen[index])
						seen[index] = true
					}
				}
			}
		}
		require.Len(t, seen, int(n))
	})
}

func TestBatchShardStateOfVaryingSizes(t *testing.T) {
	list, err := samplers.NewBatchList(lists{{0}, {1, 2}, {3, 4, 5}, {6}, {7, 8}}, false)
	require.NoError(t, err)
	s := shardOf(t, list, 1, 2, samplers.BatchShardOptions{})
	require.Equal(t, samplers.State{Epoch: 2, Position: 2*9 + 3, Samples: 9}, s.StateAt(2, 1))
	require.Equal(t, samplers.State{Epoch: 3, Position: 27, Samples: 9}, s.StateAt(2, 3))
	_, rest, err := s.Resume(s.StateAt(2, 1))
	require.NoError(t, err)
	require.Equal(t, lists{{6}}, batchesOf(rest, 2))
	_, _, err = s.Resume(samplers.State{Position: 2, Samples: 9})
	require.EqualError(t, err, "samplers: the state was saved 2 samples into its epoch, where no batch begins: batch "+
		"sizes differ")
}

// With drop-last the batches that no round of the ranks takes are done with when the last round is.
func TestBatchShardStateWithDropLast(t *testing.T) {
	b, err := samplers.NewBatch(samplers.NewSequential(22), 3, true)
	require.NoError(t, err)
	s := shardOf(t, b, 0, 2, samplers.BatchShardOptions{})
	require.Equal(t, samplers.State{Position: 12, Samples: 21}, s.StateAt(0, 2))
	require.Equal(t, samplers.State{Epoch: 1, Position: 21, Samples: 21}, s.StateAt(0, 3))
}

func TestBatchShardMisuse(t *testing.T) {
	b, err := samplers.NewBatch(samplers.NewRandom(20, 4), 3, false)
	require.NoError(t, err)
	list, err := samplers.NewBatchList(lists{{1}}, false)
	require.NoError(t, err)
	_, err = samplers.NewBatchList(lists{{1}, {}}, false)
	require.EqualError(t, err, "samplers: batch 1 of 2 is empty, want at least 1 sample")
	two := samplers.Shard{Rank: 1, WorldSize: 2}
	_, err = samplers.NewBatchShard(b, two, samplers.BatchShardOptions{SplitBatches: true})
	require.EqualError(t, err, "samplers: split_batches with a batch size of 3, want a multiple of the world size 2")
	_, err = samplers.NewBatchShard(list, two, samplers.BatchShardOptions{SplitBatches: true})
	require.ErrorContains(t, err, "batches of varying size")
	_, err = samplers.NewBatchShard(b, samplers.Shard{}, samplers.BatchShardOptions{})
	require.ErrorContains(t, err, "world size is 0")
	s := shardOf(t, b, 1, 2, samplers.BatchShardOptions{})
	require.EqualValues(t, 3, s.Len())
	require.Panics(t, func() { s.At(0, 3) })
	require.Panics(t, func() { s.At(-1, 0) })
	require.Panics(t, func() { s.StateAt(0, -1) })
	require.Panics(t, func() { b.First(8) })
	_, err = s.SkipFirst(8)
	require.EqualError(t, err, "samplers: 8 batches to skip, want 0 to 7")
	_, _, err = s.Resume(samplers.State{Seed: 5, Samples: 20})
	require.EqualError(t, err, "samplers: the state was saved under seed 5, the sampler has seed 4")
}
