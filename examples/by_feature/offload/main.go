// SPDX-License-Identifier: Apache-2.0

// Offload trains a model twice: in memory, and with its parameters and the optimizer's state in mapped files of a
// folder (offload_params and offload_optimizer disk). The system reads and writes what memory does not hold, so that
// the model may be larger than the memory. The weights have the same bits. The files have no names: nothing is left of
// them when the process ends.
package main

import (
	"fmt"
	"log"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/trainer"
)

const folder = "out/offload/state" // on a fast disk

func main() {
	inMemory := train(args.OffloadNone)
	onDisk := train(args.OffloadDisk)
	fmt.Println("same bits:", line.SameBits(inMemory, onDisk))
}

func train(offload args.Offload) *mlp.Model {
	model := line.Wide()
	a := args.Default("out/offload")
	a.LearningRate, a.NumTrainEpochs, a.PerDeviceTrainBatchSize, a.SaveStrategy = 0.003, 20, 8, args.StrategyNo
	a.OffloadOptimizer, a.OffloadParams, a.OffloadDir = offload, offload, folder
	res, err := trainer.New(model, a, trainer.WithTrainData(line.Train())).Train()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("offload %s: training loss %.4f\n", offload, res.TrainingLoss)
	return model
}
