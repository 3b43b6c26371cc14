// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/examples/internal/downloads"
	"github.com/lockstep-ml/lockstep/examples/internal/language"
	"github.com/lockstep-ml/lockstep/examples/internal/scripts"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// ModelArguments say what to train, or what to evaluate.
type ModelArguments struct {
	// ModelNameOrPath is a saved model's folder; empty trains a new model.
	ModelNameOrPath string `json:"model_name_or_path" path:"true" usage:"folder of a saved model to start from, or a model of the Hub, as org/name; empty: a new model"`
	// ConfigName is what a new model is like, by run_clm.py's name.
	ConfigName string `json:"config_name" path:"true" usage:"config.json of a new model, or its folder"`
	// DType is the dtype of the parameters, by run_clm.py's names. "auto" takes that of the saved weights.
	DType language.DType `json:"dtype" choices:"auto,bfloat16,float16,float32" usage:"dtype of the parameters: float32, bfloat16, float16, or auto for that of the saved weights; see half_update"`
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
	const most = 1 << 20
	c.Require(m.NLayer >= 1 && m.NLayer <= 1024, "n_layer", m.NLayer, "1 to 1024")
	c.Require(m.NHead >= 1 && m.NHead <= most, "n_head", m.NHead, fmt.Sprintf("1 to %d", most))
	if c.OK("n_head") {
		c.Require(m.NEmbd >= 1 && m.NEmbd <= most && m.NEmbd%m.NHead == 0, "n_embd", m.NEmbd,
			fmt.Sprintf("a positive multiple of n_head, at most %d", most))
	}
	c.Require(m.Dropout >= 0 && m.Dropout < 1, "dropout", m.Dropout, "a probability in [0, 1)")
	c.Require(m.VocabSize >= 257 && m.VocabSize <= most, "vocab_size", m.VocabSize,
		fmt.Sprintf("257 to %d: 256 bytes and the end of text at least", most))
	if m.ModelNameOrPath == "" && m.ConfigName == "" {
		c.Parts(m.NLayer + 2) // of a pipeline: the embeddings, the blocks, and the head
		if c.OK("n_layer", "n_embd", "n_head", "vocab_size") {
			c.Model(m.outline)
		}
		return
	}
	owner, own := "the model of config_name", map[string]any{"n_layer": m.NLayer, "n_embd": m.NEmbd, "n_head": m.NHead,
		"dropout": m.Dropout}
	if m.ModelNameOrPath != "" {
		owner, own["vocab_size"], own["config_name"] = "the model of model_name_or_path", m.VocabSize, m.ConfigName
	}
	for key, value := range own {
		c.Require(!c.Given(key), key, value, "it left out: "+owner+" has its own")
	}
}

// config is that of a new model, except for what follows from its tokenizer and text.
func (m *ModelArguments) config() gpt2.Config {
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NLayer, cfg.NEmbd, cfg.NHead = m.VocabSize, m.NLayer, m.NEmbd, m.NHead
	cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = m.Dropout, m.Dropout, m.Dropout
	cfg.BosTokenID, cfg.EosTokenID = nil, nil
	return cfg
}

// outline is a new model without values.
func (m *ModelArguments) outline() any {
	net, err := gpt2.New(nn.NewInit(tensor.NewMeta(), 0), m.config())
	if err != nil {
		return nil // the program says so when it makes the model
	}
	return net
}

