// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/feed"
	"github.com/lockstep-ml/lockstep/accelerate/precision"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/jsonfloat"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// step runs one optimizer step and reports whether the epoch has more.
func (r *run) step() (more bool, err error) {
	begin := r.now()
	endData := r.region("data")
	w, dataErr := r.windows.Next()
	endData()
	if dataErr != nil { // the other ranks learn it in the pass
		dataErr = fmt.Errorf("%s: %w", r.dataOption(), dataErr)
		w = new(feed.Window)
	}
	defer func() { w.Free() }()
	if err := r.fire(callbacks.StepBegin); err != nil {
		return false, err
	}
	r.acc.Ctx().SetStep(r.state.GlobalStep + 1)
	if err := r.acc.TrainWeights(r.ctx); err != nil {
		return false, fmt.Errorf("trainer: step %d: %w", r.state.GlobalStep+1, err)
	}
	if r.state.GlobalStep == r.resumed.GlobalStep {
		if err := r.checkLoss(w); err != nil {
			return false, r.blamed(err, w)
		}
	}
	stats := callbacks.StepStats{Samples: w.Samples, LearningRate: r.learningRate()}
	w, u, err := r.passes(w, dataErr, &stats)
	switch {
	case is[*accelerate.DataError](err):
		return false, r.saveUnread(fmt.Errorf("trainer: step %d: %w", r.state.GlobalStep+1, err))
	case err != nil:
		return false, r.blamed(err, w)
	}
	defer u.Free()
	numbers, err := r.update(u, &stats)
	if err != nil {
		return false, r.blamed(err, w)
	}
	if err := r.profileStep(); err != nil {
		return false, err
	}
	r.count(w, numbers, &stats, r.now().Sub(begin))
	if err := r.checkEmpty(w.Window); err != nil {
		return false, err
	}
	e := r.event()
	e.Step = stats
	return !w.LastOfEpoch, r.callbacks.Fire(callbacks.StepEnd, e)
}

// dataOption is the option that passed the training data.
func (r *run) dataOption() string {
	switch {
	case r.dataloader != nil:
		return "WithTrainDataloader"
	case r.stream != nil:
		return "WithIterableTrainData"
	}
	return "WithTrainData"
}

// blamed is an error of a step, or the sample that is the reason: devices find it after the pass that met it.
func (r *run) blamed(err error, w *feed.Window) error {
	if is[*data.IndexError](err) {
		return err
	}
	for _, b := range w.Batches {
		if wrong, ok := errors.AsType[*data.IndexError](b.Explain(err)); ok {
			return fmt.Errorf("trainer: step %d, rank %d: %w", r.state.GlobalStep+1, r.acc.Rank(), wrong)
		}
	}
	return err
}

// saveUnread saves what was trained before a step whose data some rank could not read, as an interrupt does, and
// returns the error. All ranks call it.
func (r *run) saveUnread(err error) error {
	if e := r.windows.Undo(); e != nil {
		return errors.Join(err, e)
	}
	return errors.Join(err, r.saveEarly())
}

// forwardBackward runs the window's micro-batches on all ranks. dataErr is why this one has none.
func (r *run) forwardBackward(w *feed.Window, dataErr error, stats *callbacks.StepStats) (*accelerate.PendingStep,
	error) {
	tokens, inputs, seen := 0, 0, 0.0 // HuggingFace's main input: tokens, or pixels
	r.hashes.begin(w.Batches)
	for _, b := range w.Batches {
		r.memory.see(b)
		if b.MicroBatch < 0 {
			continue
		}
		if ids := b.Tensors[data.InputIDs]; ids != nil {
			tokens += ids.Numel()
			inputs += ids.Numel()
			seen += r.seen(b)
		} else if pixels := b.Tensors[data.PixelValues]; pixels != nil {
			inputs += pixels.Numel()
		}
	}
	figures := []float64{float64(tokens), float64(inputs), seen}
	if r.train == nil {
		figures = append(figures, windowShape(w.Window)...)
	}
	u, err := r.acc.StartWindow(r.ctx, w.Batches, accelerate.WindowOptions{
		Loss: r.trainLoss, Between: func() error { return r.fire(callbacks.SubstepEnd) }, Figures: figures,
		DataErr: dataErr, TryMemory: r.args.AutoFindBatchSize, Sums: len(r.figures),
	})
	if err != nil {
		return nil, r.placed(err)
	}
	if r.train == nil {
		if err := r.checkStreams(w.Window, figures[3:]); err != nil {
			u.Free()
			return nil, err
		}
	}
	stats.Tokens, stats.TokensSeen = int64(figures[0]), int64(figures[2])
	r.state.TotalFLOPs += 6 * figures[1] * float64(r.flopParams)
	return u, nil
}

// placed says where a micro-batch failed, and at which step the loss scale did.
func (r *run) placed(err error) error {
	if is[*accelerate.MemoryError](err) {
		return fmt.Errorf("trainer: step %d: %w", r.state.GlobalStep+1, err)
	}
	if failed, ok := errors.AsType[*accelerate.MicroBatchError](err); ok {
		if overflow, ok := errors.AsType[*OverflowError](err); ok {
			failed.Err = overflow
		}
		return fmt.Errorf("trainer: step %d, rank %d, micro-batch %d: %w", r.state.GlobalStep+1, failed.Rank,
			failed.MicroBatch, failed.Err)
	}
	if is[*precision.LossScaleError](err) {
		return fmt.Errorf("trainer: step %d: %w", r.state.GlobalStep+1, err)
	}
	return err
}

