// SPDX-License-Identifier: Apache-2.0

// Arguments reads every setting from flags, environment and files, beside a setting of its own. All faults are reported
// at once. HuggingFace's other arguments are known: what has no effect here is accepted with a notice, what is not
// built is a fault.
//
//	go run ./examples/by_feature/arguments --num_train_epochs 5 --eval_strategy epoch
//	go run ./examples/by_feature/arguments --warmup_ratio 0.1 --torch_compile
//	LOCKSTEP_LEARNING_RATE=0.01 go run ./examples/by_feature/arguments --config line.yaml
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
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

func main() {
	a, own := args.Default("out/arguments"), &lineArguments{NumSamples: 64}
	a.LearningRate, a.NumTrainEpochs = 0.1, 20 // this program's defaults
	loader := args.Bind(pflag.NewFlagSet("arguments", pflag.ContinueOnError), a, own)
	loader.ForProgram(trainer.Program()) // so that an unknown reporter is one of the faults
	resolved, err := loader.Parse(os.Args[1:])
	switch {
	case errors.Is(err, args.ErrHelp):
		fmt.Print(loader.Usage())
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	for _, notice := range resolved.Notices {
		fmt.Println(notice)
	}
	set := 0
	for _, key := range []string{"num_samples", "learning_rate", "num_train_epochs", "eval_strategy"} {
		if origin := resolved.Origin(key); origin != "" {
			fmt.Printf("%s comes from %s\n", key, origin)
			set++
		}
	}
	if set == 0 {
		fmt.Println("samples, learning rate, epochs and evaluation have their defaults; try --num_train_epochs 5, or " +
			"--help for all")
	}

	model := line.Model()
	train := data.NewSource(line.Samples(own.NumSamples, 1), data.Stack[line.Point])
	res, err := trainer.New(model, a, trainer.WithTrainData(train), trainer.WithEvalData(line.Eval())).Train()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%s after %d steps\n", line.String(model), res.GlobalStep)
}
