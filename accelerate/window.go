// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/pp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// WindowLoss is the loss of the micro-batches of an optimizer step on all ranks. It has the
// same bits on every rank and on any number of ranks.
type WindowLoss struct {
	Sum   float64 // of all loss terms, micro-batch by micro-batch in their order
	Count float64 // loss terms, or the sum of their weights
}

// Mean is the mean loss; NaN if there was no term.
func (w WindowLoss) Mean() float64 { return w.Sum / w.Count }

// Output is the result of a loss function: the sum of a batch's loss terms, a tensor of one element, and their number,
// or the sum of their weights. In a stage of a pipeline that is not the last (nn.Ctx.WithStage) it is what the model
// passes on.
type Output = pp.Output

// LossFunc computes the loss of a batch. Its sum is read after the last backward pass of the window: until then the
// host need not wait for the device. In a pipeline the first rank has another stage than the last: each calls it, with
// the context of a stage, for every micro-batch and each of its stages.
type LossFunc func(c *nn.Ctx, b *data.Batch) (Output, error)

// WindowOptions are what RunWindow and StartWindow do with the micro-batches of a window.
type WindowOptions struct {
	Loss LossFunc
	// Sums is how many sums each Output has besides the loss: see Numbers.Sums.
	Sums int
	// Between is called between two micro-batches of this rank; nil means nothing. In a pipeline, whose micro-batches
	// overlap, the calls come after the last of them.
	Between func() error
	// Figures of this rank are replaced by their sums over all ranks, as the losses are.
	Figures []float64
	// DataErr is why this rank could not read its batches, and passes none. The window then ends on all ranks with a
	// *DataError, before it changes anything.
	DataErr error
	// TryMemory ends the window on all ranks with a *MemoryError, instead of an abort, if a pass of some rank runs out
	// of memory. The ranks then exchange gradients after the last pass, not during it. It is not for sharded models,
	// pipelines, divided matrices or tokens, whose ranks exchange something in each pass.
	TryMemory bool
}

// Accumulate is RunWindow with a loss that has Batch.Count terms. It does not serve pipelines: their stages pass on
// other things than a loss.
func (a *Accelerator) Accumulate(ctx context.Context, batches []*data.Batch,
	loss func(c *nn.Ctx, b *data.Batch) *tensor.Tensor) (WindowLoss, error) {
	if a.pipeline != nil {
		return WindowLoss{}, a.reject(errors.New("accelerate: Accumulate under pp_size: want RunWindow, whose loss " +
			"function gives what a stage passes on"))
	}
	counted := func(c *nn.Ctx, b *data.Batch) (Output, error) {
		return Output{Loss: loss(c, b), Count: b.Count}, nil
	}
	return a.RunWindow(ctx, batches, WindowOptions{Loss: counted})
}

// RunWindow runs the forward and backward passes of one optimizer step. Loss is called for each of this rank's
// micro-batches in a new memory scope. Gradients are added in the tree of docs/numerics.md and exchanged only during
// the last pass. Afterwards the gradients of the parameters are those of the mean over all terms of all ranks (with
// local_sgd_steps over those of this rank); gradients of earlier windows are discarded.
//
// A rank passes at most as many batches as Layout has accumulation steps. With fewer, or none, its missing gradients
// are left out of the sum, so that ranks may run out of data at different times (see Join). It is collective; if one
// rank fails, the others return too. After a *DataError the group continues.
//
// It waits for the device, to read the losses. StartWindow does not.
func (a *Accelerator) RunWindow(ctx context.Context, batches []*data.Batch, o WindowOptions) (WindowLoss, error) {
	s, err := a.StartWindow(ctx, batches, o)
	if err != nil {
		return WindowLoss{}, err
	}
	defer s.Free()
	if err := s.readLosses(ctx); err != nil {
		return WindowLoss{}, a.reject(err)
	}
	return s.numbers.Loss, nil
}

// StartWindow is RunWindow that leaves the losses on the device where it can, and the rest of the step to a
// PendingStep.
func (a *Accelerator) StartWindow(ctx context.Context, batches []*data.Batch, o WindowOptions) (*PendingStep, error) {
	s, err := o.run(ctx, a, batches)
	if err == nil {
		return s, nil
	}
	_, unread := errors.AsType[*DataError](err)
	if _, short := errors.AsType[*MemoryError](err); !unread && !short { // those are errors on all ranks already
		a.Abort(err)
	}
	return nil, err
}

