// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/lockstep-ml/lockstep/args"
)

// settings are all settings of the program.
type settings struct {
	args  *args.TrainingArguments
	model *ModelArguments
	data  *DataArguments
}

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
	DataDir    string   `json:"data_dir" path:"true" usage:"folder of train-images-idx3-ubyte, train-labels-idx1-ubyte and the same of t10k, plain or .gz; empty is Fashion-MNIST's"`
	LabelNames []string `json:"label_names" split:"," usage:"names of the classes 0, 1 and so on, which are saved with a new model, as cat,dog"`
	MaxImages  int      `json:"max_images" usage:"train and evaluate on the first so many images only; 0 for all"`
}

// Check reports faults together with those of the training arguments.
func (d *DataArguments) Check(c *args.Checker) {
	c.Require(d.MaxImages >= 0, "max_images", d.MaxImages, "at least 0")
}

// Where Debian's package dataset-fashion-mnist puts the data set, and what its classes are (Xiao et al. 2017).
const fashionDir = "/usr/share/datasets/fashion-mnist"

var fashionNames = []string{"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker",
	"Bag", "Ankle boot"}

// newSettings are HuggingFace's defaults, or those of the demonstration: half a minute on two cores.
func newSettings(demo bool) *settings {
	a := args.Default("out/vision")
	a.EvalStrategy, a.SaveStrategy, a.SaveTotalLimit = args.StrategyEpoch, args.StrategyEpoch, new(1)
	a.DataloaderNumWorkers = 1
	a.ReportTo = []string{"jsonl", "tensorboard"}
	s := &settings{a, &ModelArguments{Width: 32, Stages: 3, Depth: 1}, &DataArguments{DataDir: fashionDir}}
	if demo {
		s.data.LabelNames = fashionNames
		a.PerDeviceTrainBatchSize, a.PerDeviceEvalBatchSize, a.NumTrainEpochs = 64, 256, 2
		a.LearningRate, a.WeightDecay = 3e-3, 0.05
		a.LRSchedulerType, a.WarmupSteps, a.LoggingSteps = args.SchedulerCosine, 100, 100
	}
	return s
}
