// SPDX-License-Identifier: Apache-2.0

// Custom_training_loop is the trainer's loop by hand, on two ranks that are goroutines: the
// accelerator chooses where it runs, cuts the stream of samples, adds the gradients up and
// exchanges them; the program does the rest. Package loop saves, resumes and reports: run it
// again with -resume. Under a launcher, with num_replicas 1, the same loop runs on ranks that
// are processes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
	_ "github.com/lockstep-ml/lockstep/integrations/jsonl"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer/loop"
)

const steps = 80

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	a := args.Default("out/custom_training_loop")
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize, a.NumReplicas = 4, 8, 2
	a.ReportTo = []string{"jsonl"}
	if slices.Contains(p.Args, "-resume") {
		a.ResumeFromCheckpoint = "last"
	}
	return accelerate.Run(ctx, a, func(acc *accelerate.Accelerator) error {
		return train(ctx, acc, a, p.Stdout)
	})
}

// progress is what the loop itself has to keep: the mean loss since the last record.
type progress struct {
	Sum, Count float64
}

// train is the loop of one rank. The first signal ends signals; ctx, that of the exchanges between ranks, continues, so
// that no rank waits for one that has left.
func train(signals context.Context, acc *accelerate.Accelerator, a *args.TrainingArguments, out io.Writer) (err error) {
	ctx := context.WithoutCancel(signals)
	model, train := line.Model(), line.Train()
	if err := acc.Prepare(ctx, model, line.AdamW); err != nil {
		return err
	}
	windows, err := acc.Windows(ctx, train, samplers.NewRandom(int64(train.Len()), a.Seed), 0)
	if err != nil {
		return err
	}
	defer windows.Close()
	trackers, err := loop.NewTrackers(acc, a, model)
	if err != nil {
		return err
	}
	state := &loop.State{Accelerator: acc, Args: a, Model: model, Windows: windows}
	defer state.Close()
	var since progress
	if err := errors.Join(state.Register("progress", &since), state.Register("trackers", trackers)); err != nil {
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
	windows.Limit(steps - step)
	for window, err := range windows.All() { // each is this rank's part of one optimizer step
		if err != nil {
			return err
		}
		loss, err := acc.Accumulate(ctx, window.Batches, func(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
			return model.Forward(c, b).Loss
		})
		if err != nil {
			return err
		}
		norm, err := acc.ClipGradNorm(ctx, 1)
		if err != nil {
			return err
		}
		if err := acc.Step(ctx); err != nil {
			return err
		}
		step++
		since.Sum, since.Count = since.Sum+loss.Sum, since.Count+loss.Count
		if step%20 == 0 {
			mean := since.Sum / since.Count
			acc.Print(out, fmt.Sprintf("step %d  loss %.4f  grad_norm %.3f", step, mean, norm))
			if err := trackers.Log(step, callbacks.Record{"loss": mean, "grad_norm": norm}); err != nil {
				return err
			}
			since = progress{}
		}
		stop := signals.Err() != nil
		if err := acc.Agree(ctx, &stop); err != nil { // all ranks stop after the same step
			return err
		}
		if stop || step%40 == 0 {
			if _, err := state.Save(ctx, step); err != nil {
				return err
			}
		}
		if stop {
			return fmt.Errorf("%w after step %d", accelerate.ErrInterrupted, step)
		}
	}
	acc.Print(out, line.String(model), "on", acc.WorldSize(), "ranks")
	return nil
}
