// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// PendingStep is the rest of an optimizer step after the last backward pass of a window: Clip, Step and Read, in this
// order, before ZeroGrad and the next window; all else is an error. Everything that the device can do without the host
// is only queued: only Read, at the end, waits for it. It skips a step whose loss or gradients are not finite, and one
// without loss terms.
//
// Where the device cannot, the numbers are read earlier, with the same bits in the end: losses in StartWindow if ranks
// exchange them, or if a micro-batch has no loss terms; norms in Clip where gradients are sharded, ranks step on their
// own (local_sgd_steps), or the optimizer does not step alone (optim.Optimizer.StepsAlone).
type PendingStep struct {
	a        *Accelerator
	block    *tensor.Tensor // what optim.MeasureGrads writes, and the losses of this rank's micro-batches
	shared   windowFigures
	figures  []float64
	batches  []*data.Batch
	sums     []float64 // losses of the micro-batches that a pipeline ran; nil: they are in block
	layout   samplers.WindowLayout
	expected float64 // loss terms by the collators, of all ranks: what passes divide by before losses are known
	onOwn    bool
	dataErr  error // WindowOptions.DataErr

	numbers   Numbers
	maxNorm   float64
	phase     phase
	rescaled  bool // gradients are those of the counts of the loss function
	summed    bool // the losses are known
	known     bool // all numbers are
	onDevice  bool // the device decides whether to step
	unsettled bool // it was told to, and settle was not called
}

// phase is how far a step came.
type phase int

const (
	beforeClip phase = iota
	afterClip
	afterStep
)

func (p phase) String() string { return [...]string{"before Clip", "after Clip", "after Step"}[p] }

// enter refuses a method out of order: it comes in a phase from first to last of the accelerator's window.
func (s *PendingStep) enter(method string, first, last phase) error {
	switch {
	case s.a.pending != s:
		return s.a.reject(fmt.Errorf("accelerate: PendingStep.%s after its window: want it before Free, ZeroGrad, "+
			"Prepare and the next window", method))
	case s.phase < first || s.phase > last:
		return s.a.reject(fmt.Errorf("accelerate: PendingStep.%s %v: want Clip, Step and Read in this order, and "+
			"only Read again", method, s.phase))
	}
	return nil
}

// Numbers are the results of a step, the same on all ranks.
type Numbers struct {
	Loss       WindowLoss
	Sums       []float64 // of other numbers of the loss terms, as WindowOptions.Sums says
	GradNorm   float64   // L2 norm of all gradients before clipping, without the loss scale
	ClipFactor float64   // by which the optimizer multiplied them; divided by the loss scale under fp16
	LossScale  float64   // of fp16 in this step; 0 without
	Finite     bool      // loss and norm are; else the step was left out
	Overflow   bool      // the step was left out since the gradients were too large for fp16; the scale is halved
	Empty      bool      // the step was left out since no rank had a loss term; the scale of fp16 stays unchanged
}

// MicroBatchLosses are the sums of the loss terms of the window's micro-batches over all ranks, in their order. Call it
// after Read.
func (s *PendingStep) MicroBatchLosses() []float64 {
	losses := make([]float64, s.shared.microBatches)
	for i := range losses {
		losses[i] = s.shared.all[2*i]
	}
	return losses
}

// canWait reports whether nobody needs the losses before the end of the step.
func (s *PendingStep) canWait() bool {
	if s.a.LossRanks().Group() != nil {
		return false
	}
	for i := range s.batches {
		if microBatch := s.layout.MicroBatch(i); s.batches[i].MicroBatch < 0 || s.shared.all[2*microBatch+1] <= 0 {
			return false
		}
	}
	return len(s.batches) > 0
}

// takeLosses enters the losses of this rank's micro-batches, and behind them their other sums.
func (s *PendingStep) takeLosses(sums []float64) error {
	for i, b := range s.batches {
		if b.MicroBatch < 0 {
			continue
		}
		microBatch := s.layout.MicroBatch(i)
		if err := s.shared.setSum(microBatch, sums[i]); err != nil {
			return &MicroBatchError{Rank: s.a.Rank(), MicroBatch: microBatch, Err: err}
		}
		copy(s.shared.others(microBatch), sums[len(s.batches)+i*s.shared.sums:])
	}
	return nil
}

// sum enters the sums over all micro-batches.
func (s *PendingStep) sum() {
	s.numbers.Loss, s.numbers.Sums, s.summed = s.shared.total(), s.shared.totals(), true
}

// readLosses waits for the device and tells the other ranks.
func (s *PendingStep) readLosses(ctx context.Context) error {
	if s.summed {
		return nil
	}
	sums := s.sums
	if sums == nil {
		sums = tensor.ToSlice[float64](s.a.ctx.NoGrad(), s.block)[tensor.ClipLen:]
	}
	if err := s.takeLosses(sums); err != nil {
		return err
	}
	counted := s.shared.total().Count
	if err := s.a.LossRanks().SumFloats(ctx, s.shared.all, "losses of a step"); err != nil {
		return err
	}
	if s.shared.unread() {
		return s.a.ShareDataError(ctx, s.dataErr)
	}
	copy(s.figures, s.shared.figures())
	s.sum()
	if !s.onOwn {
		counted = s.numbers.Loss.Count
	}
	s.a.empty = emptiness{all: s.numbers.Loss.Count == 0, own: counted == 0}
	s.rescale(counted)
	return nil
}

