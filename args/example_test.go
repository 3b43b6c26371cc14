// SPDX-License-Identifier: Apache-2.0

package args_test

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/args"
)

// A program adds its own settings and defaults to the training arguments.
func ExampleBind() {
	type DataArguments struct {
		TrainFile []string `json:"train_file" path:"true" usage:"files to train on"`
		BlockSize int      `json:"block_size" usage:"tokens per sample"`
	}
	train, data := args.Default("out/clm"), &DataArguments{BlockSize: 128}
	train.LearningRate = 1e-3

	loader := args.Bind(pflag.NewFlagSet("clm", pflag.ContinueOnError), train, data)
	loader.Environ = func() []string { return []string{"LOCKSTEP_SEED=7"} }
	resolved, err := loader.Parse([]string{"--train_file", "a.txt", "b.txt", "--eval_strategy", "epoch"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(train.LearningRate, train.Seed, train.EvalStrategy, data.TrainFile, data.BlockSize)
	for _, key := range []string{"seed", "eval_strategy", "block_size"} {
		fmt.Printf("%s: %q\n", key, resolved.Origin(key))
	}

	loader = args.Bind(pflag.NewFlagSet("clm", pflag.ContinueOnError), train, data)
	loader.Environ = func() []string { return nil }
	_, err = loader.Parse([]string{"--learning_rat=1", "--per_device_train_batch_size=-4"})
	fmt.Println(err)
	// Output:
	// 0.001 7 epoch [a.txt b.txt] 128
	// seed: "env LOCKSTEP_SEED"
	// eval_strategy: "flag --eval_strategy"
	// block_size: ""
	// arguments: 2 faults:
	//   - unknown flag --learning_rat; did you mean --learning_rate?
	//   - per_device_train_batch_size is -4 (flag --per_device_train_batch_size): want a whole number ≥ 1
}

// A command line for HuggingFace's Trainer is understood as a whole. A program adds the flags of its own script.
func ExampleLoader_Know() {
	train := args.Default("out")
	loader := args.Bind(pflag.NewFlagSet("clm", pflag.ContinueOnError), train)
	loader.Environ = func() []string { return nil }
	loader.Know(args.Known{Name: "cache_dir", Type: args.TypeString, Status: args.StatusNoEffect,
		Reason: "nothing is downloaded"})

	resolved, err := loader.Parse([]string{"--evaluation_strategy", "epoch", "--torch_compile", "--cache_dir", "/tmp"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, notice := range resolved.Notices {
		fmt.Println(notice)
	}

	loader = args.Bind(pflag.NewFlagSet("clm", pflag.ContinueOnError), train)
	loader.Environ = func() []string { return nil }
	_, err = loader.Parse([]string{"--model_parallel", "--past_index", "2"})
	fmt.Println(err)
	// Output:
	// --cache_dir has no effect: nothing is downloaded
	// --evaluation_strategy is taken as eval_strategy epoch
	// --torch_compile has no effect: programs and kernels are compiled before the run
	// arguments: 2 faults:
	//   - model_parallel is true (flag --model_parallel); not built yet: models split over devices; leave it out
	//   - past_index is 2 (flag --past_index): want -1: models with a memory between batches are not built
}
