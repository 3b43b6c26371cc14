// SPDX-License-Identifier: Apache-2.0

package samplers_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/internal/rng"
	"github.com/lockstep-ml/lockstep/samplers"
)

func grouped(t require.TestingT, lengths []int, batchSize int, seed uint64) *samplers.LengthGroupedSampler {
	s, err := samplers.NewLengthGroupedSampler(lengths, batchSize, seed, samplers.Seekable)
	require.NoError(t, err)
	return s
}

// lengthsLike returns n pseudorandom lengths below 25, sample 32 of which is 50.
func lengthsLike(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = int(rng.Uint32At(5, 0, uint64(i)) % 25)
	}
	out[32] = 50
	return out
}

// The rule on a whole epoch at once, in memory.
func groupedEpoch(lengths []int, batchSize int, seed uint64, epoch int64) []int64 {
	n := len(lengths)
	perm := rng.NewPerm(rng.Key(seed, "samplers.LengthGrouped", uint64(epoch)), int64(n))
	row := make([]int64, n)
	for i := range row {
		row[i] = perm.At(int64(i))
	}
	mult := min(n/(4*batchSize), 50)
	if mult == 0 {
		mult = 1
	}
	at := 0
	for i := 0; i < n; i += mult * batchSize {
		chunk := row[i:min(i+mult*batchSize, n)]
		slices.SortStableFunc(chunk, func(a, b int64) int { return lengths[b] - lengths[a] })
		if lengths[chunk[0]] > lengths[row[at]] {
			at = i
		}
	}
	if n > 0 {
		row[0], row[at] = row[at], row[0]
	}
	return row
}

func TestLengthGroupedIsTheRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lengths := rapid.SliceOfN(rapid.IntRange(0, 12), 0, 300).Draw(t, "lengths")
		batchSize, epoch := rapid.IntRange(1, 9).Draw(t, "batch size"), rapid.Int64Range(0, 9).Draw(t, "epoch")
		s := grouped(t, lengths, batchSize, 11)
		want := groupedEpoch(lengths, batchSize, 11, epoch)
		require.Equal(t, want, epochOf(s, epoch))
		for range min(len(want), 20) { // in any order, between epochs
			i := rapid.IntRange(0, len(want)-1).Draw(t, "i")
			require.Equal(t, want[i], s.At(epoch, int64(i)))
			s.At(epoch+2, int64(i))
		}
		slices.Sort(want)
		require.Equal(t, upTo(int64(len(lengths))), want)
	})
}

func TestLengthGroupedLongestFirstThenDescending(t *testing.T) {
	lengths := lengthsLike(100)
	s := grouped(t, lengths, 4, 1)
	for epoch := range int64(10) {
		got := epochOf(s, epoch)
		require.EqualValues(t, 32, got[0])
		exchanged := 0
		for i := 1; i < len(got); i++ { // mega-batches of min(100/16, 50) × 4 = 24
			if i%24 != 0 && lengths[got[i]] > lengths[got[i-1]] {
				exchanged++
			}
		}
		require.LessOrEqual(t, exchanged, 1)
		slices.Sort(got)
		require.Equal(t, upTo(100), got)
	}
}

// The order is part of the checkpoint format.
func TestLengthGroupedGolden(t *testing.T) {
	lengths := []int{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8}
	s := grouped(t, lengths, 1, 42)
	require.Equal(t, []int64{5, 6, 1, 4, 9, 3, 7, 8, 2, 11, 10, 0}, epochOf(s, 0))
	require.Equal(t, []int64{5, 10, 3, 7, 4, 1, 8, 11, 2, 0, 9, 6}, epochOf(s, 3)) // 5 and 8 have changed places
	require.Equal(t, uint64(881306750533440267), s.Fingerprint())
}

func TestLengthGroupedFingerprint(t *testing.T) {
	lengths := lengthsLike(100)
	a := grouped(t, lengths, 4, 1)
	require.Equal(t, a.Fingerprint(), grouped(t, slices.Clone(lengths), 4, 2).Fingerprint())
	require.NotEqual(t, a.Fingerprint(), grouped(t, lengths, 5, 1).Fingerprint())
	lengths[7]++
	b := grouped(t, lengths, 4, 1)
	require.NotEqual(t, a.Fingerprint(), b.Fingerprint())

	layout := samplers.WindowLayout{BatchSize: 4, AccumulationSteps: 1, WorldSize: 1}
	from, err := samplers.NewStream(a, layout)
	require.NoError(t, err)
	to, err := samplers.NewStream(b, layout)
	require.NoError(t, err)
	from.Next()
	require.NoError(t, from.Restore(from.Place()))
	require.ErrorContains(t, to.Restore(from.Place()), "lengths or group size differ")
}

func TestLengthGroupedIsSafeForConcurrentUse(t *testing.T) {
	s := grouped(t, lengthsLike(200), 2, 3)
	want := [][]int64{epochOf(s, 0), epochOf(s, 1), epochOf(s, 2)}
	var wg sync.WaitGroup
	got := make([][]int64, 9)
	for i := range got {
		wg.Go(func() { got[i] = epochOf(s, int64(i%3)) })
	}
	wg.Wait()
	for i := range got {
		require.Equal(t, want[i%3], got[i])
	}
}

func TestLengthGroupedMisuse(t *testing.T) {
	_, err := samplers.NewLengthGroupedSampler([]int{1}, 0, 0, samplers.Seekable)
	require.EqualError(t, err, "samplers: batch size is 0: want at least 1")
	_, err = samplers.NewLengthGroupedSampler([]int{1, -3}, 1, 0, samplers.Seekable)
	require.EqualError(t, err, "samplers: the length of sample 1 is -3: want 0 or more")
	require.Panics(t, func() { grouped(t, []int{1}, 1, 0).At(0, 1) })
	require.Empty(t, epochOf(grouped(t, nil, 1, 0), 0))
}
