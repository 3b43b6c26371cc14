// SPDX-License-Identifier: Apache-2.0

package samplers_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/samplers"
)

// scenario is a random dataset, layout and order.
type scenario struct {
	n      int64
	seed   uint64
	layout samplers.WindowLayout
}

func drawScenario(t *rapid.T) scenario {
	return scenario{
		n:    rapid.Int64Range(1, 60).Draw(t, "n"),
		seed: rapid.Uint64Range(0, 5).Draw(t, "seed"),
		layout: samplers.WindowLayout{
			BatchSize:         rapid.IntRange(1, 7).Draw(t, "b"),
			DropLast:          rapid.Bool().Draw(t, "drop last"),
			AccumulationSteps: rapid.IntRange(1, 4).Draw(t, "accumulation"),
			WorldSize:         rapid.IntRange(1, 5).Draw(t, "world"),
		},
	}
}

func (c scenario) stream(t require.TestingT, rank int) *samplers.Stream {
	layout := c.layout
	layout.Rank = rank
	s, err := samplers.NewStream(samplers.NewRandom(c.n, c.seed), layout)
	require.NoError(t, err)
	return s
}

// single is the same scenario on one rank that does all the work.
func (c scenario) single() scenario {
	c.layout.AccumulationSteps *= c.layout.WorldSize
	c.layout.WorldSize = 1
	return c
}

func next(t require.TestingT, s *samplers.Stream) samplers.Window {
	w, ok := s.Next()
	require.True(t, ok)
	return w
}

// merged returns the next window as all ranks together see it, after checking that each holds exactly its range of
// micro-batches.
func merged(t require.TestingT, c scenario, ranks []*samplers.Stream) samplers.Window {
	all := next(t, ranks[0])
	for rank, s := range ranks {
		w := all
		if rank > 0 {
			w = next(t, s)
		}
		for _, m := range w.Own {
			require.Equal(t, rank, m.Number/c.layout.AccumulationSteps)
		}
		if rank > 0 {
			w.Own = append(all.Own, w.Own...)
			all.Own = w.Own
			require.Equal(t, w, all, "ranks differ in what is common")
		}
	}
	return all
}

func (c scenario) ranks(t require.TestingT) []*samplers.Stream {
	ranks := make([]*samplers.Stream, c.layout.WorldSize)
	for r := range ranks {
		ranks[r] = c.stream(t, r)
	}
	return ranks
}

func TestUnionOverRanksIsSingleRankStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawScenario(t)
		ranks, one := c.ranks(t), c.single().stream(t, 0)
		if one.MicroBatches() == 0 {
			return
		}
		for range 2*samplers.UpdatesPerEpoch(one.MicroBatches(), c.layout.MicroBatches()) + 1 {
			require.Equal(t, next(t, one), merged(t, c, ranks))
		}
	})
}

func TestEpochsAreComplete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawScenario(t).single()
		s := c.stream(t, 0)
		wantSamples := c.n
		if c.layout.DropLast {
			wantSamples -= c.n % int64(c.layout.BatchSize)
		}
		require.Equal(t, wantSamples, s.Samples())
		if wantSamples == 0 {
			_, ok := s.Next()
			require.False(t, ok)
			return
		}
		position := int64(0)
		for epoch := range int64(2) {
			seen := map[int64]int{}
			order := samplers.NewRandom(c.n, c.seed)
			updates := samplers.UpdatesPerEpoch(s.MicroBatches(), c.layout.MicroBatches())
			for number := range updates {
				w := next(t, s)
				require.Equal(t, []int64{epoch, number, position}, []int64{w.Epoch, w.Number, w.Position})
				require.Equal(t, number == updates-1, w.LastOfEpoch)
				require.Len(t, w.Own, w.MicroBatches)
				if !w.LastOfEpoch {
					require.EqualValues(t, c.layout.MicroBatches(), w.MicroBatches)
				}
				begin := position
				for microBatch, m := range w.Own {
					require.Equal(t, microBatch, m.Number)
					require.Equal(t, position, m.Position)
					for _, i := range m.Indices {
						require.Equal(t, order.At(epoch, position%wantSamples), i)
						seen[i]++
						position++
					}
					ragged := w.LastOfEpoch && microBatch == w.MicroBatches-1 && !c.layout.DropLast
					require.True(t, len(m.Indices) == c.layout.BatchSize || ragged && len(m.Indices) > 0)
				}
				require.Equal(t, position-begin, w.Samples)
			}
			require.Len(t, seen, int(wantSamples))
			for i, times := range seen {
				require.Equal(t, 1, times, "sample %d", i)
			}
		}
	})
}

