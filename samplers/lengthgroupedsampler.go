// SPDX-License-Identifier: Apache-2.0

package samplers

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/lockstep-ml/lockstep/internal/rng"
)

// LengthGroupedSampler visits every sample once per epoch in an order that is random in the large and sorted by length
// in the small, so that a batch is of similar lengths and little of it is padding: HuggingFace's LengthGroupedSampler.
// The samples are permuted; the permutation is cut into mega-batches of m·b samples with m = min(⌊n/4b⌋, 50), at least
// 1; each is sorted by descending length (equal lengths stay as permuted). Then the longest sample of all changes
// places with the epoch's first, so that a batch too large for the memory fails at once.
//
// With a generator of torch's the indices are those of transformers to the number: Torch is
// DistributedLengthGroupedSampler's, before the ranks share them out, and TorchContinued is LengthGroupedSampler's with
// a seeded generator.
//
// It holds the lengths, and of an epoch the mega-batches in use alone. Seeking costs one mega-batch, the first use of
// an epoch one search for its longest sample.
type LengthGroupedSampler struct {
	lengths     []int
	mega        int64 // samples per mega-batch
	longest     int   // the greatest length
	seed        uint64
	fingerprint uint64
	torch       *permutations // nil: Seekable

	// Several places of an epoch are in use at once when a loader reads ahead of the steps.
	epochs [2]atomic.Pointer[groupedEpoch] // at epoch mod 2
	megas  [4]atomic.Pointer[megaBatch]    // at number mod 4
}

type groupedEpoch struct {
	epoch   int64
	perm    func(i int64) int64
	first   int64 // the dataset index of sample 0: the longest
	from    int64 // the sample that it changed places with
	swapped int64 // that sample's dataset index
}

type megaBatch struct {
	epoch, number int64
	indices       []int64 // sorted by descending length
}

// maxMegaBatches is HuggingFace's bound of m, the batches per mega-batch.
const maxMegaBatches = 50

// NewLengthGroupedSampler returns the length-grouped order of len(lengths) samples under a seed, as g permutes them.
// batchSize is b, the samples that should be of similar lengths: all those of an optimizer step, if ranks and
// accumulation steps are to be balanced and the order is not to depend on the number of ranks (HuggingFace: those of
// one rank's step). The caller leaves lengths unchanged. An error names a batch size below 1, a negative length, or a
// number of samples that torch permutes in another way (2³²/20 and more).
func NewLengthGroupedSampler(lengths []int, batchSize int, seed uint64, g Generator) (*LengthGroupedSampler, error) {
	if batchSize < 1 {
		return nil, fmt.Errorf("samplers: batch size is %d: want at least 1", batchSize)
	}
	n, b := int64(len(lengths)), int64(batchSize)
	s := &LengthGroupedSampler{lengths: lengths, seed: seed}
	s.mega = b * max(min(n/(b*4), maxMegaBatches), 1)
	if err := g.check(n); err != nil {
		return nil, err
	}
	s.fingerprint = rng.Key(uint64(n), "samplers.LengthGrouped.lengths", uint64(s.mega))
	if g != Seekable {
		s.torch = &permutations{n: n, seed: seed, from: g}
		s.fingerprint = rng.Derive(s.fingerprint, "generator", uint64(g))
	}
	for i, l := range lengths {
		if l < 0 {
			return nil, fmt.Errorf("samplers: the length of sample %d is %d: want 0 or more", i, l)
		}
		s.longest = max(s.longest, l)
		s.fingerprint = rng.Derive(s.fingerprint, "", uint64(l))
	}
	return s, nil
}

// Len returns the number of samples.
func (s *LengthGroupedSampler) Len() int64 { return int64(len(s.lengths)) }

// Seed returns the seed.
func (s *LengthGroupedSampler) Seed() uint64 { return s.seed }

// Fingerprint depends on the lengths and on the size of a mega-batch.
func (s *LengthGroupedSampler) Fingerprint() uint64 { return s.fingerprint }

// At returns the dataset index of sample i, 0 ≤ i < Len(), of an epoch.
func (s *LengthGroupedSampler) At(epoch, i int64) int64 {
	mustIndex(epoch, i, s.Len())
	e := s.epochOf(epoch)
	switch i {
	case 0:
		return e.first
	case e.from:
		return e.swapped
	}
	return s.megaOf(e, i/s.mega)[i%s.mega]
}

// epochOf permutes an epoch and finds its longest sample: the first of the permutation that has the greatest length.
func (s *LengthGroupedSampler) epochOf(epoch int64) *groupedEpoch {
	slot := &s.epochs[epoch%int64(len(s.epochs))]
	if e := slot.Load(); e != nil && e.epoch == epoch {
		return e
	}
	e := &groupedEpoch{epoch: epoch}
	if s.torch != nil {
		order := s.torch.of(epoch).perm
		e.perm = func(i int64) int64 { return int64(order[i]) }
	} else {
		e.perm = rng.NewPerm(rng.Key(s.seed, "samplers.LengthGrouped", uint64(epoch)), s.Len()).At
	}
	at := int64(0)
	for e.first = e.perm(at); s.lengths[e.first] < s.longest; e.first = e.perm(at) {
		at++
	}
	e.from = at / s.mega * s.mega
	e.swapped = s.megaOf(e, 0)[0]
	slot.Store(e)
	return e
}

// megaOf returns a mega-batch of an epoch, before the longest sample changed places.
func (s *LengthGroupedSampler) megaOf(e *groupedEpoch, number int64) []int64 {
	slot := &s.megas[number%int64(len(s.megas))]
	if m := slot.Load(); m != nil && m.epoch == e.epoch && m.number == number {
		return m.indices
	}
	begin := number * s.mega
	indices := make([]int64, min(s.mega, s.Len()-begin))
	for i := range indices {
		indices[i] = e.perm(begin + int64(i))
	}
	slices.SortStableFunc(indices, func(a, b int64) int { return s.lengths[b] - s.lengths[a] })
	slot.Store(&megaBatch{e.epoch, number, indices})
	return indices
}
