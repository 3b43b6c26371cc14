// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/feed"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer/loop"
)

// epochs is the loop that the scripts without a Trainer share: epochs, a schedule, clipping, and after each epoch an
// evaluation, a record for the trackers and a checkpoint.
type epochs struct {
	acc      *accelerate.Accelerator
	args     *args.TrainingArguments
	model    models.Model
	train    data.Source
	optim    optim.Config
	schedule func(total int64) (func(step int64) float64, error) // nil: the rate stays
	evaluate func() (map[string]float64, error)                  // after an epoch; nil: nothing
	print    func(line string)
}

// adamW are the defaults of torch.optim.AdamW.
func adamW() optim.Config { return optim.DefaultAdamW() }

// linear is get_linear_schedule_with_warmup.
func linear(warmup int64, rate float64) func(int64) (func(int64) float64, error) {
	return func(total int64) (func(int64) float64, error) {
		s, err := optim.NewSchedule("linear", warmup, total, rate, nil)
		if err != nil {
			return nil, err
		}
		return s.Factor, nil
	}
}

// run prepares the model, continues where a checkpoint is if resume_from_checkpoint asks for it, and trains.
func (e *epochs) run(ctx context.Context) (err error) {
	if err := e.acc.Prepare(ctx, e.model, func(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error) {
		return e.optim.New(c, []*optim.Group{{LR: e.args.LearningRate, Params: params}}), nil
	}); err != nil {
		return err
	}
	windows, err := e.acc.Windows(ctx, e.train, samplers.NewRandom(int64(e.train.Len()), e.args.Seed), 0)
	if err != nil {
		return err
	}
	defer windows.Close()
	each := windows.Layout().MicroBatches()
	total := int64(e.args.NumTrainEpochs) * ((windows.MicroBatches() + each - 1) / each)
	factor := func(int64) float64 { return 1 }
	if e.schedule != nil {
		if factor, err = e.schedule(total); err != nil {
			return err
		}
	}
	trackers, err := loop.NewTrackers(e.acc, e.args, e.model)
	if err != nil {
		return err
	}
	state := &loop.State{Accelerator: e.acc, Args: e.args, Model: e.model, Windows: windows}
	defer state.Close()
	if err := state.Register("trackers", trackers); err != nil {
		return err
	}
	step, err := state.Load(ctx)
	if err != nil {
		return err
	}
	if err := trackers.Begin(step); err != nil {
		return err
	}
	defer func() { err = trackers.End(err) }()
	windows.Limit(total - step)
	var loss accelerate.WindowLoss
	for window, err := range windows.All() {
		if err != nil {
			return err
		}
		e.acc.Optimizer().ScaleLR(factor(step))
		if err := e.step(ctx, window, &loss); err != nil {
			return err
		}
		if step++; !window.LastOfEpoch {
			continue
		}
		if err := e.endEpoch(trackers, step, window.Epoch, loss.Mean()); err != nil {
			return err
		}
		loss = accelerate.WindowLoss{}
		if _, err := state.Save(ctx, step); err != nil {
			return err
		}
	}
	return state.SaveModel("")
}

// step is one optimizer step.
func (e *epochs) step(ctx context.Context, window *feed.Window, sum *accelerate.WindowLoss) error {
	loss, err := e.acc.Accumulate(ctx, window.Batches, func(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
		return e.model.Forward(c, b).Loss
	})
	if err != nil {
		return err
	}
	sum.Sum, sum.Count = sum.Sum+loss.Sum, sum.Count+loss.Count
	if _, err := e.acc.ClipGradNorm(ctx, e.args.MaxGradNorm); err != nil {
		return err
	}
	return e.acc.Step(ctx)
}

// endEpoch evaluates and tells the trackers.
func (e *epochs) endEpoch(trackers *loop.Trackers, step, epoch int64, loss float64) error {
	record := callbacks.Record{"train_loss": loss, "epoch": epoch}
	line := fmt.Sprintf("epoch %d: train_loss %.4f", epoch, loss)
	if e.evaluate != nil {
		metrics, err := e.evaluate()
		if err != nil {
			return err
		}
		for name, x := range metrics {
			record[name] = x
		}
		line += fmt.Sprintf(" %v", metrics)
	}
	e.print(line)
	return trackers.Log(step, record)
}

// predictions are the classes that the model predicts for a data set, over all ranks and in its order, and the labels.
func predictions(ctx context.Context, acc *accelerate.Accelerator, model models.Model,
	source data.Source) (classes, labels []int64, err error) {
	batches, err := acc.Batches(ctx, source)
	if err != nil {
		return nil, nil, err
	}
	defer batches.Close()
	for window, err := range batches.All() {
		if err != nil {
			return nil, nil, err
		}
		var indices, rows []int64 // rows of class and label
		if err := acc.Evaluate(ctx, window.Batches, func(c *nn.Ctx, b *data.Batch) (accelerate.Output, error) {
			out := model.Forward(c, b)
			most := tensor.ToSlice[int64](c.Ctx, tensor.ArgMax(c.Ctx, out.Logits, -1, false))
			for i, label := range tensor.ToSlice[int64](c.Ctx, b.Required(data.Labels)) {
				rows = append(rows, most[i], label)
			}
			indices = append(indices, b.Indices...)
			return accelerate.Output{Loss: out.Loss, Count: b.Count}, nil
		}); err != nil {
			return nil, nil, err
		}
		var mine *tensor.Tensor
		if len(indices) > 0 {
			mine = tensor.FromSlice(acc.Ctx(), rows, len(indices), 2)
		}
		all, _, err := acc.GatherForMetrics(ctx, indices, mine)
		if err != nil {
			return nil, nil, err
		}
		list := tensor.ToSlice[int64](acc.Ctx(), all)
		for i := 0; i < len(list); i += 2 {
			classes, labels = append(classes, list[i]), append(labels, list[i+1])
		}
	}
	return classes, labels, nil
}
