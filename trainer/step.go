// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// step runs one optimizer step and reports whether the epoch has more.
func (r *run) step() (more bool, err error) {
	begin := time.Now()
	endData := r.prof.Region("data")
	w, batches, err := r.window()
	endData()
	if err != nil {
		return false, err
	}
	defer freeAll(batches)
	if err := r.fire(callbacks.StepBegin); err != nil {
		return false, err
	}
	r.acc.Ctx().SetStep(r.state.GlobalStep + 1)
	stats := callbacks.StepStats{Samples: w.Samples, LearningRate: r.learningRate()}
	sum, err := r.forwardBackward(batches, &stats)
	if err != nil {
		return false, err
	}
	if err := r.update(sum, &stats); err != nil {
		return false, err
	}
	if err := r.prof.Step(); err != nil {
		return false, err
	}
	r.count(w, sum, &stats, time.Since(begin))
	e := r.event()
	e.Step = stats
	return !w.LastOfEpoch, r.callbacks.Fire(callbacks.StepEnd, e)
}

// window takes the next window and this rank's batches of it.
func (r *run) window() (samplers.Window, []*data.Batch, error) {
	w, _ := r.stream.Next()
	batches := make([]*data.Batch, 0, len(w.Own))
	for range w.Own {
		b, err := r.loader.Next()
		if err != nil {
			freeAll(batches)
			if errors.Is(err, io.EOF) {
				err = errors.New("the loader ended before the run did")
			}
			return w, nil, fmt.Errorf("trainer: step %d: %w", r.state.GlobalStep+1, err)
		}
		batches = append(batches, b)
	}
	return w, batches, nil
}

func freeAll(batches []*data.Batch) {
	for _, b := range batches {
		b.Free()
	}
}

// forwardBackward runs the window's micro-batches. Each is seeded with 1/count of the whole
// window, so that gradients add up to those of one large batch.
func (r *run) forwardBackward(batches []*data.Batch, stats *callbacks.StepStats) (lossSum, error) {
	var count int64
	for _, b := range batches {
		count += b.Count
	}
	count, err := r.acc.SumCounts(r.ctx, count)
	if err != nil {
		return lossSum{}, err
	}
	shared := newWindowLoss(r.stream.Layout())
	for i, b := range batches {
		if i > 0 {
			if err := r.fire(callbacks.SubstepEnd); err != nil {
				return lossSum{}, err
			}
		}
		r.memory.see(b)
		err := r.guard(func() error {
			sum, n, err := r.microBatch(b, count, i == len(batches)-1)
			shared.set(b.Leaf, sum, n)
			return err
		})
		if err != nil {
			return lossSum{}, err
		}
		shared.addInput(b)
	}
	return r.reduce(shared, count, stats)
}

// reduce sums gradients, losses and counts over all ranks.
func (r *run) reduce(shared windowLoss, count int64, stats *callbacks.StepStats) (total lossSum, err error) {
	err = r.guard(func() error {
		if err := r.acc.Reduce(r.ctx); err != nil {
			return err
		}
		if err := r.acc.SumFloats(r.ctx, shared, "losses of a step"); err != nil {
			return err
		}
		total, stats.Tokens = shared.total(), shared.tokens()
		r.state.TotalFLOPs += 6 * shared.inputs() * float64(r.flopParams)
		if total.Count != count && total.Count > 0 { // a loss function that counts in its own way
			r.acc.ScaleGrads(float64(max(count, 1)) / float64(total.Count))
		}
		return nil
	})
	return total, err
}

// windowLoss is what the ranks exchange about a window: for each leaf its loss sum and count, the
// number of tokens, and the size of the main input. A rank fills in its own leaves and leaves
// zeros elsewhere.
type windowLoss []float64

func newWindowLoss(l samplers.Layout) windowLoss { return make(windowLoss, 2*l.Leaves()+2) }

func (w windowLoss) set(leaf int, sum float64, count int64) {
	w[2*leaf], w[2*leaf+1] = sum, float64(count)
}

// addInput counts tokens, and the numbers of what HuggingFace calls the main input: tokens, or pixels.
func (w windowLoss) addInput(b *data.Batch) {
	if ids := b.Tensors[data.InputIDs]; ids != nil {
		w[len(w)-2] += float64(ids.Numel())
		w[len(w)-1] += float64(ids.Numel())
	} else if pixels := b.Tensors[data.PixelValues]; pixels != nil {
		w[len(w)-1] += float64(pixels.Numel())
	}
}

func (w windowLoss) tokens() int64 { return int64(w[len(w)-2]) }

func (w windowLoss) inputs() float64 { return w[len(w)-1] }

// total adds the leaves in order, so that its bits do not depend on the ranks.
func (w windowLoss) total() (l lossSum) {
	for i := 0; i < len(w)-2; i += 2 {
		l.Sum += number(w[i])
		l.Count += int64(w[i+1])
	}
	return l
}