// run checks a window, runs its passes and completes its gradients.
func (o WindowOptions) run(ctx context.Context, a *Accelerator, batches []*data.Batch) (*PendingStep, error) {
	layout := a.layout
	if err := o.check(a, batches); err != nil {
		return nil, err
	}
	if err := a.checkLengths(batches); err != nil {
		return nil, err
	}
	var err error
	if err := a.BeginWindow(ctx); err != nil {
		return nil, err
	}
	a.ZeroGrad()
	if batches, err = o.padBatches(ctx, a, batches); err != nil {
		return nil, err
	}
	figures := o.Figures
	if !a.speaks() { // another has the same
		figures = make([]float64, len(figures))
	}
	s := &PendingStep{a: a, shared: newWindowFigures(int(layout.MicroBatches()), o.Sums, figures), figures: o.Figures,
		batches: batches, layout: layout, dataErr: o.DataErr,
		block: tensor.Zeros(a.ctx.NoGrad(), tensor.Float64, tensor.ClipLen+len(batches)*(1+o.Sums))}
	complete := false
	defer func() {
		if !complete {
			s.Free()
		}
	}()
	if err := s.expect(ctx); err != nil {
		return nil, err
	}
	passes := s.passes
	if a.pipeline != nil {
		passes = s.pipelined
	}
	if o.TryMemory {
		err = s.tryPasses(ctx, o, passes)
	} else {
		err = passes(ctx, o)
	}
	if err != nil {
		if _, short := errors.AsType[*MemoryError](err); short {
			a.ZeroGrad() // the gradients of passes that had room
		}
		return nil, err
	}
	if err := a.Reduce(ctx); err != nil {
		return nil, err
	}
	if s.canWait() {
		s.rescale(s.shared.total().Count)
		copy(o.Figures, s.shared.figures())
	} else if err := s.readLosses(ctx); err != nil {
		return nil, err
	}
	complete, a.pending, a.waiting = true, s, true
	return s, nil
}

// check refuses what no window can be made of.
func (o WindowOptions) check(a *Accelerator, batches []*data.Batch) error {
	switch steps := a.layout.AccumulationSteps; {
	case a.tree == nil:
		return errors.New("accelerate: a window before Prepare: want a prepared model")
	case o.Loss == nil:
		return errors.New("accelerate: WindowOptions.Loss is nil: want the loss of a micro-batch")
	case o.Sums > 0 && (a.pipeline != nil || a.context != nil):
		return errors.New("accelerate: WindowOptions.Sums under pp_size or cp_size: want none there")
	case len(batches) > steps:
		return fmt.Errorf("accelerate: %d micro-batches for one step of rank %d: want at most %d "+
			"(gradient_accumulation_steps)", len(batches), a.Rank(), steps)
	}
	for i, b := range batches {
		err := errors.New("the batch is nil: want a shorter list of batches if there is no data")
		if b != nil {
			err = checkCount("the batch", b.Count)
		}
		if err != nil {
			return &MicroBatchError{Rank: a.Rank(), MicroBatch: a.layout.MicroBatch(i), Err: err}
		}
	}
	return nil
}

// CheckLoss returns an error if the value is not a sum of so many loss terms.
func CheckLoss(sum *tensor.Tensor, count float64) error {
	switch {
	case sum == nil:
		return errors.New("the loss function returned no loss: want the sum of the batch's loss terms")
	case sum.Numel() != 1:
		return fmt.Errorf("the loss has shape %v: want the sum over the batch, one element", sum.Shape())
	}
	return checkCount("the loss", count)
}

func checkCount(whose string, count float64) error {
	if !(count >= 0) || !finite(count) {
		return fmt.Errorf("%s counts %g terms: want a finite number of at least 0", whose, count)
	}
	return nil
}

// checked is the loss function with a check of what it returns.
func (o WindowOptions) checked(c *nn.Ctx, b *data.Batch) (out Output, err error) {
	if out, err = o.Loss(c, b); err == nil && out.Hidden == nil {
		err = CheckLoss(out.Loss, out.Count)
	}
	if err == nil && len(out.Sums) != o.Sums {
		err = fmt.Errorf("the loss function returned %d sums beside the loss: want %d", len(out.Sums), o.Sums)
	}
	return out, err
}

// pipelined is passes where the micro-batches go through the stages of a pipeline.
func (s *PendingStep) pipelined(ctx context.Context, o WindowOptions) error {
	a := s.a
	run := func(c *nn.Ctx, _ pp.Model, b *data.Batch) (Output, error) { return o.checked(c, b) }
	losses, err := a.pipeline.WithForward(run).Step(ctx, s.batches, a.scaler.Factor()/divisor(s.expected))
	if err != nil {
		return err
	}
	s.sums = make([]float64, len(s.batches))
	for i, loss := range losses { // of the last stage's rank
		if a.ContextRanks().Rank() > 0 { // the first has them too
			continue
		}
		if s.sums[i] = loss.Sum; s.batches[i].MicroBatch >= 0 {
			s.shared.setCount(s.layout.MicroBatch(i), loss.Count)
		}
	}
	for i := 1; i < len(s.batches) && o.Between != nil; i++ {
		if err := o.Between(); err != nil {
			return err
		}
	}
	return nil
}

