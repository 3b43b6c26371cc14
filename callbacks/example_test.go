// SPDX-License-Identifier: Apache-2.0

package callbacks_test

import (
	"fmt"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// exampleLimit ends the training after a number of epochs. Base has methods that do nothing for all other events.
type exampleLimit struct {
	callbacks.Base
	epochs float64
}

func (l exampleLimit) OnEpochEnd(e *callbacks.Event) error {
	fmt.Println("epoch", e.State.Epoch, "after", e.State.GlobalStep, "steps")
	e.Control.ShouldTrainingStop = e.State.Epoch >= l.epochs
	return nil
}

// A callback sees the events of a run and sets flags that the trainer acts on.
func Example() {
	dir, err := os.MkdirTemp("", "lockstep")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	type sample struct{ Inputs, Labels [1]float32 }
	samples := make(data.Slice[sample], 16)
	model, err := mlp.New(nn.NewInit(tensor.CPU(), 42), mlp.Config{Sizes: []int{1, 1}})
	if err != nil {
		panic(err)
	}
	a := args.Default(dir)
	a.NumTrainEpochs, a.SaveStrategy = 100, args.StrategyNo
	_, err = trainer.New(model, a, trainer.WithTrainData(data.NewSource(samples, data.Stack[sample])),
		trainer.WithCallbacks(exampleLimit{epochs: 2}), trainer.WithDisplay(nil)).Train()
	if err != nil {
		panic(err)
	}
	// Output:
	// epoch 1 after 2 steps
	// epoch 2 after 4 steps
}
