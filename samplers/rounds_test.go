// SPDX-License-Identifier: Apache-2.0

package samplers_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/samplers"
)

// sharding is a row of testdata/sharding.json, which sharding.py recorded.
type sharding struct {
	Ranks        int
	BatchSize    int `json:"batch_size"`
	Samples      int64
	SplitBatches bool `json:"split_batches"`
	EvenBatches  bool `json:"even_batches"`
	DropLast     bool `json:"drop_last"`
	Iterable     bool
	Skip         int64   // batches of each rank that are left out in front
	Batches      []lists // of each rank
}

func shardings(t *testing.T, iterable bool) (rows []sharding) {
	text, err := os.ReadFile("testdata/sharding.json")
	require.NoError(t, err)
	var all []sharding
	require.NoError(t, json.Unmarshal(text, &all))
	for _, r := range all {
		if r.Iterable == iterable {
			rows = append(rows, r)
		}
	}
	require.NotEmpty(t, rows)
	return rows
}

func (r sharding) stream(t *testing.T, rank, steps int) *samplers.Stream {
	s, err := samplers.NewShardedStream(samplers.NewSequential(r.Samples), samplers.WindowLayout{
		BatchSize: r.BatchSize, DropLast: r.DropLast, AccumulationSteps: steps, WorldSize: r.Ranks, Rank: rank,
	}, samplers.BatchSamplerShardOptions{SplitBatches: r.SplitBatches, EvenBatches: r.EvenBatches})
	require.NoError(t, err)
	return s
}

// epoch returns the windows of the epoch that s is in.
func epoch(t *testing.T, s *samplers.Stream) (out []samplers.Window) {
	for {
		w, ok := s.Next()
		require.True(t, ok)
		if out = append(out, w); w.LastOfEpoch {
			return out
		}
	}
}

// A sharded stream gives each rank the batches that accelerate gives it, and as many windows as HuggingFace's Trainer
// has steps, from the epoch's beginning and after a resume.
func TestShardedStreamIsAccelerates(t *testing.T) {
	for _, r := range shardings(t, false) {
		for _, steps := range []int{1, 2, 3} {
			var windows [][]samplers.Window
			for rank := range r.Ranks {
				s := r.stream(t, rank, steps)
				if s.MicroBatches() == 0 {
					_, ok := s.Next()
					require.False(t, ok)
					require.Empty(t, r.Batches[rank])
					continue
				}
				if r.Skip > 0 && (steps > 1 || len(r.Batches[0]) == 0) {
					continue // no window begins there
				}
				require.NoError(t, s.SeekStep(r.Skip))
				windows = append(windows, epoch(t, s))
				got := lists{}
				for i, w := range windows[rank] {
					require.EqualValues(t, int64(i)+r.Skip, w.Number)
					for k, m := range w.Own {
						require.Equal(t, rank*steps+k, m.Number)
						require.NotEmpty(t, m.Indices)
						got = append(got, m.Indices)
					}
				}
				require.Equal(t, r.Batches[rank], got, "rank %d of %+v", rank, r)
				longest := len(r.Batches[0])
				require.Len(t, windows[rank], (longest+steps-1)/steps)
				w, ok := s.Next()
				require.True(t, ok)
				require.EqualValues(t, 1, w.Epoch)
				require.Equal(t, s.Samples(), w.Position)
			}
			requireShared(t, windows)
		}
	}
}

// requireShared checks that the ranks agree about each window, and what they say of all ranks.
func requireShared(t *testing.T, ranks [][]samplers.Window) {
	if len(ranks) == 0 {
		return
	}
	for i, first := range ranks[0] {
		var samples int64
		for _, windows := range ranks {
			w := windows[i]
			for _, m := range w.Own {
				samples += int64(len(m.Indices))
			}
			w.Own = first.Own
			require.Equal(t, first, w)
		}
		require.Equal(t, samples, first.Samples)
	}
}