// microBatch runs forward and backward of one batch and returns its loss.
func (r *run) microBatch(b *data.Batch, windowCount int64, last bool) (sum float64, count int64, err error) {
	train := r.acc.TrainCtx(b.Position)
	if r.loss == nil {
		train = train.WithLossOnly()
	}
	train.Scope(func(c *nn.Ctx) []*tensor.Tensor {
		var loss *tensor.Tensor
		if loss, count, err = r.lossOf(c, b); err != nil {
			return nil
		}
		if sum = tensor.Item(c.Ctx, loss); count == 0 && sum != 0 {
			err = fmt.Errorf("trainer: step %d: the loss sum is %g over 0 terms: want a collator that sets Batch.Count, or a loss function that returns a count", r.state.GlobalStep+1, sum)
			return nil
		}
		r.acc.Backward(c, loss, windowCount, b.Leaf, last)
		return nil
	})
	return sum, count, err
}

// lossOf runs the model, and the user's loss function if there is one.
func (t *Trainer) lossOf(c *nn.Ctx, b *data.Batch) (*tensor.Tensor, int64, error) {
	out := t.model.Forward(c, b)
	return t.lossFrom(c, out, b)
}

func (t *Trainer) lossFrom(c *nn.Ctx, out models.Output, b *data.Batch) (*tensor.Tensor, int64, error) {
	loss, count := out.Loss, b.Count
	if t.loss != nil {
		loss, count = t.loss(c, out, b)
	}
	switch {
	case loss == nil:
		return nil, 0, fmt.Errorf("trainer: %T returned no loss: want labels in the batch, or WithLoss", t.model)
	case loss.Numel() != 1:
		return nil, 0, fmt.Errorf("trainer: the loss has shape %v: want the sum over the batch, one element", loss.Shape())
	case count < 0:
		return nil, 0, fmt.Errorf("trainer: the loss counts %d terms: want at least 0", count)
	}
	return loss, count, nil
}

// update clips gradients and steps the optimizer, unless loss or gradient is not finite.
func (r *run) update(sum lossSum, stats *callbacks.StepStats) error {
	err := r.guard(func() error {
		stats.GradNorm = r.acc.ClipGradNorm(r.args.MaxGradNorm)
		stats.ClipFactor = optim.ClipFactor(stats.GradNorm, r.args.MaxGradNorm)
		return nil
	})
	if err != nil {
		return err
	}
	stats.Loss = sum.mean()
	stats.Skipped = !finite(stats.Loss, stats.GradNorm)
	e := r.event()
	e.Step = *stats
	if err := r.callbacks.Fire(callbacks.PreOptimizerStep, e); err != nil {
		return err
	}
	if stats.Skipped {
		if err := r.nonfinite(stats); err != nil {
			return err
		}
	} else if err := r.guard(func() error { r.opt.ScaleLR(r.schedule.Factor(r.state.GlobalStep)); r.acc.Step(); return nil }); err != nil {
		return err
	}
	if err := r.callbacks.Fire(callbacks.OptimizerStep, e); err != nil {
		return err
	}
	r.acc.ZeroGrad()
	return nil
}

// nonfinite counts and reports a skipped step, and does what nonfinite_loss says.
func (r *run) nonfinite(stats *callbacks.StepStats) error {
	r.progress.Nonfinite++
	step := r.state.GlobalStep + 1
	r.log.Warn("loss or gradient is not finite: the step is skipped", "step", step, "loss", stats.Loss, "grad_norm", stats.GradNorm,
		"nonfinite_steps", r.progress.Nonfinite, "policy", string(r.args.NonfiniteLoss))
	r.bad = &NonfiniteError{Step: step, Loss: stats.Loss, GradNorm: stats.GradNorm, Checkpoint: r.checkpoint}
	if r.args.NonfiniteLoss == args.NonfiniteRaise {
		r.acc.ZeroGrad()
		return r.bad
	}
	return nil
}

// learningRate is that of the step to come, of the first group, as HuggingFace logs it.
func (r *run) learningRate() float64 {
	return r.opt.BaseLRs()[0] * r.schedule.Factor(r.state.GlobalStep)
}

// count updates the counters.
func (r *run) count(w samplers.Window, sum lossSum, stats *callbacks.StepStats, spent time.Duration) {
	s, p := r.state, &r.progress
	s.GlobalStep++
	s.Epoch = r.epochAfter(w)
	p.EpochEnded = false
	if !stats.Skipped {
		p.Loss.add(float64(sum.Sum), sum.Count)
	}
	r.logged.add(float64(sum.Sum), sum.Count)
	p.Samples += w.Samples
	p.Tokens += stats.Tokens
	p.Seconds += spent.Seconds()
	p.LastStep = lastStep{number(stats.GradNorm), stats.LearningRate, stats.Skipped}
	if r.args.IncludeNumInputTokensSeen == args.TokensSeenAll {
		s.NumInputTokensSeen += stats.Tokens
	}
}

// epochAfter is the number of epochs done after window w, with the fraction of its epoch's
// micro-batches.
func (r *run) epochAfter(w samplers.Window) float64 {
	b := int64(r.args.PerDeviceTrainBatchSize)
	done := w.Position - w.Epoch*r.stream.Samples() + w.Samples
	return float64(w.Epoch) + float64((done+b-1)/b)/float64(r.stream.MicroBatches())
}
