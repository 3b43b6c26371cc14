// SPDX-License-Identifier: Apache-2.0

package samplers

import (
	"fmt"
	"slices"
)

// BatchSamplerShardOptions are accelerate's settings of the same names. accelerate's default of EvenBatches is true.
type BatchSamplerShardOptions struct {
	// SplitBatches cuts every batch into W slices, one per rank. Otherwise the ranks take whole batches in turn: batch
	// i is rank i mod W's.
	SplitBatches bool
	// EvenBatches gives all ranks the same number of batches of the same size: the last round is completed with samples
	// from the epoch's head, which are then seen twice. Otherwise the last batch may be smaller on some ranks, or
	// missing. It has no effect on batches with DropLast.
	EvenBatches bool
}

// BatchSamplerShard shares the batches of an epoch out to W ranks by the rules of accelerate's class of that name.
// Every batch is a function of (epoch, number).
//
// With EvenBatches and without DropLast samples are repeated: the head that they are taken from is the epoch's first W
// batches, or the first batch with SplitBatches, and is gone through again if it is too short. With DropLast an
// incomplete last round of the ranks is not seen in that epoch.
type BatchSamplerShard struct {
	batches *Batch
	shard   Shard
	BatchSamplerShardOptions
	size int64 // of the whole batches given to this rank
	done int64 // batches of the epoch that are left out at the front
}

// NewBatchSamplerShard returns a rank's part of the batches. It is an error if the shard is at fault, or SplitBatches
// is set and W does not divide the batch size.
func NewBatchSamplerShard(batches *Batch, shard Shard, o BatchSamplerShardOptions) (*BatchSamplerShard, error) {
	if err := shard.Validate(); err != nil {
		return nil, err
	}
	s := &BatchSamplerShard{batches: batches, shard: shard, BatchSamplerShardOptions: o, size: int64(batches.Size())}
	if o.SplitBatches {
		if s.size%shard.world() != 0 {
			return nil,
				fmt.Errorf("samplers: split_batches with a batch size of %d: want a multiple of the world size %d",
					s.size, shard.WorldSize)
		}
		s.size /= shard.world()
	}
	return s, nil
}

// Len returns the number of batches of this rank per epoch: ⌈L/W⌉ with EvenBatches and ⌊L/W⌋ with DropLast, on all
// ranks; L with SplitBatches; exact for this rank in all cases.
func (s *BatchSamplerShard) Len() int64 {
	rest, w := s.batches.Len()-s.done, s.shard.world()
	switch {
	case s.SplitBatches:
		if ragged := s.ragged(); rest > 0 && !s.EvenBatches && ragged > 0 && ragged <= s.size*s.shard.rank() {
			return rest - 1
		}
		return rest
	case s.batches.DropLast():
		return rest / w
	case s.EvenBatches:
		return ceilDiv(rest, w)
	}
	return rest/w + max(0, min(1, rest%w-s.shard.rank()))
}

// At returns the dataset indices of this rank's batch j, 0 ≤ j < Len(), of an epoch, in a new slice.
func (s *BatchSamplerShard) At(epoch, j int64) []int64 { return s.MicroBatch(epoch, j).Indices }

// MicroBatch returns this rank's batch j, 0 ≤ j < Len(), of an epoch with its position in the training stream. Repeated
// samples run on past the epoch's end. Number is 0: these rules know of no windows.
func (s *BatchSamplerShard) MicroBatch(epoch, j int64) MicroBatch {
	if epoch < 0 || j < 0 || j >= s.Len() {
		panic(fmt.Sprintf("samplers: batch %d of epoch %d: want a batch in [0, %d) and an epoch of 0 or more", j, epoch,
			s.Len()))
	}
	give := s.whole
	if s.SplitBatches {
		give = s.slice
	}
	m := give(epoch, j)
	m.Position += epoch * s.batches.First(s.batches.Len())
	return m
}

// whole returns batch j of the rank where ranks take batches in turn.
func (s *BatchSamplerShard) whole(epoch, j int64) MicroBatch {
	l := s.batches.Len()
	i := s.done + j*s.shard.world() + s.shard.rank()
	var m MicroBatch
	if i < l {
		m = MicroBatch{Position: s.batches.First(i), Indices: s.batches.At(epoch, i)}
	}
	switch missing := s.size - int64(len(m.Indices)); {
	case i < l && (missing == 0 || !s.EvenBatches):
		return m
	case i < l:
		m.Indices = s.complete(epoch, m.Indices, 0, missing, min(s.shard.world(), l))
		return m
	}
	from := (i - l) * s.size
	if ragged := s.ragged(); ragged > 0 {
		from += s.size - ragged
	}
	return MicroBatch{Position: s.batches.First(l) + from,
		Indices: s.complete(epoch, nil, from, s.size, min(s.shard.world(), l))}
}

// slice returns the rank's slice of batch j.
func (s *BatchSamplerShard) slice(epoch, j int64) MicroBatch {
	i := s.done + j
	begin := s.size * s.shard.rank()
	batch := s.batches.At(epoch, i)
	if missing := int64(s.batches.Size() - len(batch)); missing > 0 && s.EvenBatches {
		batch = s.complete(epoch, batch, 0, missing, 1)
	}
	end := min(begin+s.size, int64(len(batch)))
	return MicroBatch{Position: s.batches.First(i) + begin, Indices: slices.Clip(batch[begin:end])}
}

// complete appends samples from … from+n−1 of an epoch's head, which is its first batches, repeated as often as needed.
func (s *BatchSamplerShard) complete(epoch int64, indices []int64, from, n, batches int64) []int64 {
	head, size := s.batches.First(batches), int64(s.batches.Size())
	var batch []int64
	for k, have := from, int64(-1); k < from+n; k++ {
		at := k % head
		if at/size != have {
			have = at / size
			batch = s.batches.At(epoch, have)
		}
		indices = append(indices, batch[at%size])
	}
	return indices
}

// ragged returns the size of the epoch's last batch if it is not whole, else 0.
func (s *BatchSamplerShard) ragged() int64 {
	l := s.batches.Len()
	if l == 0 {
		return 0
	}
	if last := s.batches.First(l) - s.batches.First(l-1); last < int64(s.batches.Size()) {
		return last
	}
	return 0
}

// SkipFirst returns this rank's part of what is left of an epoch after done batches of it, counted over all ranks and
// before they are shared out, in O(1): accelerate's skip_first_batches. It is for the epoch under way alone: later
// epochs are s's. With done a multiple of W (any number with SplitBatches) these are s's batches from there on,
// repeated samples included; other values (left by another number of ranks) distribute the rest again. It is an error
// if done is outside [0, L].
func (s *BatchSamplerShard) SkipFirst(done int64) (*BatchSamplerShard, error) {
	if most := s.batches.Len() - s.done; done < 0 || done > most {
		return nil, fmt.Errorf("samplers: %d batches to skip: want 0 to %d", done, most)
	}
	rest := *s
	rest.done += done
	return &rest, nil
}