// DataArguments say what text to use. Without files it is the functions of the Go standard library.
type DataArguments struct {
	TrainFile      []string `json:"train_file" usage:"training text: files, folders, globs; plain text, JSON, CSV or Parquet, also with .gz or .zst; repeatable"`
	ValidationFile []string `json:"validation_file" usage:"evaluation text, as train_file"`
	// ValidationSplitPercentage is what is held out of the training text where it is needed and there is no
	// validation_file.
	ValidationSplitPercentage int    `json:"validation_split_percentage" usage:"percent of train_file held out to evaluate on, without a validation_file"`
	TextColumn                string `json:"text_column" usage:"field of JSON, or column of CSV, with the text; empty: text, sentence, content or review, or else the first with text"`
	BlockSize                 int    `json:"block_size" usage:"tokens per sample; 0: 128 for a new model, else the saved model's limit, at most 1024"`
	MaxTrainSamples           *int   `json:"max_train_samples" usage:"largest number of blocks to train on; none: all"`
	MaxEvalSamples            *int   `json:"max_eval_samples" usage:"largest number of blocks to evaluate on; none: all"`
	MaxEvalBytes              int    `json:"max_eval_bytes" usage:"evaluate on functions of held-out Go files with at most this many bytes; 0: all"`
}

// own reports whether the text is the user's.
func (d *DataArguments) own() bool { return len(d.TrainFile) > 0 || len(d.ValidationFile) > 0 }

// Check reports faults together with those of the training arguments.
func (d *DataArguments) Check(c *args.Checker) {
	c.Require(d.BlockSize == 0 || d.BlockSize >= 2 && d.BlockSize <= 1<<20, "block_size", d.BlockSize,
		"2 to 1048576 tokens, or 0")
	c.Require(d.ValidationSplitPercentage >= 1 && d.ValidationSplitPercentage <= 99, "validation_split_percentage",
		d.ValidationSplitPercentage, "1 to 99")
	for key, n := range map[string]*int{"max_train_samples": d.MaxTrainSamples, "max_eval_samples": d.MaxEvalSamples} {
		if n != nil {
			c.Require(*n >= 1, key, *n, "at least 1")
		}
	}
	c.Require(d.MaxEvalBytes >= 0, "max_eval_bytes", d.MaxEvalBytes, "at least 0")
	own := d.own() || c.Given("dataset_name")
	if own {
		c.Require(!c.Given("max_eval_bytes"), "max_eval_bytes", d.MaxEvalBytes,
			"it left out: it limits the held-out Go source alone")
	}
	if len(d.ValidationFile) > 0 || !own {
		c.Require(!c.Given("validation_split_percentage"), "validation_split_percentage", d.ValidationSplitPercentage,
			"it left out: it divides a train_file that has no validation_file beside it")
	}
	if !own {
		c.Require(!c.Given("text_column"), "text_column", d.TextColumn,
			"it left out: it is a field of JSON or CSV in train_file or validation_file")
	}
}

// SampleArguments say what the model writes at the end.
type SampleArguments struct {
	Prompt       []string `json:"prompt" usage:"beginning of a sample; repeatable, for several samples"`
	MaxNewTokens int      `json:"max_new_tokens" usage:"largest number of new tokens of a sample; 0: no samples"`
	Temperature  float64  `json:"temperature" usage:"0 takes the most likely token, 1 samples from the model's distribution"`
	TopK         int      `json:"top_k" usage:"sample from the k most likely tokens; 0: from all"`
	TopP         float64  `json:"top_p" usage:"sample from the most likely tokens whose probabilities add up to this; 0: from all"`
	// RepetitionPenalty is transformers'.
	RepetitionPenalty float64 `json:"repetition_penalty" usage:"above 1, tokens that the text already has become less likely"`
}

// config is the generation_config.json of a model that writes as the samples are written.
func (s *SampleArguments) config(end int) map[string]any {
	cfg := map[string]any{"bos_token_id": end, "eos_token_id": end}
	if s.RepetitionPenalty != 1 {
		cfg["repetition_penalty"] = s.RepetitionPenalty
	}
	if s.Temperature > 0 {
		cfg["do_sample"], cfg["temperature"], cfg["top_k"] = true, s.Temperature, s.TopK
		if s.TopP > 0 {
			cfg["top_p"] = s.TopP
		}
	}
	return cfg
}

