// SPDX-License-Identifier: Apache-2.0

package samplers_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"iter"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/samplers"
)

// recorded is testdata/distributed.json, which distributed.py wrote.
type recorded struct {
	Distributed []struct {
		Samples     int64
		Ranks       int
		Shuffle     bool
		DropLast    bool `json:"drop_last"`
		Seed        uint64
		RanksEpochs []lists `json:"ranks_epochs"`
	}
	Large []struct {
		Samples int64
		Seed    uint64
		Epoch   int64
		First   []int64
		SHA256  string
	}
	Loaders []struct {
		Samples   int64
		Ranks     int
		BatchSize int       `json:"batch_size"`
		DropLast  bool      `json:"drop_last"`
		Batches   [][]lists // by rank and epoch
	}
	Lengths []struct {
		BatchSize   int `json:"batch_size"`
		Lengths     []int
		Seed        uint64
		Epochs      lists
		Distributed []lists // by rank and epoch
	}
	Shards []struct {
		Samples   int64
		Ranks     int
		BatchSize int  `json:"batch_size"`
		DropLast  bool `json:"drop_last"`
		Shards    lists
	}
}

func golden(t *testing.T) (r recorded) {
	text, err := os.ReadFile("testdata/distributed.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &r))
	return r
}

func distributed(t *testing.T, n int64, o samplers.DistributedSamplerOptions) *samplers.DistributedSampler {
	s, err := samplers.NewDistributedSampler(n, o)
	require.NoError(t, err)
	return s
}

// all collects a sequence, empty but not nil.
func all(seq iter.Seq[int64]) []int64 { return slices.AppendSeq([]int64{}, seq) }

func TestDistributedSamplerIsTorchs(t *testing.T) {
	g := golden(t)
	require.Greater(t, len(g.Distributed), 100)
	for _, r := range g.Distributed {
		for rank, epochs := range r.RanksEpochs {
			s := distributed(t, r.Samples, samplers.DistributedSamplerOptions{NumReplicas: r.Ranks, Rank: rank,
				Shuffle: r.Shuffle, Seed: r.Seed, DropLast: r.DropLast})
			for _, epoch := range []int{0, len(epochs) - 1, len(epochs) / 2} { // in any order
				s.SetEpoch(int64(epoch))
				require.Equal(t, epochs[epoch], all(s.All()), "rank %d of %+v", rank, r)
			}
			require.EqualValues(t, len(epochs[0]), s.Len())
			require.EqualValues(t, len(epochs[0])*r.Ranks, s.TotalSize())
		}
	}
	for _, r := range g.Large {
		s := distributed(t, r.Samples, samplers.DistributedSamplerOptions{NumReplicas: 1, Shuffle: true, Seed: r.Seed})
		h := sha256.New()
		for i := range s.Len() {
			index := s.At(r.Epoch, i)
			if int(i) < len(r.First) {
				require.Equal(t, r.First[i], index)
			}
			h.Write(binary.LittleEndian.AppendUint64(nil, uint64(index)))
		}
		require.Equal(t, r.SHA256, hex.EncodeToString(h.Sum(nil)), "%+v", r)
	}
}

// The batches of a stream under torch's rule are those of a program with DistributedSampler and DataLoader, by the
// steps of an accumulation, from the beginning and from any round on.
func TestDistributedStreamIsTorchs(t *testing.T) {
	for _, r := range golden(t).Loaders {
		for _, steps := range []int{1, 2} {
			order := distributed(t, r.Samples,
				samplers.DistributedSamplerOptions{NumReplicas: 1, Shuffle: true, Seed: 3})
			var windows [][]samplers.Window
			for rank, epochs := range r.Batches {
				s, err := samplers.NewDistributedStream(order, samplers.WindowLayout{BatchSize: r.BatchSize,
					DropLast: r.DropLast, AccumulationSteps: steps, WorldSize: r.Ranks, Rank: rank})
				require.NoError(t, err)
				if len(epochs[0]) == 0 {
					require.Zero(t, s.MicroBatches())
					continue
				}
				for e, batches := range epochs {
					windows = append(windows, epoch(t, s))
					got := lists{}
					for _, w := range windows[len(windows)-1] {
						require.EqualValues(t, e, w.Epoch)
						for k, m := range w.Own {
							require.Equal(t, rank*steps+k, m.Number)
							got = append(got, m.Indices)
						}
					}
					require.Equal(t, batches, got, "rank %d, epoch %d of %+v", rank, e, r)
				}
				require.NoError(t, s.SeekSample(0))
				if len(epochs[0]) > steps {
					first, _ := s.Next()
					require.Equal(t, first.Position+first.Samples, s.Position())
					place := s.Place()
					want := epoch(t, s)
					require.NoError(t, s.Restore(place))
					require.Equal(t, want, epoch(t, s))
				}
			}
			for e := 0; e < len(windows)/r.Ranks; e++ {
				var of [][]samplers.Window // of the epoch, by rank
				for rank := range r.Ranks {
					of = append(of, windows[rank*2+e])
				}
				requireShared(t, of)
			}
		}
	}
}

func TestDistributedSamplerMisuse(t *testing.T) {
	_, err := samplers.NewDistributedSampler(5, samplers.DistributedSamplerOptions{NumReplicas: 2, Rank: 2})
	require.EqualError(t, err, "samplers: rank is 2: want 0 to 1")
	_, err = samplers.NewDistributedSampler(1<<32/20, samplers.DistributedSamplerOptions{NumReplicas: 2, Shuffle: true})
	require.ErrorContains(t, err, "want less than 214748364")
	s := distributed(t, 5, samplers.DistributedSamplerOptions{NumReplicas: 2, Rank: 1})
	require.Panics(t, func() { s.At(0, 3) })
	require.Panics(t, func() { s.SetEpoch(-1) })

	layout := samplers.WindowLayout{BatchSize: 1, AccumulationSteps: 1, WorldSize: 2}
	_, err = samplers.NewStream(s, layout)
	require.ErrorContains(t, err, "rank 1's part of 2, and would be shared out again")
	_, err = samplers.NewDistributedStream(s, layout)
	require.ErrorContains(t, err, "want the order of all samples")
	other := distributed(t, 5, samplers.DistributedSamplerOptions{NumReplicas: 2})
	require.NotEqual(t, s.Fingerprint(), other.Fingerprint())
}

func TestLengthGroupedSamplerIsTransformers(t *testing.T) {
	for _, r := range golden(t).Lengths {
		s, err := samplers.NewLengthGroupedSampler(r.Lengths, r.BatchSize, r.Seed, samplers.TorchContinued)
		require.NoError(t, err)
		for _, e := range []int64{0, 1, 2, 0, 2} {
			require.Equal(t, r.Epochs[e], epochOf(s, e), "epoch %d of %+v", e, r)
		}
		s, err = samplers.NewLengthGroupedSampler(r.Lengths, r.BatchSize, r.Seed, samplers.Torch)
		require.NoError(t, err)
		for rank, epochs := range r.Distributed {
			stream, err := samplers.NewDistributedStream(s, samplers.WindowLayout{BatchSize: len(r.Lengths),
				WorldSize: 2, AccumulationSteps: 1, Rank: rank})
			require.NoError(t, err)
			for e, want := range epochs {
				w, ok := stream.Next()
				require.True(t, ok)
				require.Equal(t, want, w.Own[0].Indices, "epoch %d of rank %d of %+v", e, rank, r)
			}
		}
	}
	_, err := samplers.NewLengthGroupedSampler([]int{1}, 1, 0, 7)
	require.ErrorContains(t, err, "want Seekable, Torch or TorchContinued")
}

func TestIterableDatasetShardIsTransformers(t *testing.T) {
	for _, r := range golden(t).Shards {
		for rank, want := range r.Shards {
			s := iterableShard(t, r.BatchSize, rank, r.Ranks,
				samplers.IterableDatasetShardOptions{DropLast: r.DropLast})
			require.Equal(t, want, collect(s, r.Samples), "rank %d of %+v", rank, r)
			items := func(yield func(int64) bool) {
				for i := range r.Samples {
					if !yield(i) {
						return
					}
				}
			}
			require.Equal(t, want, all(samplers.Share(s, items)), "rank %d of %+v", rank, r)
			for range samplers.Share(s, items) {
				break // it may end early
			}
		}
	}
}
