// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"fmt"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// WindowLoss is the loss of the micro-batches of an optimizer step on all ranks. It has the
// same bits on every rank and on any number of ranks.
type WindowLoss struct {
	Sum   float64 // of all loss terms, micro-batch by micro-batch in their order
	Count int64   // loss terms
}

// Mean is the mean loss; NaN if there was no term.
func (w WindowLoss) Mean() float64 { return w.Sum / float64(w.Count) }

// Accumulate runs the forward and backward passes of one optimizer step: loss, which returns
// the sum of a batch's loss terms as a tensor of one element, is called for each of this
// rank's micro-batches in a memory scope of its own. Gradients are added in the tree of
// docs/numerics.md and exchanged only during the last pass. Afterwards the gradients of the
// parameters are those of the mean over all terms of all ranks; gradients of earlier windows
// are discarded.
//
// A rank passes at most as many batches as Layout has accumulation steps. With fewer, or
// none, its missing gradients are left out of the sum, so that ranks may run out of data at
// different times (see Join). It is collective; if one rank fails, the others return too.
func (a *Accelerator) Accumulate(ctx context.Context, batches []*data.Batch, loss func(c *nn.Ctx, b *data.Batch) *tensor.Tensor) (WindowLoss, error) {
	w, err := a.accumulate(ctx, batches, loss)
	if err != nil {
		return WindowLoss{}, a.reject(err)
	}
	return w, nil
}

func (a *Accelerator) accumulate(ctx context.Context, batches []*data.Batch, loss func(c *nn.Ctx, b *data.Batch) *tensor.Tensor) (WindowLoss, error) {
	layout, err := a.Layout()
	if err != nil {
		return WindowLoss{}, err
	}
	if len(batches) > layout.AccumulationSteps {
		return WindowLoss{}, fmt.Errorf("accelerate: %d micro-batches for one step of rank %d, want at most %d (gradient_accumulation_steps)", len(batches), a.rank, layout.AccumulationSteps)
	}
	if err := a.BeginWindow(ctx); err != nil {
		return WindowLoss{}, err
	}
	a.ZeroGrad()
	var count int64
	for _, b := range batches {
		count += b.Count
	}
	if count, err = a.SumCounts(ctx, count); err != nil {
		return WindowLoss{}, err
	}
	sums := make([]float64, layout.Leaves()) // of other ranks' leaves: 0, for the ranks to add up
	for i, b := range batches {
		leaf := a.rank*layout.AccumulationSteps + i
		if sums[leaf], err = a.leaf(b, loss, count, leaf, i == len(batches)-1); err != nil {
			return WindowLoss{}, err
		}
	}
	if err := a.Reduce(ctx); err != nil {
		return WindowLoss{}, err
	}
	if err := a.SumFloats(ctx, sums, "losses of a step"); err != nil {
		return WindowLoss{}, err
	}
	w := WindowLoss{Count: count}
	for _, s := range sums {
		w.Sum += s
	}
	return w, nil
}

// leaf runs one micro-batch and returns its loss sum.
func (a *Accelerator) leaf(b *data.Batch, loss func(c *nn.Ctx, b *data.Batch) *tensor.Tensor, count int64, leaf int, last bool) (sum float64, err error) {
	err = tensor.Try(func() {
		a.TrainCtx(b.Position).Scope(func(c *nn.Ctx) []*tensor.Tensor {
			l := loss(c, b)
			sum = tensor.Item(c.Ctx, l)
			a.Backward(c, l, count, leaf, last)
			return nil
		})
	})
	if err != nil {
		err = fmt.Errorf("accelerate: rank %d, micro-batch %d: %w", a.rank, leaf, err)
	}
	return sum, err
}

// NoSync calls f and returns its error. Backward passes inside f add gradients and exchange
// nothing, even with last set. The next pass outside, or Reduce, exchanges the sums.
func (a *Accelerator) NoSync(f func() error) error {
	a.noSync++
	defer func() { a.noSync-- }()
	return f()
}

// Join tells a loop whose ranks may have unequal numbers of batches whether to take another
// step: more is true on every rank as long as have is true on one. A rank without data
// continues with no batches, which Accumulate allows, until all ranks have finished. It is
// collective.
func (a *Accelerator) Join(ctx context.Context, have bool) (more bool, err error) {
	more = have
	return more, a.Agree(ctx, &more)
}

// reject aborts the group for an error of this rank, for which the others would wait, and
// returns it.
func (a *Accelerator) reject(err error) error {
	a.Abort(err)
	return err
}