func TestSeekStepEqualsDropping(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawScenario(t)
		rank := rapid.IntRange(0, c.layout.WorldSize-1).Draw(t, "rank")
		walked, sought, restored := c.stream(t, rank), c.stream(t, rank), c.stream(t, rank)
		if walked.MicroBatches() == 0 {
			return
		}
		steps := rapid.Int64Range(0, 40).Draw(t, "steps")
		for range steps {
			next(t, walked)
		}
		require.NoError(t, sought.SeekStep(steps))
		require.NoError(t, restored.Restore(walked.Place()))
		require.Equal(t, walked.Position(), sought.Position())
		require.Equal(t, walked.Place(), sought.Place())
		for range 5 {
			w := next(t, walked)
			require.Equal(t, w, next(t, sought))
			require.Equal(t, w, next(t, restored))
		}
	})
}

// flatten returns at least the first n indices of a single rank's stream, with their positions.
func flatten(t require.TestingT, s *samplers.Stream, n int) (indices, positions []int64) {
	for len(indices) < n {
		for _, m := range next(t, s).Own {
			for i, x := range m.Indices {
				indices, positions = append(indices, x), append(positions, m.Position+int64(i))
			}
		}
	}
	return indices[:n], positions[:n]
}

func TestSeekSampleEqualsDropping(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawScenario(t).single()
		c.layout.DropLast = false
		k := rapid.IntRange(0, 200).Draw(t, "k")
		all, allPositions := flatten(t, c.stream(t, 0), k+70)
		s := c.stream(t, 0)
		require.NoError(t, s.SeekSample(int64(k)))
		require.EqualValues(t, k, s.Position())
		require.Equal(t, int64(k)/c.n, s.Place().Epoch)
		indices, positions := flatten(t, s, 70)
		require.Equal(t, all[k:], indices)
		require.Equal(t, allPositions[k:], positions)
	})
}

func TestSeekMicroBatchEqualsDropping(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawScenario(t).single()
		s := c.stream(t, 0)
		if s.MicroBatches() == 0 {
			return
		}
		k := rapid.IntRange(0, 60).Draw(t, "k")
		walked := batches(t, c.stream(t, 0), k+20)
		require.NoError(t, s.SeekMicroBatch(int64(k)))
		require.Equal(t, walked[k:], batches(t, s, 20))
	})
}

// batches returns the first n micro-batches of a single rank's stream, without their micro-batch numbers.
func batches(t require.TestingT, s *samplers.Stream, n int) (out []samplers.MicroBatch) {
	for len(out) < n {
		for _, m := range next(t, s).Own {
			m.Number = 0
			out = append(out, m)
		}
	}
	return out[:n]
}

// After a seek off the grid and any number of windows, the place still restores to the same continuation.
func TestStateOffTheGrid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawScenario(t)
		a, b := c.stream(t, 0), c.stream(t, 0)
		if a.MicroBatches() == 0 {
			return
		}
		require.NoError(t, a.SeekSample(rapid.Int64Range(0, 150).Draw(t, "position")))
		for range rapid.IntRange(0, 4).Draw(t, "windows") {
			next(t, a)
		}
		require.NoError(t, b.Restore(a.Place()))
		for range 5 {
			x, y := next(t, a), next(t, b)
			x.Number, y.Number = 0, 0 // counted from the place sought
			require.Equal(t, x, y)
		}
	})
}

// A place is the same on every rank and for every world size with the same M.
func TestStateIsGlobal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawScenario(t)
		ranks, one := c.ranks(t), c.single().stream(t, 0)
		if one.MicroBatches() == 0 {
			return
		}
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			next(t, one)
			merged(t, c, ranks)
		}
		for _, s := range ranks {
			require.Equal(t, one.Place(), s.Place())
		}
		require.NoError(t, ranks[0].Restore(one.Place()))
	})
}

