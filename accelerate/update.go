// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"math"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Update is the rest of an optimizer step after the last backward pass of a window: Clip, Step and Read, in this order.
// What the device can do by itself is only queued: Read, at the end, is the one place where the host waits for it. It
// skips a step whose loss or gradients are not finite, and one without loss terms.
//
// Where the device cannot, the numbers are read earlier, with the same bits in the end: losses in Pass.Start if ranks
// exchange them, or if a micro-batch has no loss terms; norms in Clip where gradients are sharded, ranks step on their
// own (local_sgd_steps), or the optimizer does not step alone (optim.Optimizer.StepsAlone).
type Update struct {
	a        *Accelerator
	block    *tensor.Tensor // what optim.MeasureGrads writes, and the losses of this rank's micro-batches
	shared   windowFigures
	figures  []float64
	batches  []*data.Batch
	layout   samplers.Layout
	expected float64 // loss terms by the collators, of all ranks: what passes divide by before losses are known
	onOwn    bool
	dataErr  error // Pass.DataErr

	numbers   Numbers
	maxNorm   float64
	clipped   bool // Clip was called
	rescaled  bool // gradients are those of the counts of the loss function
	summed    bool // the losses are known
	known     bool // all numbers are
	onDevice  bool // the device decides whether to step
	unsettled bool // it was told to, and settle was not called
}

// Numbers are what a step computed, the same on all ranks.
type Numbers struct {
	Loss       WindowLoss
	GradNorm   float64 // L2 norm of all gradients before clipping, without the loss scale
	ClipFactor float64 // by which the optimizer multiplied them; divided by the loss scale under fp16
	LossScale  float64 // of fp16 in this step; 0 without
	Finite     bool    // loss and norm are; else the step was left out
	Overflow   bool    // the step was left out since the gradients were too large for fp16; the scale is halved
	Empty      bool    // the step was left out since no rank had a loss term; the scale of fp16 stays as it is
}

// canWait reports whether nobody needs the losses before the end of the step.
func (u *Update) canWait() bool {
	if u.a.Loss().group != nil {
		return false
	}
	for i := range u.batches {
		if leaf := u.layout.Leaf(i); u.batches[i].Leaf < 0 || u.shared.all[2*leaf+1] <= 0 {
			return false
		}
	}
	return len(u.batches) > 0
}

// takeLosses enters the losses of this rank's micro-batches.
func (u *Update) takeLosses(sums []float64) error {
	for i, sum := range sums {
		if u.batches[i].Leaf < 0 {
			continue
		}
		leaf := u.layout.Leaf(i)
		if err := u.shared.setSum(leaf, sum); err != nil {
			return &MicroBatchError{Rank: u.a.rank, Leaf: leaf, Err: err}
		}
	}
	return nil
}

// readLosses waits for the device and tells the other ranks.
func (u *Update) readLosses(ctx context.Context) error {
	if u.summed {
		return nil
	}
	sums := tensor.ToSlice[float64](u.a.ctx.NoGrad(), u.block)[tensor.ClipLen:]
	if err := u.takeLosses(sums); err != nil {
		return err
	}
	counted := u.shared.total().Count
	if err := u.a.Loss().SumFloats(ctx, u.shared.all, "losses of a step"); err != nil {
		return err
	}
	if u.shared.unread() {
		return ShareDataError(ctx, u.a, u.dataErr)
	}
	copy(u.figures, u.shared.figures())
	u.numbers.Loss, u.summed = u.shared.total(), true
	if !u.onOwn {
		counted = u.numbers.Loss.Count
	}
	u.a.empty = emptiness{all: u.numbers.Loss.Count == 0, own: counted == 0}
	u.rescale(counted)
	return nil
}

// rescale corrects the gradients of a loss function that counts in its own way.
func (u *Update) rescale(counted float64) {
	done := u.rescaled
	if u.rescaled = true; done || counted == u.expected || counted <= 0 {
		return
	}
	for _, p := range u.a.Trained() {
		if g := p.Grad(); g != nil {
			tensor.ScaleInto(u.a.ctx.NoGrad(), g, divisor(u.expected)/counted)
		}
	}
}