// A place of a sharded stream is saved and restored after every window, in later epochs too; on another number of ranks
// the same samples follow.
func TestShardedStreamResumes(t *testing.T) {
	for _, r := range shardings(t, false) {
		if r.Skip > 0 || r.Samples < 21 {
			continue
		}
		for rank := range r.Ranks {
			whole := r.stream(t, rank, 2)
			if whole.MicroBatches() == 0 {
				continue
			}
			var windows []samplers.Window
			var places []samplers.Place
			for range 12 {
				places = append(places, whole.Place())
				w, _ := whole.Next()
				windows = append(windows, w)
			}
			for i, place := range places {
				again := r.stream(t, rank, 2)
				require.NoError(t, again.Restore(place))
				require.Equal(t, place, again.Place())
				for _, want := range windows[i:] {
					w, ok := again.Next()
					require.True(t, ok)
					require.Equal(t, want, w)
				}
			}
		}
	}

	// 37 samples in batches of 4: after one window of two rounds on 4 ranks, 8 batches are done, and 2 ranks share out
	// what remains.
	r := sharding{Ranks: 4, BatchSize: 4, Samples: 37, EvenBatches: true}
	s := r.stream(t, 3, 2)
	s.Next()
	r.Ranks = 2
	other := r.stream(t, 1, 4)
	require.NoError(t, other.Restore(s.Place()))
	w, _ := other.Next()
	require.Equal(t, lists{{32, 33, 34, 35}, {36, 0, 1, 2}},
		[][]int64{mustOwn(t, r, 0, s.Place())[0], w.Own[0].Indices})
	require.ErrorContains(t, other.SeekSample(6),
		"position 6 lies 6 samples into its epoch, where no batch of 4 begins")
}

func mustOwn(t *testing.T, r sharding, rank int, place samplers.Place) (out [][]int64) {
	s := r.stream(t, rank, 4)
	require.NoError(t, s.Restore(place))
	w, _ := s.Next()
	for _, m := range w.Own {
		out = append(out, m.Indices)
	}
	return out
}

func TestEpochAfter(t *testing.T) {
	for _, c := range []struct {
		r    sharding
		want []float64
	}{
		{sharding{Ranks: 1, BatchSize: 4, Samples: 21}, []float64{2. / 6, 4. / 6, 1, 1 + 2./6}},
		{sharding{Ranks: 2, BatchSize: 4, Samples: 37, EvenBatches: true}, []float64{4. / 10, 8. / 10, 1, 1.4}},
		{sharding{Ranks: 2, BatchSize: 4, Samples: 37}, []float64{4. / 10, 8. / 10, 1, 1.4}},
		{sharding{Ranks: 2, BatchSize: 4, Samples: 37, DropLast: true}, []float64{4. / 8, 1, 1.5}},
		{sharding{Ranks: 2, BatchSize: 8, Samples: 37, SplitBatches: true, EvenBatches: true},
			[]float64{4. / 10, 8. / 10, 1, 1.4}},
	} {
		s := c.r.stream(t, 0, 2)
		for _, want := range c.want {
			w, _ := s.Next()
			require.Equal(t, want, s.EpochAfter(w), "%+v", c.r)
		}
	}
}

func TestShardedStreamFaults(t *testing.T) {
	layout := samplers.WindowLayout{BatchSize: 6, AccumulationSteps: 1, WorldSize: 4, Rank: 0}
	_, err := samplers.NewShardedStream(samplers.NewSequential(9), layout,
		samplers.BatchSamplerShardOptions{SplitBatches: true})
	require.ErrorContains(t, err, "split_batches with a batch size of 6: want a multiple of the world size 4")
	layout.Rank = 4
	_, err = samplers.NewShardedStream(samplers.NewSequential(9), layout, samplers.BatchSamplerShardOptions{})
	require.ErrorContains(t, err, "rank is 4")
}
