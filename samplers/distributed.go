// SPDX-License-Identifier: Apache-2.0

package samplers

import "fmt"

// Distributed deals an order out to W ranks one sample at a time: rank r has samples r, r+W, r+2W, … of it. This is
// torch's DistributedSampler, with the order as an argument: of Random (shuffle=True) or Sequential (shuffle=False),
// and HuggingFace's DistributedLengthGroupedSampler when it is of LengthGrouped. The epoch is an argument of At, so
// that no set_epoch can be forgotten.
//
// All ranks have the same number of samples. If W does not divide n, the order is filled up to the next multiple with
// samples from its head, which are then seen twice (more often if n < W); with drop-last it is cut to the last multiple
// instead, and the rest is not seen in that epoch.
type Distributed struct {
	order    Sampler
	shard    Shard
	dropLast bool
	done     int64 // samples of the order that are left out at the front
	own      int64 // samples of this rank
}

// NewDistributed gives a rank's part of the order. An error tells what is wrong with the shard.
func NewDistributed(order Sampler, shard Shard, dropLast bool) (*Distributed, error) {
	if err := shard.Validate(); err != nil {
		return nil, err
	}
	return distributedFrom(order, shard, dropLast, 0), nil
}

func distributedFrom(order Sampler, shard Shard, dropLast bool, done int64) *Distributed {
	rest, w := order.Len()-done, shard.world()
	own := ceilDiv(rest, w)
	if dropLast {
		own = rest / w
	}
	return &Distributed{order, shard, dropLast, done, own}
}

// Len gives the number of samples per rank and epoch: ⌈n/W⌉, or ⌊n/W⌋ with drop-last.
func (d *Distributed) Len() int64 { return d.own }

// Total gives the number of samples per epoch over all ranks, those counted that are seen again: Len() × W.
func (d *Distributed) Total() int64 { return d.own * d.shard.world() }

// At gives the dataset index of this rank's sample i, 0 ≤ i < Len(), of an epoch.
func (d *Distributed) At(epoch, i int64) int64 {
	mustIndex(epoch, i, d.own)
	return d.order.At(epoch, (d.done+i*d.shard.world()+d.shard.rank())%d.order.Len())
}

// Seed gives the order's seed, 0 if it has none.
func (d *Distributed) Seed() uint64 { return seedOf(d.order) }

// Fingerprint gives the order's fingerprint, 0 if it has none.
func (d *Distributed) Fingerprint() uint64 { return fingerprintOf(d.order) }

// SkipFirst gives this rank's part of what is left of an epoch after done samples of it, counted over all ranks, in
// O(1). It is for the epoch under way alone: later epochs are d's. With done a multiple of W these are d's samples from
// done/W on; other values (left by another number of ranks) deal the rest out anew. It is an error if done is outside
// [0, n].
func (d *Distributed) SkipFirst(done int64) (*Distributed, error) {
	if err := checkSkip("samples", done, d.order.Len()-d.done); err != nil {
		return nil, err
	}
	return distributedFrom(d.order, d.shard, d.dropLast, d.done+done), nil
}

// StateAt gives the place after each rank has seen own samples of an epoch, in global terms: Resume takes it on any
// number of ranks. It panics if own is outside [0, Len()].
func (d *Distributed) StateAt(epoch, own int64) State {
	mustIndex(epoch, own, d.own+1)
	n := d.order.Len()
	if own == d.own {
		return stateAt(d.order, epoch, n, n)
	}
	return stateAt(d.order, epoch, d.done+own*d.shard.world(), n)
}

// Resume gives the epoch that a saved place is in and this rank's part of what is left of it, in O(1). It is an error
// if the state was taken of another order. d must be of whole epochs.
func (d *Distributed) Resume(st State) (epoch int64, rest *Distributed, err error) {
	if err := st.check(stateAt(d.order, 0, 0, d.order.Len())); err != nil {
		return 0, nil, err
	}
	rest, err = d.SkipFirst(st.Position - st.Epoch*st.Samples)
	return st.Epoch, rest, err
}

// NewDistributedLengthGrouped gives a rank's part of the length-grouped order (HuggingFace's
// DistributedLengthGroupedSampler): rank 0 begins with the longest sample of all.
func NewDistributedLengthGrouped(lengths []int, batchSize int, seed uint64, shard Shard, dropLast bool) (*Distributed,
	error) {
	order, err := NewLengthGrouped(lengths, batchSize, seed)
	if err != nil {
		return nil, err
	}
	return NewDistributed(order, shard, dropLast)
}

func checkSkip(what string, done, most int64) error {
	if done < 0 || done > most {
		return fmt.Errorf("samplers: %d %s to skip, want 0 to %d", done, what, most)
	}
	return nil
}
