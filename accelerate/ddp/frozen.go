// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"context"
	"fmt"
	"math/bits"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// A frozenSet says of each parameter whether it is trained, one bit each, and then the same with all bits turned. The
// largest value of each byte over all ranks, which an exchange finds, is then equal to this rank's everywhere if, and
// only if, the ranks agree: a quarter of a byte for each parameter.
type frozenSet []uint8

func newFrozenSet(params int) frozenSet { return make(frozenSet, 2*((params+7)/8)) }

// fill writes what is so here.
func (f frozenSet) fill(params []tensor.Named) {
	clear(f)
	half := len(f) / 2
	for i, p := range params {
		if p.IsLeaf() {
			f[i/8] |= 1 << (i % 8)
		}
	}
	for i := range half {
		f[half+i] = ^f[i]
	}
}

// differing returns the number of a parameter on which the ranks differ, −1 if they agree. f holds the largest values.
func (f frozenSet) differing() int {
	half := len(f) / 2
	for i := range half {
		if most, least := f[i], ^f[half+i]; most != least {
			return 8*i + bits.Len8(most^least) - 1 // the highest: lower bits are those of whole values, of two ranks
		}
	}
	return -1
}

// check is the error of ranks that differ.
func (f frozenSet) check(params []tensor.Named) error {
	i := f.differing()
	if i < 0 {
		return nil
	}
	here, there := "trained", "frozen"
	if !params[i].IsLeaf() {
		here, there = there, here
	}
	return fmt.Errorf("ddp: parameter %s is %s on this rank and %s on another: want the same on all ranks; a callback "+
		"that freezes or unfreezes parameters needs the method EveryRank (callbacks.EveryRank), since others run on "+
		"rank 0 alone", params[i].Name, here, there)
}

// CheckFrozen returns an error, on every rank, if the ranks differ in which parameters are trained. It is collective.
// It is for package accelerate.
func CheckFrozen(ctx context.Context, g *comm.Group, params []tensor.Named) error {
	f := newFrozenSet(len(params))
	f.fill(params)
	votes := comm.Of([]uint8(f))
	if err := g.AllReduce(votes, comm.Max, comm.Label("parameters that are trained")).Wait(ctx); err != nil {
		return fmt.Errorf("ddp: %w", err)
	}
	return f.check(params)
}
