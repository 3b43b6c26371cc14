// SPDX-License-Identifier: Apache-2.0

package samplers_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/samplers"
)

func epochOf(s samplers.Sampler, epoch int64) []int64 {
	out := make([]int64, s.Len())
	for i := range out {
		out[i] = s.At(epoch, int64(i))
	}
	return out
}

func upTo(n int64) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = int64(i)
	}
	return out
}

func TestSequential(t *testing.T) {
	require.Equal(t, upTo(5), epochOf(samplers.NewSequential(5), 0))
	require.Equal(t, upTo(5), epochOf(samplers.NewSequential(5), 9))
	require.Empty(t, epochOf(samplers.NewSequential(0), 0))
}

func TestRandomVisitsEverySampleOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, seed := rapid.Int64Range(0, 300).Draw(t, "n"), rapid.Uint64().Draw(t, "seed")
		epoch := rapid.Int64Range(0, 1<<40).Draw(t, "epoch")
		got := epochOf(samplers.NewRandom(n, seed), epoch)
		require.Equal(t, got, epochOf(samplers.NewRandom(n, seed), epoch))
		slices.Sort(got)
		require.Equal(t, upTo(n), got)
	})
}

func TestRandomOrdersDiffer(t *testing.T) {
	seen := map[[50]int64]bool{}
	for seed := range uint64(10) {
		s := samplers.NewRandom(50, seed)
		for epoch := range int64(10) {
			seen[[50]int64(epochOf(s, epoch))] = true
		}
	}
	require.Len(t, seen, 100)
}

// The order is part of the checkpoint format.
func TestRandomGolden(t *testing.T) {
	s := samplers.NewRandom(10, 42)
	require.Equal(t, []int64{8, 1, 0, 9, 5, 7, 3, 6, 2, 4}, epochOf(s, 0))
	require.Equal(t, []int64{5, 8, 9, 6, 7, 2, 4, 3, 0, 1}, epochOf(s, 1))
	large := samplers.NewRandom(1<<40, 42)
	require.Equal(t, []int64{985727204143, 546782254313}, []int64{large.At(0, 0), large.At(7, 1<<39)})
}

func TestRandomIsSafeForConcurrentUse(t *testing.T) {
	s := samplers.NewRandom(100, 1)
	want := [][]int64{epochOf(s, 0), epochOf(s, 1)}
	var wg sync.WaitGroup
	got := make([][]int64, 8)
	for i := range got {
		wg.Go(func() { got[i] = epochOf(s, int64(i%2)) })
	}
	wg.Wait()
	for i := range got {
		require.Equal(t, want[i%2], got[i])
	}
}

func TestSamplerMisuse(t *testing.T) {
	require.Panics(t, func() { samplers.NewRandom(-1, 0) })
	require.Panics(t, func() { samplers.NewSequential(-1) })
	require.Panics(t, func() { samplers.NewSequential(3).At(0, 3) })
	require.Panics(t, func() { samplers.NewRandom(3, 0).At(-1, 0) })
}

func TestBatch(t *testing.T) {
	s := samplers.NewSequential(7)
	ragged, err := samplers.NewBatch(s, 3, false)
	require.NoError(t, err)
	require.EqualValues(t, 3, ragged.Len())
	require.EqualValues(t, 7, ragged.Samples())
	require.Equal(t, []int64{6}, ragged.At(0, 2))
	whole, err := samplers.NewBatch(s, 3, true)
	require.NoError(t, err)
	require.EqualValues(t, 2, whole.Len())
	require.EqualValues(t, 6, whole.Samples())
	require.Equal(t, []int64{3, 4, 5}, whole.At(4, 1))
	require.Panics(t, func() { whole.At(0, 2) })
	_, err = samplers.NewBatch(s, 0, false)
	require.EqualError(t, err, "samplers: batch size is 0: want at least 1")
	empty, err := samplers.NewBatch(samplers.NewSequential(0), 4, false)
	require.NoError(t, err)
	require.Zero(t, empty.Len())
}
