// SPDX-License-Identifier: Apache-2.0

package samplers

import (
	"fmt"
	"sync/atomic"

	"github.com/lockstep-ml/lockstep/internal/rng"
)

// Sampler is the order in which an epoch visits a dataset. Len and At are pure: equal arguments give equal results, on
// every rank and after a resume. Both must be safe for concurrent use.
type Sampler interface {
	// Len gives the number of samples per epoch, the same in every epoch.
	Len() int64
	// At gives the dataset index of sample i, 0 ≤ i < Len(), of an epoch ≥ 0.
	At(epoch, i int64) int64
}

// Seeder is a Sampler whose order depends on a seed. The seed becomes part of a stream's Place.
type Seeder interface {
	Seed() uint64
}

// Sequential visits the samples 0 … n−1 in order, in every epoch.
type Sequential struct{ n int64 }

// NewSequential returns the sequential order of n samples. It panics if n is negative.
func NewSequential(n int64) Sequential {
	mustCount(n)
	return Sequential{n}
}

// Len returns the number of samples.
func (s Sequential) Len() int64 { return s.n }

// At returns i.
func (s Sequential) At(epoch, i int64) int64 {
	mustIndex(epoch, i, s.n)
	return i
}

// Random visits every sample once per epoch, in an order that depends only on the seed and the epoch: what
// HuggingFace's seedable random sampler does, with a permutation that needs no memory (rng.Perm). The orders of two
// seeds are unrelated in every epoch, whereas a sum of seed and epoch would give seed 1's second epoch to seed 2 as its
// first.
type Random struct {
	n     int64
	seed  uint64
	epoch atomic.Pointer[permuted]
}

type permuted struct {
	epoch int64
	perm  *rng.Perm
}

// NewRandom returns the random order of n samples under a seed. It panics if n is negative.
func NewRandom(n int64, seed uint64) *Random {
	mustCount(n)
	return &Random{n: n, seed: seed}
}

// Len returns the number of samples.
func (s *Random) Len() int64 { return s.n }

// Seed returns the seed.
func (s *Random) Seed() uint64 { return s.seed }

// At returns element i of the epoch's permutation.
func (s *Random) At(epoch, i int64) int64 {
	mustIndex(epoch, i, s.n)
	p := s.epoch.Load()
	if p == nil || p.epoch != epoch {
		p = &permuted{epoch, rng.NewPerm(rng.Key(s.seed, "samplers.Random", uint64(epoch)), s.n)}
		s.epoch.Store(p)
	}
	return p.perm.At(i)
}

func mustCount(n int64) {
	if n < 0 {
		panic(fmt.Sprintf("samplers: number of samples is %d: want 0 or more", n))
	}
}

func mustIndex(epoch, i, n int64) {
	if epoch < 0 || i < 0 || i >= n {
		panic(fmt.Sprintf("samplers: sample %d of epoch %d: want a sample in [0, %d) and an epoch of 0 or more", i,
			epoch, n))
	}
}
