// SPDX-License-Identifier: Apache-2.0

package samplers

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/lockstep-ml/lockstep/internal/rng"
)

// Generator names who draws a sampler's permutations.
type Generator int

const (
	// Seekable is Lockstep's own: element i of any epoch's permutation costs the same, and no memory.
	Seekable Generator = iota
	// Torch is torch.randperm with a generator that is seeded with seed + epoch before each epoch, as in torch's
	// DistributedSampler. A permutation of n samples takes 4·n bytes, and n steps when its epoch begins.
	Torch
	// TorchContinued is torch.randperm with one generator, which is seeded with the seed and continues from epoch to
	// epoch, as one that is given to transformers' LengthGroupedSampler does. Epoch e costs n·e steps if another one
	// was before it.
	TorchContinued
)

// mostOfTorch is the number of samples from which on torch.randperm draws in another way.
const mostOfTorch = math.MaxUint32 / 20

// check describes what is wrong with a generator for n samples.
func (g Generator) check(n int64) error {
	switch {
	case g < Seekable || g > TorchContinued:
		return fmt.Errorf("samplers: generator is %d: want Seekable, Torch or TorchContinued", g)
	case g != Seekable && n >= mostOfTorch:
		return fmt.Errorf("samplers: %d samples in torch's order: want less than %d: from there on torch.randperm "+
			"draws in another way", n, mostOfTorch)
	}
	return nil
}

// permutations are those of n samples, epoch by epoch, as torch.randperm makes them.
type permutations struct {
	n    int64
	seed uint64
	from Generator
	// Places of two epochs are in use at once when a loader reads ahead of the steps.
	epochs [2]atomic.Pointer[torchEpoch] // at epoch mod 2
}

type torchEpoch struct {
	epoch int64
	perm  []int32
	after rng.MT19937 // the generator, once the permutation is drawn
}

// at returns element i of an epoch's permutation.
func (p *permutations) at(epoch, i int64) int64 { return int64(p.of(epoch).perm[i]) }

func (p *permutations) of(epoch int64) *torchEpoch {
	slot := &p.epochs[epoch%int64(len(p.epochs))]
	if e := slot.Load(); e != nil && e.epoch == epoch {
		return e
	}
	var e *torchEpoch
	if p.from == Torch {
		e = p.draw(epoch, rng.NewMT19937(p.seed+uint64(epoch)))
	} else {
		e = p.continued(epoch)
	}
	slot.Store(e)
	return e
}

// continued draws the permutation of an epoch with the generator of the epoch before, or from the first epoch on.
func (p *permutations) continued(epoch int64) *torchEpoch {
	begin, g := int64(0), rng.NewMT19937(p.seed)
	if epoch > 0 {
		if e := p.epochs[(epoch-1)%int64(len(p.epochs))].Load(); e != nil && e.epoch == epoch-1 {
			after := e.after
			begin, g = epoch, &after
		}
	}
	for skipped := begin; skipped < epoch; skipped++ {
		for range max(p.n-1, 0) {
			g.Uint32()
		}
	}
	return p.draw(epoch, g)
}

// draw shuffles as torch.randperm does on the CPU.
func (p *permutations) draw(epoch int64, g *rng.MT19937) *torchEpoch {
	perm := make([]int32, p.n)
	for i := range perm {
		perm[i] = int32(i)
	}
	for i := 0; i < len(perm)-1; i++ {
		with := i + int(g.Uint32()%uint32(len(perm)-i))
		perm[i], perm[with] = perm[with], perm[i]
	}
	return &torchEpoch{epoch: epoch, perm: perm, after: *g}
}