// trainLoss is the loss of a micro-batch. Without a function of the user's, models may leave out all else.
func (r *run) trainLoss(c *nn.Ctx, b *data.Batch) (accelerate.Output, error) {
	r.hashes.current(b)
	if r.loss == nil && r.stepFunc == nil {
		c = c.WithLossOnly()
	}
	out, count, err := r.output(c, b)
	if err != nil || out.Hidden != nil {
		return accelerate.Output{Hidden: out.Hidden}, err
	}
	sum, count, err := r.lossFrom(c, out, count, b)
	if err != nil {
		return accelerate.Output{}, err
	}
	sums, err := r.sumsOf(out)
	return accelerate.Output{Loss: sum, Count: count, Sums: sums}, err
}

var errNoStepLoss = errors.New(passedTo("WithStep") + " returned no loss: want the sum of the batch's loss terms in " +
	"out.Loss")

// lossFrom is the loss of an output with so many terms, or that of the user's loss function.
func (t *Trainer) lossFrom(c *nn.Ctx, out models.Output, count float64, b *data.Batch) (*tensor.Tensor, float64,
	error) {
	loss := out.Loss
	if t.loss != nil {
		blaming(passedTo("WithLoss"), func() { loss, count = t.loss(c, out, b) })
	}
	switch {
	case loss == nil && t.stepFunc != nil:
		return nil, 0, errNoStepLoss
	case loss == nil && t.loss == nil:
		return nil, 0, fmt.Errorf("%T returned no loss: want %s in the batch, which has %s, or WithLoss", t.model,
			data.Labels, b.Names())
	}
	err := accelerate.CheckLoss(loss, count)
	switch {
	case err != nil && t.loss != nil:
		err = fmt.Errorf("%s: %w", passedTo("WithLoss"), err)
	case err != nil && t.stepFunc != nil:
		err = fmt.Errorf("%s: %w", passedTo("WithStep"), err)
	}
	return loss, count, err
}

// update clips gradients and steps the optimizer, unless loss or gradient is not finite. All of it is queued before the
// host waits for the numbers of the step, unless a callback asks for them.
func (r *run) update(u *accelerate.PendingStep, stats *callbacks.StepStats) (numbers accelerate.Numbers, err error) {
	if err := r.tryStep(func() error { return u.Clip(r.ctx, r.args.MaxGradNorm) }); err != nil {
		return numbers, r.placed(err)
	}
	read := func() error {
		return r.tryStep(func() error {
			n, err := u.Read(r.ctx)
			if err != nil {
				return r.placed(err)
			}
			numbers = n
			stats.Loss = n.Loss.Mean()
			stats.GradNorm, stats.ClipFactor, stats.LossScale = n.GradNorm, n.ClipFactor, n.LossScale
			stats.Skipped, stats.Overflow, stats.Empty = !n.Finite || n.Empty, n.Overflow, n.Empty
			return nil
		})
	}
	e := r.event()
	e.Step = *stats
	e.Step.Loss, e.Step.GradNorm, e.Step.ClipFactor = math.NaN(), math.NaN(), math.NaN()
	e.Await = func() error {
		err := read()
		e.Step = *stats
		return err
	}
	if err := r.callbacks.Fire(callbacks.PreOptimizerStep, e); err != nil {
		return numbers, err
	}
	r.hashes.gradients(u)
	if err := r.tryStep(func() error {
		if err := r.setRates(); err != nil {
			return err
		}
		return u.Step(r.ctx)
	}); err != nil {
		return numbers, err
	}
	if err := read(); err != nil {
		return numbers, err
	}
	if err := r.hashes.updated(stats); err != nil {
		return numbers, err
	}
	r.warnSkips()
	if spoiled(stats) {
		if err := r.nonfinite(stats); err != nil {
			return numbers, err
		}
	}
	e.Step, e.Await = *stats, nil
	if err := r.callbacks.Fire(callbacks.OptimizerStep, e); err != nil {
		return numbers, err
	}
	r.acc.ZeroGrad()
	return numbers, nil
}

// spoiled reports whether a step was left out as loss or gradients were not finite, other than by an overflow of fp16.
func spoiled(s *callbacks.StepStats) bool { return s.Skipped && !s.Overflow && !s.Empty }

// count updates the counters.
func (r *run) count(w *feed.Window, n accelerate.Numbers, stats *callbacks.StepStats, spent time.Duration) {
	s, p, loss := r.state, &r.progress, n.Loss
	s.GlobalStep++
	r.thawAfter(s.GlobalStep)
	s.Epoch = r.windows.EpochAfter(w.Window, r.steps.MaxSteps)
	p.EpochEnded = false
	if !stats.Skipped {
		p.Loss.add(loss.Sum, loss.Count)
	}
	p.Empty.count(w.Window, stats.Empty)
	r.logged.add(loss.Sum, loss.Count)
	p.Figures.add(r.figures, n.Sums, loss.Count)
	p.Samples += w.Samples
	p.Tokens += stats.Tokens
	p.Seconds += spent.Seconds()
	p.LastStep = lastStep{jsonfloat.Float(stats.GradNorm), stats.LearningRate, spoiled(stats), stats.Empty,
		stats.LossScale}
	s.NumInputTokensSeen += stats.TokensSeen
}

// seen is the number of tokens of a batch that include_num_input_tokens_seen counts.
func (r *run) seen(b *data.Batch) float64 {
	mask := b.Tensors[data.AttentionMask]
	switch {
	case r.args.IncludeNumInputTokensSeen == args.TokensSeenNo:
		return 0
	case r.args.IncludeNumInputTokensSeen == args.TokensSeenAll || mask == nil:
		return float64(b.Tensors[data.InputIDs].Numel())
	}
	kept := 0.0
	for _, x := range integers(nn.NewCtx(r.acc.Ctx().NoGrad(), nil, false), mask) {
		if x != 0 {
			kept++
		}
	}
	return kept
}
