// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/examples/internal/downloads"
)

// settings are all settings of the program.
type settings struct {
	args  *args.TrainingArguments
	model *ModelArguments
	data  *DataArguments
	hub   *downloads.HubArguments
}

// ModelArguments say what to train, or what to evaluate.
type ModelArguments struct {
	// ModelNameOrPath is a saved model's folder; empty trains a new model.
	ModelNameOrPath string `json:"model_name_or_path" path:"true" usage:"folder of a saved model to start from, or a model of the Hub, as org/name; empty: a new model"`
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
	// DataDir is a folder with the IDX files of MNIST and its successors, with the binary files of CIFAR-10 or
	// CIFAR-100, or with folders of PNG and JPEG files by class, also below its folders train and validation.
	DataDir string `json:"data_dir" path:"true" usage:"folder of IDX or CIFAR files, or of folders of images by class"`
	// TrainDir and ValidationDir are two folders of folders of PNG and JPEG files by class in its place.
	TrainDir      string `json:"train_dir" path:"true" usage:"folder of folders of images by class, to train on"`
	ValidationDir string `json:"validation_dir" path:"true" usage:"the same, to evaluate on"`
	// TrainValSplit holds images out where there are none to evaluate on.
	TrainValSplit float64 `json:"train_val_split" usage:"share of the images to hold out if there are no evaluation images"`
	// ImageSize is the height and the width that images get. 0 is the size of a saved model's inputs, or no change.
	ImageSize int `json:"image_size" usage:"height and width to resize images to; 0: the model's size, or else no resizing"`
	// LabelNames are saved with a new model. None are those of the data set.
	LabelNames []string `json:"label_names" split:"," usage:"names of the classes 0, 1 and so on, as cat,dog"`
	// MaxImages takes the first images of a data set in few files, and any of one in folders.
	MaxImages int `json:"max_images" usage:"largest number of images to train and to evaluate on; 0: all"`
	// How training images are changed at random, as by torchvision's RandomCrop and RandomHorizontalFlip.
	CropPadding    int  `json:"crop_padding" usage:"width of the border from which random crops are taken; 0: no crops"`
	HorizontalFlip bool `json:"horizontal_flip" usage:"mirror half of the training images, left to right"`
}

// Check reports faults together with those of the training arguments.
func (d *DataArguments) Check(c *args.Checker) {
	c.Require(d.MaxImages >= 0, "max_images", d.MaxImages, "at least 0")
	c.Require(d.TrainValSplit > 0 && d.TrainValSplit < 1, "train_val_split", d.TrainValSplit, "above 0 and below 1")
	c.Require(d.ImageSize >= 0 && d.ImageSize <= 4096, "image_size", d.ImageSize, "0 to 4096")
	c.Require(d.CropPadding >= 0 && d.CropPadding <= 4096, "crop_padding", d.CropPadding, "0 to 4096")
	c.Require(!c.Given("train_dir") || !c.Given("data_dir"), "train_dir", d.TrainDir, "it left out beside data_dir")
	c.Require(d.ValidationDir == "" || d.TrainDir != "", "validation_dir", d.ValidationDir,
		"train_dir too")
}

// where names the data set.
func (d *DataArguments) where() string { return cmp.Or(d.TrainDir, d.DataDir) }

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
	s := &settings{a, &ModelArguments{Width: 32, Stages: 3, Depth: 1},
		&DataArguments{DataDir: fashionDir, TrainValSplit: 0.15}, downloads.Defaults()}
	if demo {
		s.data.LabelNames = fashionNames
		a.PerDeviceTrainBatchSize, a.PerDeviceEvalBatchSize, a.NumTrainEpochs = 64, 256, 2
		a.LearningRate, a.WeightDecay = 3e-3, 0.05
		a.LRSchedulerType, a.WarmupSteps, a.LoggingSteps = args.SchedulerCosine, 100, 100
	}
	return s
}