func TestStateJSON(t *testing.T) {
	s, err := samplers.NewStream(samplers.NewRandom(10, 1<<63+1),
		samplers.WindowLayout{BatchSize: 4, AccumulationSteps: 1, WorldSize: 1})
	require.NoError(t, err)
	require.NoError(t, s.SeekStep(4))
	text, err := json.Marshal(s.Place())
	require.NoError(t, err)
	require.JSONEq(t, `{"seed": 9223372036854775809, "epoch": 1, "position": 14, "num_samples": 10}`, string(text))
	var back samplers.Place
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, s.Place(), back)
}

func TestEmptyAndSingle(t *testing.T) {
	layout := samplers.WindowLayout{BatchSize: 4, AccumulationSteps: 2, WorldSize: 3, Rank: 1}
	empty, err := samplers.NewStream(samplers.NewSequential(0), layout)
	require.NoError(t, err)
	_, ok := empty.Next()
	require.False(t, ok)
	require.Zero(t, empty.Place())
	require.NoError(t, empty.SeekSample(9))
	require.NoError(t, empty.SeekMicroBatch(9))
	require.NoError(t, empty.Restore(samplers.Place{}))

	single, err := samplers.NewStream(samplers.NewSequential(1), layout)
	require.NoError(t, err)
	require.Equal(t, samplers.Window{MicroBatches: 1, Samples: 1, LastOfEpoch: true}, next(t, single),
		"the only micro-batch is rank 0's")
	require.Equal(t, samplers.Window{Epoch: 1, Position: 1, MicroBatches: 1, Samples: 1, LastOfEpoch: true},
		next(t, single))
}

// Seeking far into a huge run takes no memory and no time to speak of.
func TestSeekFar(t *testing.T) {
	const n = 1_000_000_000_007
	s, err := samplers.NewStream(samplers.NewRandom(n, 3),
		samplers.WindowLayout{BatchSize: 8, AccumulationSteps: 4, WorldSize: 2, Rank: 1})
	require.NoError(t, err)
	require.NoError(t, s.SeekSample(5*n+64*1000))
	w := next(t, s)
	require.EqualValues(t, 5, w.Epoch)
	require.EqualValues(t, 1000, w.Number)
	require.EqualValues(t, 5*n+64*1000+32, w.Own[0].Position)
	require.Equal(t, 4, w.Own[0].Number)
}

func TestErrors(t *testing.T) {
	_, err := samplers.NewStream(samplers.NewSequential(3),
		samplers.WindowLayout{BatchSize: 0, AccumulationSteps: -1, WorldSize: 2, Rank: 2})
	require.EqualError(t, err, "samplers: batch size is 0: want at least 1\nsamplers: accumulation steps is -1: want "+
		"at least 1\nsamplers: rank is 2: want 0 to 1")
	s, err := samplers.NewStream(samplers.NewRandom(10, 1),
		samplers.WindowLayout{BatchSize: 4, AccumulationSteps: 1, WorldSize: 1})
	require.NoError(t, err)
	for _, c := range []struct {
		err  error
		want string
	}{
		{s.SeekStep(-1), "samplers: step to seek is -1: want 0 or more"},
		{s.SeekMicroBatch(-2), "samplers: micro-batch to seek is -2: want 0 or more"},
		{s.SeekSample(-3), "samplers: position to seek is -3: want 0 or more"},
		{s.Restore(samplers.Place{Seed: 2, Samples: 10}),
			"samplers: the place was saved under seed 2, the sampler has seed 1"},
		{s.Restore(samplers.Place{Seed: 1, Samples: 11}),
			"samplers: the place was saved with 11 samples per epoch, there are 10"},
		{s.Restore(samplers.Place{Seed: 1, Samples: 10, Position: -1}),
			"samplers: the place's position is -1 with 10 samples per epoch"},
		{s.Restore(samplers.Place{Seed: 1, Samples: 10, Position: 25, Epoch: 1}),
			"samplers: the place's position 25 with 10 samples per epoch is not in epoch 1"},
	} {
		require.EqualError(t, c.err, c.want)
	}
}