// passes runs the forward and backward passes of this rank's micro-batches.
func (s *PendingStep) passes(ctx context.Context, o WindowOptions) error {
	for i, b := range s.batches {
		microBatch := s.layout.MicroBatch(i)
		if b.MicroBatch < 0 {
			microBatch = -1
		}
		if i > 0 && o.Between != nil {
			if err := o.Between(); err != nil {
				return err
			}
		}
		last, at := i == len(s.batches)-1, tensor.ClipLen+i
		loss := tensor.Slice(s.a.ctx.NoGrad(), s.block, 0, at, at+1)
		var count float64
		var err error
		if s.a.context != nil {
			count, err = o.dividedMicroBatch(ctx, s.a, b, loss, s.expected, microBatch, last)
		} else {
			count, err = o.microBatch(s.a, b, slots{loss, s.slotsOfSums(i)}, s.expected, microBatch, last)
		}
		if err != nil {
			return &MicroBatchError{Rank: s.a.Rank(), MicroBatch: microBatch, Err: err}
		}
		if microBatch >= 0 {
			s.shared.setCount(microBatch, count)
		}
	}
	return nil
}

// expect adds up the terms that the collators counted, micro-batch by micro-batch, so that the bits of fractions do not
// depend on the ranks. With them the ranks learn whether one of them has no data. Ranks that step on their own learn it
// with the losses, before they step.
func (s *PendingStep) expect(ctx context.Context) error {
	microBatches := s.shared.microBatches
	counts := make([]float64, microBatches+1)
	if s.dataErr != nil {
		counts[microBatches] = 1
		s.shared.setUnread()
	}
	for i, b := range s.batches {
		if b.MicroBatch >= 0 && s.a.speaks() {
			counts[s.layout.MicroBatch(i)] = b.Count
		}
	}
	averages := s.a.strategy.Averages()
	if s.onOwn = averages != nil && averages.OnOwn(); !s.onOwn {
		if err := s.a.LossRanks().SumFloats(ctx, counts, "loss terms"); err != nil {
			return err
		}
		unread := counts[microBatches] > 0
		if err := s.a.TensorRanks().Agree(ctx, &unread); err != nil { // they read the same data, each by itself
			return err
		}
		if unread {
			return s.a.ShareDataError(ctx, s.dataErr)
		}
	}
	for _, n := range counts[:microBatches] {
		s.expected += n
	}
	return nil
}

// speaks reports whether this rank reports the counts and figures of its batches: of ranks that share them, the first
// does.
func (a *Accelerator) speaks() bool {
	return a.PipelineRanks().Rank() == 0 && a.ContextRanks().Rank() == 0
}

// divisor is what the sum of so many loss terms is divided by: 1 where there are none.
func divisor(count float64) float64 {
	if count > 0 {
		return count
	}
	return 1
}

// padBatches gives each rank as many batches as any other has, where the ranks have to compute together, or pipelines
// exchange gradients of several stages in each pass: a rank without one repeats its last, which counts nowhere. One
// that could not read its data has none: the window ends before ranks compute.
func (o WindowOptions) padBatches(ctx context.Context, a *Accelerator, batches []*data.Batch) ([]*data.Batch, error) {
	if !a.GathersParameters() && (a.pipeline == nil || !a.sharding.Strategy.ShardsGradients()) {
		return batches, nil
	}
	most := []int64{int64(len(batches))}
	h := a.ShardRanks().Group().AllReduce(comm.Of(most), comm.Max, comm.Label("micro-batches"))
	if err := h.Wait(ctx); err != nil {
		return nil, err
	}
	for o.DataErr == nil && len(batches) < int(most[0]) {
		if len(batches) == 0 {
			return nil, fmt.Errorf("accelerate: rank %d has no batch in this step where others have %d: want at least "+
				"one to repeat, since a sharded model computes on all ranks at once", a.Rank(), most[0])
		}
		again := *batches[len(batches)-1]
		again.MicroBatch = -1
		batches = append(slices.Clip(batches), &again)
	}
	return batches, nil
}

// slots are where the device keeps a micro-batch's loss and its other sums.
type slots struct {
	loss *tensor.Tensor
	sums []*tensor.Tensor
}