// Check reports faults together with those of the training arguments.
func (s *SampleArguments) Check(c *args.Checker) {
	c.Require(s.MaxNewTokens >= 0, "max_new_tokens", s.MaxNewTokens, "at least 0")
	c.Require(s.Temperature >= 0, "temperature", s.Temperature, "at least 0")
	c.Require(s.TopK >= 0, "top_k", s.TopK, "at least 0")
	c.Require(s.TopP >= 0 && s.TopP <= 1, "top_p", s.TopP, "a probability in [0, 1]")
	c.Require(s.RepetitionPenalty > 0, "repetition_penalty", s.RepetitionPenalty, "a number above 0")
	if s.MaxNewTokens == 0 {
		for key, value := range map[string]any{"prompt": s.Prompt, "temperature": s.Temperature, "top_k": s.TopK,
			"top_p":              s.TopP,
			"repetition_penalty": s.RepetitionPenalty} {
			c.Require(!c.Given(key), key, value, "it left out: with max_new_tokens 0 nothing is written")
		}
	}
}

// settings are all that the program is told.
type settings struct {
	args   *args.TrainingArguments
	model  *ModelArguments
	data   *DataArguments
	sample *SampleArguments
	hub    *downloads.HubArguments
	set    *downloads.HubDataArguments
}

// newSettings are those of a run on text, or from a model, of the user's: HuggingFace's defaults, and a small new
// model.
func newSettings() *settings {
	a := args.Default("out/clm")
	a.ReportTo = []string{"jsonl", "tensorboard"}
	return &settings{
		args:   a,
		model:  &ModelArguments{DType: "float32", NLayer: 4, NEmbd: 128, NHead: 4, VocabSize: 2048},
		data:   &DataArguments{ValidationSplitPercentage: 5, MaxEvalBytes: 512 << 10},
		sample: &SampleArguments{MaxNewTokens: 120, Temperature: 0.7, TopP: 0.95, RepetitionPenalty: 1},
		hub:    downloads.Defaults(),
		set:    &downloads.HubDataArguments{},
	}
}

// loader reads the settings.
func (s *settings) loader() *args.Loader {
	l := args.Bind(pflag.NewFlagSet("clm", pflag.ContinueOnError), s.args, s.model, s.data, s.sample, s.hub,
		s.set)
	l.Defaults(s.choose)
	l.Know(scripts.Lengths("block_size")...)
	l.Know(downloads.Aliases()...)
	l.Know(scripts.RunCLM()...)
	return l
}

// demonstration is the origin of the settings that hold without a text and a model of the user's.
const demonstration = "demonstration"

// choose makes the defaults those of the demonstration, if no text and no model is given: half a minute on two cores, a
// minute at most.
func (s *settings) choose(given func(key string) bool) string {
	for _, key := range []string{"train_file", "validation_file", "dataset_name", "model_name_or_path"} {
		if given(key) {
			return ""
		}
	}
	a := s.args
	if !given("max_steps") && !given("num_train_epochs") {
		a.MaxSteps = 2000
		if !given("max_train_seconds") {
			a.MaxTrainSeconds = 55
		}
	}
	a.LearningRate, a.WeightDecay, a.AdamBeta2 = 4e-3, 0.1, 0.98
	a.LRSchedulerType, a.WarmupSteps = args.SchedulerCosine, 50
	a.LoggingSteps, a.EvalStrategy, a.EvalSteps = 200, args.StrategySteps, new(800.0)
	a.SaveSteps, a.SaveTotalLimit = 1000, new(2)
	a.DataloaderNumWorkers = 1
	s.model.NLayer, s.model.VocabSize, s.data.BlockSize = 2, 4096, 64 // what learns most in half a minute
	s.sample.Prompt = []string{"func (r *Reader) Read(", "func (c *Conn) Close()", "func (b *Buffer) Write(",
		"func New"}
	s.sample.Temperature, s.sample.TopP, s.sample.RepetitionPenalty = 0.6, 0.9, 1.1
	return demonstration
}
