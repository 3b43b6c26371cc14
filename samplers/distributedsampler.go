// SPDX-License-Identifier: Apache-2.0

package samplers

import (
	"fmt"
	"iter"
	"sync/atomic"

	"github.com/lockstep-ml/lockstep/internal/rng"
)

// DistributedSamplerOptions are the arguments of torch.utils.data.DistributedSampler.
type DistributedSamplerOptions struct {
	NumReplicas int    // num_replicas, W: the number of ranks
	Rank        int    // 0 ≤ Rank < NumReplicas
	Shuffle     bool   // a random order in each epoch; torch's default is true
	Seed        uint64 // of the orders, the same on all ranks
	DropLast    bool   // leave out the samples at the end that do not divide evenly, instead of repeating some
}

// DistributedSampler is a rank's part of each epoch, torch.utils.data.DistributedSampler to the number: the samples are
// permuted by torch.randperm with a generator that is seeded with Seed + epoch, and the ranks take one sample in turn.
// Where the ranks do not divide the samples, samples from the epoch's head are seen twice, or the last ones are left
// out with DropLast.
//
// Use it in a loop that reads its own part of the data: give it to NewBatch, and the batches of an epoch to
// data.EpochOrder. Package trainer has the same indices under data_sharding torch, and so has accelerate's
// Accelerator.Windows, which share an order out themselves: give them the order of all samples.
type DistributedSampler struct {
	o     DistributedSamplerOptions
	n     int64
	perms *permutations // nil without Shuffle
	epoch atomic.Int64  // that All yields
}

// NewDistributedSampler returns a rank's part of n samples. It panics if n is negative. An error names a rank outside
// of the replicas, or a number of samples that torch permutes in another way (2³²/20 and more, with Shuffle).
func NewDistributedSampler(n int64, o DistributedSamplerOptions) (*DistributedSampler, error) {
	mustCount(n)
	if err := (Shard{o.Rank, o.NumReplicas}).Validate(); err != nil {
		return nil, err
	}
	s := &DistributedSampler{o: o, n: n}
	if o.Shuffle {
		if err := Torch.check(n); err != nil {
			return nil, err
		}
		s.perms = &permutations{n: n, seed: o.Seed, from: Torch}
	}
	return s, nil
}

// part reports an order that is one rank's part of the data already, and would be shared out twice.
func part(s Sampler) error {
	if d, ok := s.(*DistributedSampler); ok && d.o.NumReplicas > 1 {
		return fmt.Errorf("samplers: the order is a DistributedSampler's, rank %d's part of %d, and would be shared "+
			"out again: want the order of all samples (data_sharding torch deals them out as it does)", d.o.Rank,
			d.o.NumReplicas)
	}
	return nil
}

// Len returns the number of samples of a rank: ⌈n/W⌉, or ⌊n/W⌋ with DropLast.
func (s *DistributedSampler) Len() int64 {
	if s.o.DropLast {
		return s.n / int64(s.o.NumReplicas)
	}
	return ceilDiv(s.n, int64(s.o.NumReplicas))
}

// TotalSize returns the number of samples of all ranks, W·Len.
func (s *DistributedSampler) TotalSize() int64 { return s.Len() * int64(s.o.NumReplicas) }

// Replicas returns the number of ranks, W.
func (s *DistributedSampler) Replicas() int { return s.o.NumReplicas }

// Seed returns the seed.
func (s *DistributedSampler) Seed() uint64 { return s.o.Seed }

// Fingerprint tells this order from those of other samplers with the seed.
func (s *DistributedSampler) Fingerprint() uint64 {
	flags := uint64(0)
	if s.o.Shuffle {
		flags |= 1
	}
	if s.o.DropLast {
		flags |= 2
	}
	return rng.Key(uint64(s.n), "samplers.DistributedSampler", uint64(s.o.NumReplicas)<<32|uint64(s.o.Rank)<<2|flags)
}

// At returns the dataset index of the rank's sample i, 0 ≤ i < Len(), of an epoch.
func (s *DistributedSampler) At(epoch, i int64) int64 {
	mustIndex(epoch, i, s.Len())
	at := (i*int64(s.o.NumReplicas) + int64(s.o.Rank)) % s.n
	if s.perms == nil {
		return at
	}
	return s.perms.at(epoch, at)
}

// SetEpoch chooses the epoch that All yields, as set_epoch does; 0 until it is called. It panics if epoch is negative.
func (s *DistributedSampler) SetEpoch(epoch int64) {
	mustCount(epoch)
	s.epoch.Store(epoch)
}

// All yields the rank's indices of the epoch that SetEpoch chose.
func (s *DistributedSampler) All() iter.Seq[int64] {
	return func(yield func(int64) bool) {
		epoch := s.epoch.Load()
		for i := range s.Len() {
			if !yield(s.At(epoch, i)) {
				return
			}
		}
	}
}