// slotsOfSums are those of this rank's micro-batch i.
func (s *PendingStep) slotsOfSums(i int) (list []*tensor.Tensor) {
	at := tensor.ClipLen + len(s.batches) + i*s.shared.sums
	for j := range s.shared.sums {
		list = append(list, tensor.Slice(s.a.ctx.NoGrad(), s.block, 0, at+j, at+j+1))
	}
	return list
}

// put copies one element.
func put(c *tensor.Ctx, slot, t *tensor.Tensor) {
	tensor.CopyInto(c, tensor.Reshape(c, slot, t.Shape()...), t)
}

// microBatch runs the forward and backward pass of a micro-batch. Its sums stay on the device, in slots.
func (o WindowOptions) microBatch(a *Accelerator, b *data.Batch, to slots, expected float64, microBatch int,
	last bool) (count float64, err error) {
	fault := tensor.Recover(func() { // the caller's loss may panic with whatever it likes
		_, err = a.TrainCtx(b.Position).TryScope(func(c *nn.Ctx) ([]*tensor.Tensor, error) {
			out, err := o.checked(c, b)
			if err != nil {
				return nil, err
			}
			count = out.Count
			put(c.Ctx.NoGrad(), to.loss, out.Loss)
			for i, sum := range out.Sums {
				put(c.Ctx.NoGrad(), to.sums[i], sum)
			}
			a.Backward(c, out.Loss, expected, microBatch, last)
			return nil, nil
		})
	})
	if fault != nil {
		err = b.Explain(fault)
	}
	return count, err
}

// MicroBatchError is the failure of one micro-batch of a window.
type MicroBatchError struct {
	Rank, MicroBatch int // the micro-batch is counted over all ranks
	Err              error
}

func (e *MicroBatchError) Error() string {
	return fmt.Sprintf("accelerate: rank %d, micro-batch %d: %v", e.Rank, e.MicroBatch, e.Err)
}

// Unwrap gives Err.
func (e *MicroBatchError) Unwrap() error { return e.Err }

// windowFigures is what the ranks tell each other about a window: for each micro-batch its loss sum and count, after
// them how many ranks could not read their data, for each micro-batch its other sums, and then the caller's figures. A
// rank fills in its own micro-batches and leaves zeros elsewhere.
type windowFigures struct {
	all          []float64
	microBatches int
	sums         int // of a micro-batch, beside the loss
}

func newWindowFigures(microBatches, sums int, figures []float64) windowFigures {
	own := (2+sums)*microBatches + 1
	all := make([]float64, own, own+len(figures))
	return windowFigures{append(all, figures...), microBatches, sums}
}

// others are the sums of a micro-batch beside its loss.
func (f windowFigures) others(microBatch int) []float64 {
	at := 2*f.microBatches + 1 + microBatch*f.sums
	return f.all[at : at+f.sums]
}

func (f windowFigures) setCount(microBatch int, count float64) { f.all[2*microBatch+1] = count }

// setSum refuses a loss without terms: its mean would be infinite, and its gradient is wrong by any factor.
func (f windowFigures) setSum(microBatch int, sum float64) error {
	if f.all[2*microBatch] = sum; f.all[2*microBatch+1] == 0 && sum != 0 {
		return fmt.Errorf("the loss sum is %g over 0 terms: want a collator that sets Batch.Count, or a loss "+
			"function that returns a count", sum)
	}
	return nil
}

func (f windowFigures) setUnread() { f.all[2*f.microBatches] = 1 }

func (f windowFigures) unread() bool { return f.all[2*f.microBatches] > 0 }

func (f windowFigures) figures() []float64 { return f.all[(2+f.sums)*f.microBatches+1:] }

// total adds the micro-batches in order, so that its bits do not depend on the ranks.
func (f windowFigures) total() (w WindowLoss) {
	for microBatch := range f.microBatches {
		w.Sum += f.all[2*microBatch]
		w.Count += f.all[2*microBatch+1]
	}
	return w
}

// totals add the other sums of the micro-batches in their order.
func (f windowFigures) totals() []float64 {
	all := make([]float64, f.sums)
	for microBatch := range f.microBatches {
		for i, x := range f.others(microBatch) {
			all[i] += x
		}
	}
	return all
}

// NoSync calls f and returns its error. Backward passes inside f add gradients and exchange
// nothing, even with last set. The next pass outside, or Reduce, exchanges the sums. Gradients that are sharded have no
// place for a rank's own sums: they are exchanged all the same, in every pass. The sums are the same.
func (a *Accelerator) NoSync(f func() error) error {
	a.noSync++
	defer func() { a.noSync-- }()
	return f()
}
