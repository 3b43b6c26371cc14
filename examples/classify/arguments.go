// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/examples/internal/downloads"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// settings are all settings of the program.
type settings struct {
	args  *args.TrainingArguments
	model *ModelArguments
	data  *DataArguments
	serve *ServeArguments
	hub   *downloads.HubArguments
	set   *downloads.HubDataArguments
}

// ModelArguments say what to train, evaluate or serve.
type ModelArguments struct {
	ModelNameOrPath string `json:"model_name_or_path" path:"true" usage:"folder of a saved GPT-2, with or without a classifier's head, or one of the Hub, as org/name; empty: a new model"`
	// The size of a new model.
	NLayer    int     `json:"n_layer" usage:"transformer blocks of a new model"`
	NEmbd     int     `json:"n_embd" usage:"width of a new model"`
	NHead     int     `json:"n_head" usage:"attention heads of a new model"`
	Dropout   float64 `json:"dropout" usage:"dropout probability of a new model"`
	VocabSize int     `json:"vocab_size" usage:"tokens of a new model's tokenizer"`
}

// Check reports faults together with those of the training arguments.
func (m *ModelArguments) Check(c *args.Checker) {
	c.Require(m.NLayer >= 1, "n_layer", m.NLayer, "at least 1")
	c.Require(m.NHead >= 1, "n_head", m.NHead, "at least 1")
	if c.OK("n_head") {
		c.Require(m.NEmbd >= 1 && m.NEmbd%m.NHead == 0, "n_embd", m.NEmbd, "a positive multiple of n_head")
	}
	c.Require(m.Dropout >= 0 && m.Dropout < 1, "dropout", m.Dropout, "a probability in [0, 1)")
	c.Require(m.VocabSize >= 258 && m.VocabSize <= 1<<20, "vocab_size", m.VocabSize,
		"258 to 1048576: 256 bytes, the end of text and padding at least")
	if m.ModelNameOrPath == "" {
		c.Parts(m.NLayer + 2) // of a pipeline: the embeddings, the blocks, and the head
		if c.OK("n_layer", "n_embd", "n_head", "vocab_size") {
			c.Model(m.outline)
		}
	}
}

// config is that of a new model, except for what follows from its tokenizer and texts.
func (m *ModelArguments) config() gpt2.Config {
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NLayer, cfg.NEmbd, cfg.NHead = m.VocabSize, m.NLayer, m.NEmbd, m.NHead
	cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = m.Dropout, m.Dropout, m.Dropout
	cfg.BosTokenID, cfg.EosTokenID = nil, nil
	return cfg
}

// outline is a new model without values.
func (m *ModelArguments) outline() any {
	cfg := gpt2.ClassifierConfig{Config: m.config(), ID2Label: models.Labels("a", "b"), PadTokenID: new(0)}
	net, err := gpt2.NewClassifier(nn.NewInit(tensor.NewMeta(), 0), cfg)
	if err != nil {
		return nil // the program says so when it makes the model
	}
	return net
}

// DataArguments say what texts to use.
type DataArguments struct {
	TrainFile                 string `json:"train_file" path:"true" usage:"texts with labels: .csv, .tsv, .jsonl or .json, plain, .gz or .zst, or .parquet; empty: comments of Go's standard library"`
	ValidationFile            string `json:"validation_file" path:"true" usage:"texts to evaluate on; empty: a held-out part of train_file"`
	TestFile                  string `json:"test_file" path:"true" usage:"texts to classify with do_predict"`
	ValidationSplitPercentage int    `json:"validation_split_percentage" usage:"percent of the rows to hold out if there is no validation_file"`
	TextColumn                string `json:"text_column" usage:"column of the texts; empty: text, sentence, content or review, or else the first with text"`
	LabelColumn               string `json:"label_column" usage:"column of the labels"`
	MaxSeqLength              int    `json:"max_seq_length" usage:"number of tokens at which texts are cut"`
}

// Check reports faults together with those of the training arguments.
func (d *DataArguments) Check(c *args.Checker) {
	c.Require(d.ValidationSplitPercentage >= 1 && d.ValidationSplitPercentage <= 99, "validation_split_percentage",
		d.ValidationSplitPercentage, "1 to 99")
	c.Require(d.LabelColumn != "", "label_column", d.LabelColumn, "the name of a column")
	c.Require(d.MaxSeqLength >= 1, "max_seq_length", d.MaxSeqLength, "at least 1")
}

// ServeArguments say how requests are answered.
type ServeArguments struct {
	Serve        string `json:"serve" usage:"answer requests with the saved model at this address instead of training: :8080 (this machine only) or 0.0.0.0:8080"`
	MaxBatchSize int    `json:"max_batch_size" usage:"largest number of requests in a batch"`
}

// Check reports faults together with those of the training arguments.
func (s *ServeArguments) Check(c *args.Checker) {
	c.Require(s.MaxBatchSize >= 1, "max_batch_size", s.MaxBatchSize, "at least 1")
}

// newSettings are HuggingFace's defaults, or those of the demonstration: about ten seconds on two cores.
func newSettings(demo bool) *settings {
	s := &settings{
		args:  args.Default("out/classify"),
		model: &ModelArguments{NLayer: 2, NEmbd: 128, NHead: 4, Dropout: 0.1, VocabSize: 4096},
		data:  &DataArguments{ValidationSplitPercentage: 10, LabelColumn: "label", MaxSeqLength: 128},
		serve: &ServeArguments{MaxBatchSize: 32},
		hub:   downloads.Defaults(),
		set:   &downloads.HubDataArguments{},
	}
	a := s.args
	a.EvalStrategy, a.SaveStrategy, a.SaveTotalLimit = args.StrategyEpoch, args.StrategyEpoch, new(1)
	a.ReportTo = []string{"jsonl", "tensorboard"}
	if demo {
		s.data.MaxSeqLength, s.model.NLayer, s.model.Dropout = 64, 1, 0.2
		a.PerDeviceTrainBatchSize, a.PerDeviceEvalBatchSize, a.NumTrainEpochs = 32, 64, 3
		a.LearningRate, a.WeightDecay = 1e-3, 0.1
		a.LRSchedulerType, a.WarmupSteps, a.LoggingSteps = args.SchedulerCosine, 50, 50
		a.TrainSamplingStrategy = args.SamplingGroupByLength
	}
	return s
}
