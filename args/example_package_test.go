// SPDX-License-Identifier: Apache-2.0

package args_test

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/args"
)

// A program sets its own defaults; the command line overrides them.
func Example() {
	a := args.Default("out/run") // HuggingFace's defaults
	a.LearningRate, a.NumTrainEpochs = 1e-3, 10

	loader := args.Bind(pflag.NewFlagSet("run", pflag.ContinueOnError), a)
	commandLine := []string{"--learning_rate", "3e-4", "--eval_strategy", "epoch"} // usually os.Args[1:]
	if _, err := loader.Parse(commandLine); err != nil {
		fmt.Println(err) // lists all faults of the command line
		return
	}
	fmt.Println(a.LearningRate, a.NumTrainEpochs, a.EvalStrategy, a.PerDeviceTrainBatchSize)
	// Output: 0.0003 10 epoch 8
}
