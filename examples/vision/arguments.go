package main

import (
	"github.com/lockstep-ml/lockstep/args"
)

// ModelArguments say what to train, or what to evaluate.
type ModelArguments struct {
	// ModelNameOrPath is a saved model's folder; empty trains a new model.
	ModelNameOrPath string `json:"model_name_or_path" path:"true" usage:"folder of a saved model to start from; empty makes a new one"`
	// The size of a new model.
	Width  int `json:"width" usage:"channels of a new model's first stage; each further one has twice as many"`
	Stages int `json:"stages" usage:"stages of a new model; each but the first halves the images"`
	Depth  int `json:"depth" usage:"residual layers per stage of a new model"`
}

// Check reports faults together with those of the training arguments.
func (m *ModelArguments) Check(c *args.Checker) {
	c.Require(m.Width >= 1 && m.Width <= 4096, "width", m.Width, "1 to 4096")
	c.Require(m.Stages >= 1 && m.Stages <= 8, "stages", m.Stages, "1 to 8")
	c.Require(m.Depth >= 1, "depth", m.Depth, "at least 1")
}

// DataArguments say what images to use.
type DataArguments struct {
	DataDir   string `json:"data_dir" path:"true" usage:"folder of train-images-idx3-ubyte, train-labels-idx1-ubyte and the same of t10k, plain or .gz"`
	MaxImages int    `json:"max_images" usage:"train and evaluate on the first so many images only; 0 for all"`
}

// Check reports faults together with those of the training arguments.
func (d *DataArguments) Check(c *args.Checker) {
	c.Require(d.DataDir != "", "data_dir", d.DataDir, "a folder")
	c.Require(d.MaxImages >= 0, "max_images", d.MaxImages, "at least 0")
}

// defaults are what a run without flags does: a few minutes on two cores.
func defaults() (*args.TrainingArguments, *ModelArguments, *DataArguments) {
	a := args.Default("out/vision")
	a.PerDeviceTrainBatchSize, a.PerDeviceEvalBatchSize, a.NumTrainEpochs = 64, 256, 4
	a.LearningRate, a.WeightDecay = 3e-3, 0.05
	a.LRSchedulerType, a.WarmupSteps = args.SchedulerCosine, 200
	a.LoggingSteps = 100
	a.EvalStrategy, a.SaveStrategy, a.SaveTotalLimit = args.StrategyEpoch, args.StrategyEpoch, new(1)
	a.DataloaderNumWorkers = 1
	a.ReportTo = []string{"jsonl", "tensorboard"}
	return a, &ModelArguments{Width: 32, Stages: 3, Depth: 1}, &DataArguments{DataDir: "/usr/share/datasets/fashion-mnist"}
}
