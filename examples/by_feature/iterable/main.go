// SPDX-License-Identifier: Apache-2.0

// Iterable trains on a file that is read line by line, as one is that does not fit into memory. The ranks read it
// together: each collates its part of every step, and the result has the same bits on any number of them. A run that is
// interrupted in the middle of the file continues at its line.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/jsonlines"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/trainer"
)

const out = "out/iterable"

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	train, err := write("train.jsonl", line.Samples(200, 1))
	if err != nil {
		return err
	}
	eval, err := write("eval.jsonl", line.Samples(30, 2))
	if err != nil {
		return err
	}

	whole, metrics, err := fit(ctx, train, eval, arguments("whole", 1), 0)
	if err != nil {
		return err
	}
	p.Printf("1 rank, in one go:      %s, eval_loss %.4f\n", line.String(whole), metrics["eval_loss"])

	a := arguments("parts", 2)
	if _, _, err := fit(ctx, train, eval, a, 33); !errors.Is(err, trainer.ErrInterrupted) || ctx.Err() != nil {
		return err // a signal, and not the callback
	}
	a = arguments("parts", 2)
	a.ResumeFromCheckpoint = "last"
	resumed, metrics, err := fit(ctx, train, eval, a, 0)
	if err != nil {
		return err
	}
	p.Printf("2 ranks, after resume:  %s, eval_loss %.4f\n", line.String(resumed), metrics["eval_loss"])
	wa, wb := line.Coefficients(whole)
	ra, rb := line.Coefficients(resumed)
	p.Printf("same bits: %t\n", wa == ra && wb == rb)
	return nil
}

// arguments are 80 steps of 8 samples: the file of 200 is gone through three times and a bit. A stream has no length,
// so max_steps says how long to train.
func arguments(name string, ranks int) *args.TrainingArguments {
	a := args.Default(filepath.Join(out, name))
	a.LearningRate, a.MaxSteps, a.NumReplicas = 0.1, 80, ranks
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize = 4, 8
	a.DataloaderNumWorkers = 1 // reads and collates ahead
	a.OverwriteOutputDir = true
	return a
}

// fit trains on one file and evaluates on the other. It is interrupted at a step, unless that is 0.
func fit(ctx context.Context, train, eval string, a *args.TrainingArguments, interrupt int64) (*mlp.Model,
	map[string]float64, error) {
	trainFile, err := jsonlines.Open[line.Point](train)
	if err != nil {
		return nil, nil, err
	}
	evalFile, err := jsonlines.Open[line.Point](eval)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	model := line.Model()
	t := trainer.New(model, a,
		trainer.WithIterableTrainData(data.NewIterableSource(trainFile, data.Stack[line.Point])),
		trainer.WithIterableEvalData(data.NewIterableSource(evalFile, data.Stack[line.Point])),
		trainer.WithCallbacks(&interrupter{step: interrupt, cancel: cancel}))
	if _, err := t.TrainContext(ctx); err != nil {
		return nil, nil, err
	}
	metrics, err := t.EvaluateContext(ctx)
	return model, metrics, err
}

// interrupter ends the training's context at a step, as Ctrl-C does in a program.
type interrupter struct {
	callbacks.Base
	step   int64
	cancel func()
}

func (i *interrupter) OnStepEnd(e *callbacks.Event) error {
	if e.State.GlobalStep == i.step {
		i.cancel()
	}
	return nil
}

// write makes a JSON Lines file of points in the output folder.
func write(name string, points data.Slice[line.Point]) (path string, err error) {
	if err := os.MkdirAll(out, 0o777); err != nil {
		return "", err
	}
	path = filepath.Join(out, name)
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriter(f)
	lines := json.NewEncoder(w)
	for _, p := range points {
		if err := lines.Encode(p); err != nil {
			return "", err
		}
	}
	return path, w.Flush()
}
