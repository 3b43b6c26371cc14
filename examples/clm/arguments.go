package main

import (
	"github.com/lockstep-ml/lockstep/args"
)

// ModelArguments say what to train, or what to evaluate.
type ModelArguments struct {
	// ModelNameOrPath is a saved model's folder; empty trains a new model.
	ModelNameOrPath string `json:"model_name_or_path" path:"true" usage:"folder of a saved model to start from; empty makes a new one"`
	// The size of a new model.
	NLayer  int     `json:"n_layer" usage:"transformer blocks of a new model"`
	NEmbd   int     `json:"n_embd" usage:"width of a new model"`
	NHead   int     `json:"n_head" usage:"attention heads of a new model"`
	Dropout float64 `json:"dropout" usage:"dropout probability of a new model"`
	// VocabSize is the number of tokens of a new model's tokenizer.
	VocabSize int `json:"vocab_size" usage:"tokens of a new model's tokenizer"`
}

// Check reports faults together with those of the training arguments.
func (m *ModelArguments) Check(c *args.Checker) {
	c.Require(m.NLayer >= 1, "n_layer", m.NLayer, "at least 1")
	c.Require(m.NHead >= 1, "n_head", m.NHead, "at least 1")
	if c.OK("n_head") {
		c.Require(m.NEmbd >= 1 && m.NEmbd%m.NHead == 0, "n_embd", m.NEmbd, "a positive multiple of n_head")
	}
	c.Require(m.Dropout >= 0 && m.Dropout < 1, "dropout", m.Dropout, "a probability in [0, 1)")
	c.Require(m.VocabSize >= 257 && m.VocabSize <= 1<<20, "vocab_size", m.VocabSize, "257 to 1048576: 256 bytes and the end of text at least")
}

// DataArguments say what text to use. Without files it is the Go standard library's own
// source.
type DataArguments struct {
	TrainFile      []string `json:"train_file" usage:"training text: files, folders, globs; plain text, or JSON Lines with a text field; repeatable"`
	ValidationFile []string `json:"validation_file" usage:"evaluation text, as train_file; without it every 20th training file is held out"`
	BlockSize      int      `json:"block_size" usage:"tokens per sample"`
	MaxEvalBytes   int      `json:"max_eval_bytes" usage:"evaluate on so many bytes of the held-out Go source, in whole files; 0 for all"`
}

// Check reports faults together with those of the training arguments.
func (d *DataArguments) Check(c *args.Checker) {
	c.Require(d.BlockSize >= 2, "block_size", d.BlockSize, "at least 2 tokens")
	c.Require(d.MaxEvalBytes >= 0, "max_eval_bytes", d.MaxEvalBytes, "at least 0")
}

// SampleArguments say what the model writes at the end.
type SampleArguments struct {
	Prompt       string  `json:"prompt" usage:"what the sample begins with"`
	MaxNewTokens int     `json:"max_new_tokens" usage:"length of the sample; 0 for none"`
	Temperature  float64 `json:"temperature" usage:"0 takes the likeliest token, 1 samples from the model"`
	TopK         int     `json:"top_k" usage:"sample from the k likeliest tokens; 0 for all"`
	TopP         float64 `json:"top_p" usage:"sample from the likeliest tokens that make up so much probability; 0 for all"`
}

// Check reports faults together with those of the training arguments.
func (s *SampleArguments) Check(c *args.Checker) {
	c.Require(s.MaxNewTokens >= 0, "max_new_tokens", s.MaxNewTokens, "at least 0")
	c.Require(s.Temperature >= 0, "temperature", s.Temperature, "at least 0")
	c.Require(s.TopK >= 0, "top_k", s.TopK, "at least 0")
	c.Require(s.TopP >= 0 && s.TopP <= 1, "top_p", s.TopP, "a probability in [0, 1]")
}

// defaults are what a run without flags does: two minutes at most on two cores.
func defaults() (*args.TrainingArguments, *ModelArguments, *DataArguments, *SampleArguments) {
	a := args.Default("out/clm")
	a.PerDeviceTrainBatchSize, a.PerDeviceEvalBatchSize = 8, 8 // an evaluation takes no more memory than a step
	a.MaxSteps, a.MaxTrainSeconds = 800, 115
	a.LearningRate, a.WeightDecay, a.AdamBeta2 = 3e-3, 0.1, 0.98
	a.LRSchedulerType, a.WarmupSteps = args.SchedulerCosine, 50
	a.LoggingSteps, a.EvalStrategy, a.EvalSteps = 50, args.StrategySteps, new(200.0)
	a.SaveSteps, a.SaveTotalLimit = 200, new(2)
	a.DataloaderNumWorkers = 1
	a.ReportTo = []string{"jsonl", "tensorboard"}
	return a,
		&ModelArguments{NLayer: 4, NEmbd: 128, NHead: 4, VocabSize: 2048},
		&DataArguments{BlockSize: 128, MaxEvalBytes: 384 << 10},
		&SampleArguments{Prompt: "// Package", MaxNewTokens: 160, Temperature: 0.8, TopP: 0.95}
}