// rescale corrects the gradients of a loss function that counts in its own way.
func (s *PendingStep) rescale(counted float64) {
	done := s.rescaled
	if s.rescaled = true; done || counted == s.expected || counted <= 0 {
		return
	}
	for _, p := range s.a.summed() {
		if g := p.Grad(); g != nil {
			tensor.ScaleInto(s.a.ctx.NoGrad(), g, divisor(s.expected)/counted)
		}
	}
}

// Clip is Accelerator.ClipGradNorm, which it calls where it has to wait.
func (s *PendingStep) Clip(ctx context.Context, maxNorm float64) error {
	if err := s.enter("Clip", beforeClip, beforeClip); err != nil {
		return err
	}
	s.maxNorm, s.phase = maxNorm, afterClip
	a := s.a
	if scaler := a.scaler; scaler != nil {
		s.numbers.LossScale = scaler.Scale
	}
	if !a.strategy.Local() || a.opt == nil || !a.opt.StepsAlone() ||
		s.summed && (a.empty.all || !finite(s.meanLoss())) {
		if err := s.readLosses(ctx); err != nil {
			return a.reject(err)
		}
		norm, err := a.ClipGradNorm(ctx, maxNorm)
		if err != nil {
			return a.reject(err)
		}
		s.know(norm)
		return nil
	}
	defer a.trace.Region(a.Rank(), "clip")()
	c := a.ctx.NoGrad()
	var losses *tensor.Tensor
	if !s.summed {
		losses = tensor.Slice(c, s.block, 0, tensor.ClipLen, tensor.ClipLen+len(s.batches))
	}
	clip := tensor.Slice(c, s.block, 0, 0, tensor.ClipLen)
	optim.MeasureGrads(c, clip, a.Trained(), losses, maxNorm, a.scaler.Factor())
	s.onDevice = true
	return nil
}

// meanLoss is 0 of no terms, which are finite.
func (s *PendingStep) meanLoss() float64 {
	if s.numbers.Loss.Count == 0 {
		return 0
	}
	return s.numbers.Loss.Mean()
}

// know enters the norm, after the losses.
func (s *PendingStep) know(norm float64) {
	n, loss := &s.numbers, finite(s.meanLoss())
	n.GradNorm = norm
	n.ClipFactor = optim.ClipFactor(norm, s.maxNorm) / s.a.scaler.Factor()
	n.Empty = s.a.empty.all
	n.Finite = n.Empty || loss && finite(norm)
	n.Overflow = s.a.scaler != nil && loss && !n.Finite
	s.known = true
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// Step is Accelerator.Step, unless loss or norm is not finite or there is no loss term. It follows Clip, or
// does not clip, and is collective where the model is sharded.
func (s *PendingStep) Step(ctx context.Context) error {
	a := s.a
	if err := s.enter("Step", beforeClip, afterClip); err != nil {
		return err
	}
	if s.phase == beforeClip {
		if err := s.Clip(ctx, 0); err != nil {
			return err
		}
	}
	s.phase = afterStep
	if !s.onDevice {
		step := a.Step
		if !s.numbers.Finite && !s.numbers.Overflow {
			step = func(ctx context.Context) error { return a.endWindow(ctx, true) }
		}
		if err := step(ctx); err != nil {
			return a.reject(err)
		}
		return nil
	}
	defer a.trace.collectives(a.Rank(), a.Group())
	defer a.trace.Region(a.Rank(), "optimizer")()
	clip := tensor.Slice(a.ctx.NoGrad(), s.block, 0, 0, tensor.ClipLen)
	a.opt.StepBy(a.ctx, clip, s.maxNorm > 0 || a.scaler.Factor() != 1)
	s.unsettled = true
	a.countStep()
	return nil
}

// Read waits for the device and returns the numbers of the step. Call it after Clip and Step. If you need the numbers
// before Step, call it there too; the host then waits there. An overflow at the smallest loss scale of fp16 is a
// *LossScaleError, on all ranks.
func (s *PendingStep) Read(ctx context.Context) (Numbers, error) {
	if err := s.enter("Read", afterClip, afterStep); err != nil {
		return Numbers{}, err
	}
	if !s.known {
		done := false
		defer func() {
			if !done && s.unsettled { // a kernel faulted, and the device has left out the step
				s.unsettled = false
				s.a.opt.TakeBack()
			}
		}()
		all := tensor.ToSlice[float64](s.a.ctx.NoGrad(), s.block)
		done = true
		if !s.summed {
			if err := s.takeLosses(all[tensor.ClipLen:]); err != nil {
				return Numbers{}, s.a.reject(err)
			}
			s.sum()
		}
		s.know(all[tensor.ClipNorm])
	}
	if s.unsettled {
		s.unsettled, s.a.waiting = false, false
		s.settle()
	}
	if s.a.scaler != nil {
		if err := s.a.scaler.Check(s.numbers.Overflow, s.numbers.LossScale); err != nil {
			return Numbers{}, err
		}
	}
	return s.numbers, nil
}

// settle does what the host has to do for a step that the device did, or left out.
func (s *PendingStep) settle() {
	a, n := s.a, &s.numbers
	if !n.Finite {
		a.opt.TakeBack()
	}
	if a.scaler != nil && (n.Finite || n.Overflow) {
		a.scaler.Update(n.Overflow)
	}
	if a.stats != nil && n.Finite {
		a.stats.Track()
	}
}

// Free releases what the step keeps on the device.
func (s *PendingStep) Free() {
	if s.a.pending == s {
		s.a.pending = nil
	}
	if s.block != nil {
		s.block.Free()
		s.block = nil
	}
}
