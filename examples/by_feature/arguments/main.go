// SPDX-License-Identifier: Apache-2.0

// Arguments reads every setting from flags, environment and files, and one setting that the program defines. All faults
// are reported together. HuggingFace's other arguments are known: what has no effect here is accepted with a notice,
// what is not built is a fault.
//
//	go run ./examples/by_feature/arguments --num_train_epochs 5 --eval_strategy epoch
//	go run ./examples/by_feature/arguments --warmup_ratio 0.1 --torch_compile
//	LOCKSTEP_LEARNING_RATE=0.01 go run ./examples/by_feature/arguments --config line.yaml
package main

import (
	"context"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/trainer"
)

// lineArguments are the settings that the training arguments lack.
type lineArguments struct {
	NumSamples int `json:"num_samples" usage:"size of the training set"`
}

// Check is called by the loader together with the checks of the training arguments.
func (l *lineArguments) Check(c *args.Checker) {
	c.Require(l.NumSamples >= 1, "num_samples", l.NumSamples, "a whole number ≥ 1")
}

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	a, own := args.Default("out/arguments"), &lineArguments{NumSamples: 64}
	a.LearningRate, a.NumTrainEpochs = 0.1, 20             // this program's defaults
	resolved, err := p.Parse(args.Bind(p.Flags(), a, own)) // all faults at once, or --help
	if err != nil {
		return err
	}
	set := 0
	for _, key := range []string{"num_samples", "learning_rate", "num_train_epochs", "eval_strategy"} {
		if origin := resolved.Origin(key); origin != "" {
			p.Printf("%s comes from %s\n", key, origin)
			set++
		}
	}
	if set == 0 {
		p.Printf("samples, learning rate, epochs and evaluation have their defaults; try " +
			"--num_train_epochs 5, or --help for all\n")
	}

	model := line.Model()
	train := data.NewSource(line.Samples(own.NumSamples, 1), data.Stack[line.Point])
	t := trainer.New(model, a, trainer.WithTrainData(train), trainer.WithEvalData(line.Eval()))
	res, err := t.TrainContext(ctx)
	if err != nil {
		return err
	}
	p.Printf("%s after %d steps\n", line.String(model), res.GlobalStep)
	return nil
}
