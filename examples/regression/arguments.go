// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/lockstep-ml/lockstep/args"

// ModelArguments say what to train, or what to serve.
type ModelArguments struct {
	ModelNameOrPath string `json:"model_name_or_path" path:"true" usage:"folder of a saved model, for --serve; empty is output_dir"`
	HiddenSize      int    `json:"hidden_size" usage:"width of the hidden layers"`
	HiddenLayers    int    `json:"hidden_layers" usage:"number of hidden layers"`
	Patience        int    `json:"early_stopping_patience" usage:"evaluations without a better loss that end the training; 0: train to the end"`
}

// Check reports faults together with those of the training arguments.
func (m *ModelArguments) Check(c *args.Checker) {
	c.Require(m.HiddenSize >= 1 && m.HiddenSize <= 1<<16, "hidden_size", m.HiddenSize, "1 to 65536")
	c.Require(m.HiddenLayers >= 0 && m.HiddenLayers <= 100, "hidden_layers", m.HiddenLayers, "0 to 100")
	c.Require(m.Patience >= 0, "early_stopping_patience", m.Patience, "at least 0")
}

// DataArguments say what table to learn.
type DataArguments struct {
	TrainFile                 string   `json:"train_file" path:"true" usage:"table to learn: .csv, .tsv or .jsonl, plain, .gz or .zst, or .parquet; empty: prices of diamonds"`
	ValidationFile            string   `json:"validation_file" path:"true" usage:"table to evaluate on; empty: a held-out part of train_file"`
	ValidationSplitPercentage int      `json:"validation_split_percentage" usage:"percent of the rows to hold out if there is no validation_file"`
	LabelColumn               string   `json:"label_column" usage:"column to predict, a number"`
	IgnoreColumns             []string `json:"ignore_columns" split:"," usage:"columns to ignore, such as names and row numbers"`
}

// Check reports faults together with those of the training arguments.
func (d *DataArguments) Check(c *args.Checker) {
	c.Require(d.ValidationSplitPercentage >= 1 && d.ValidationSplitPercentage <= 99, "validation_split_percentage",
		d.ValidationSplitPercentage, "1 to 99")
	c.Require(d.LabelColumn != "", "label_column", d.LabelColumn, "the name of a column")
	c.Require(d.TrainFile != "" || d.ValidationFile == "", "validation_file", d.ValidationFile, "a train_file besides")
}

// ServeArguments say how predictions are answered.
type ServeArguments struct {
	Serve        string `json:"serve" usage:"answer requests with the saved model at this address instead of training: :8080 (this machine only) or 0.0.0.0:8080"`
	MaxBatchSize int    `json:"max_batch_size" usage:"largest number of requests in a batch"`
}

// Check reports faults together with those of the training arguments.
func (s *ServeArguments) Check(c *args.Checker) {
	c.Require(s.MaxBatchSize >= 1, "max_batch_size", s.MaxBatchSize, "at least 1")
}

// defaults are what a run without flags does: some seconds on two cores. They suit other small tables too.
func defaults() (*args.TrainingArguments, *ModelArguments, *DataArguments, *ServeArguments) {
	a := args.Default("out/regression")
	a.PerDeviceTrainBatchSize, a.PerDeviceEvalBatchSize, a.NumTrainEpochs = 64, 256, 60
	a.LearningRate, a.WeightDecay = 3e-3, 0.01
	a.LRSchedulerType, a.WarmupSteps = args.SchedulerCosine, 50
	a.LoggingStrategy, a.EvalStrategy, a.SaveStrategy = args.StrategyEpoch, args.StrategyEpoch, args.StrategyEpoch
	a.LoadBestModelAtEnd, a.MetricForBestModel, a.SaveTotalLimit = true, "loss", new(1)
	a.ReportTo = []string{"jsonl", "tensorboard"}
	return a,
		&ModelArguments{HiddenSize: 64, HiddenLayers: 2, Patience: 8},
		&DataArguments{ValidationSplitPercentage: 20, LabelColumn: "price"},
		&ServeArguments{MaxBatchSize: 64}
}