// Clip is Accelerator.ClipGradNorm, which it calls where it has to wait.
func (u *Update) Clip(ctx context.Context, maxNorm float64) error {
	u.maxNorm, u.clipped = maxNorm, true
	a := u.a
	if s := a.scaler; s != nil {
		u.numbers.LossScale = s.Scale
	}
	if !a.strategy.Local() || a.opt == nil || !a.opt.StepsAlone() ||
		u.summed && (a.empty.all || !finite(u.meanLoss())) {
		if err := u.readLosses(ctx); err != nil {
			return a.reject(err)
		}
		norm, err := a.ClipGradNorm(ctx, maxNorm)
		if err != nil {
			return a.reject(err)
		}
		u.know(norm)
		return nil
	}
	defer a.trace.Region(a.rank, "clip")()
	c := a.ctx.NoGrad()
	var losses *tensor.Tensor
	if !u.summed {
		losses = tensor.Slice(c, u.block, 0, tensor.ClipLen, tensor.ClipLen+len(u.batches))
	}
	clip := tensor.Slice(c, u.block, 0, 0, tensor.ClipLen)
	optim.MeasureGrads(c, clip, a.Trained(), losses, maxNorm, a.scaler.factor())
	u.onDevice = true
	return nil
}

// meanLoss is 0 of no terms, which are finite.
func (u *Update) meanLoss() float64 {
	if u.numbers.Loss.Count == 0 {
		return 0
	}
	return u.numbers.Loss.Mean()
}

// know enters the norm, behind the losses.
func (u *Update) know(norm float64) {
	n, loss := &u.numbers, finite(u.meanLoss())
	n.GradNorm = norm
	n.ClipFactor = optim.ClipFactor(norm, u.maxNorm) / u.a.scaler.factor()
	n.Empty = u.a.empty.all
	n.Finite = n.Empty || loss && finite(norm)
	n.Overflow = u.a.scaler != nil && loss && !n.Finite
	u.known = true
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// Step is Accelerator.Step, unless loss or norm is not finite or there is no loss term. It follows Clip, and is
// collective where the model is sharded.
func (u *Update) Step(ctx context.Context) error {
	a := u.a
	if !u.onDevice {
		if u.numbers.Finite || u.numbers.Overflow {
			if err := a.Step(ctx); err != nil {
				return a.reject(err)
			}
		}
		return nil
	}
	defer a.trace.collectives(a.rank, a.group)
	defer a.trace.Region(a.rank, "optimizer")()
	clip := tensor.Slice(a.ctx.NoGrad(), u.block, 0, 0, tensor.ClipLen)
	a.opt.StepBy(a.ctx, clip, u.maxNorm > 0 || a.scaler.factor() != 1)
	u.unsettled = true
	return nil
}

// Read waits for the device and returns the numbers of the step. It follows Clip, and comes after Step; whoever needs
// the numbers before may call it there too, and makes the host wait there. An overflow at the smallest loss scale of
// fp16 is a *LossScaleError, on all ranks.
func (u *Update) Read(ctx context.Context) (Numbers, error) {
	if !u.known {
		done := false
		defer func() {
			if !done && u.unsettled { // a kernel faulted, and the device has left out the step
				u.unsettled = false
				u.a.opt.TakeBack()
			}
		}()
		all := tensor.ToSlice[float64](u.a.ctx.NoGrad(), u.block)
		done = true
		if !u.summed {
			if err := u.takeLosses(all[tensor.ClipLen:]); err != nil {
				return Numbers{}, u.a.reject(err)
			}
			u.numbers.Loss, u.summed = u.shared.total(), true
		}
		u.know(all[tensor.ClipNorm])
	}
	if u.unsettled {
		u.unsettled = false
		u.settle()
	}
	if u.a.scaler != nil {
		if err := u.a.scaler.check(&u.numbers); err != nil {
			return Numbers{}, err
		}
	}
	return u.numbers, nil
}

// settle does what the host has to do for a step that the device did, or left out.
func (u *Update) settle() {
	a, n := u.a, &u.numbers
	if !n.Finite {
		a.opt.TakeBack()
	}
	if a.scaler != nil && (n.Finite || n.Overflow) {
		a.scaler.update(n.Overflow)
	}
	if a.stats != nil && n.Finite {
		a.stats.track()
	}
}

// Free gives up what the step keeps on the device.
func (u *Update) Free() {
	if u.block != nil {
		u.block.Free()
		u.block = nil
	}
}
