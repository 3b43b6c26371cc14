// SPDX-License-Identifier: Apache-2.0

package gpt2

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// classifierArchitecture is the class in transformers' config.json by which a folder is a Classifier's.
const classifierArchitecture = "GPT2ForSequenceClassification"

// ClassifierConfig is the configuration of a Classifier: GPT-2's, and what transformers saves of a classifier.
type ClassifierConfig struct {
	Config
	// ID2Label names the classes, "0" and so on.
	ID2Label models.ID2Label `json:"id2label"`
	// PadTokenID is the token that fills shorter texts of a batch. Nil: batches of one text only.
	PadTokenID *int `json:"pad_token_id"`
}

// ParseClassifierConfig reads a config.json. Fields that are missing keep their defaults; num_labels stands for
// names of classes that are missing. A head that is no classifier of one class per text is an error.
func ParseClassifierConfig(raw []byte) (ClassifierConfig, error) {
	base, err := ParseConfig(raw)
	cfg := ClassifierConfig{Config: base}
	if err != nil {
		return cfg, err
	}
	if err := jsonfile.Unmarshal(raw, &cfg); err != nil {
		return cfg, fmt.Errorf("gpt2: config.json: %w", err)
	}
	if cfg.ID2Label, err = models.ParseID2Label(raw); err != nil {
		return cfg, fmt.Errorf("gpt2: %w", err)
	}
	return cfg, cfg.Validate()
}

// Validate reports all fields that no classifier can have, at once.
func (c ClassifierConfig) Validate() error {
	if err := c.Config.Validate(); err != nil {
		return err
	}
	var bad models.Faults
	c.ID2Label.Check(&bad, 1)
	if p := c.PadTokenID; p != nil {
		bad.Want(*p >= 0 && *p < c.VocabSize, "pad_token_id = %d: want a token below vocab_size = %d", *p, c.VocabSize)
	}
	return bad.Err("gpt2")
}

// Classifier is GPT-2 with a head that gives a text one of several classes, transformers'
// GPT2ForSequenceClassification.
type Classifier struct {
	Transformer *Transformer `nn:"transformer"`
	Score       *nn.Linear   `nn:"score"` // without bias

	Cfg ClassifierConfig
	models.KeptConfig
}

// NewClassifier makes a classifier with GPT-2's initialisation (see New); the head is drawn from
// N(0, initializer_range²).
func NewClassifier(in *nn.Init, cfg ClassifierConfig) (*Classifier, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	base := cfg.Config
	base.TieWordEmbeddings = true // the language model's head is dropped: it needs no weights of its own
	m, err := New(in, base)
	if err != nil {
		return nil, err
	}
	return ClassifierOn(in, m, cfg)
}

// ClassifierOn puts a new head on a language model, for fine-tuning. The classifier shares m's transformer. Of cfg
// only ID2Label and PadTokenID are used: the rest is m's.
func ClassifierOn(in *nn.Init, m *Model, cfg ClassifierConfig) (*Classifier, error) {
	cfg.Config = m.Cfg
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	head := in.Sub("score").Normal("weight", cfg.InitializerRange, len(cfg.ID2Label), cfg.NEmbd)
	return &Classifier{Transformer: m.Transformer, Score: &nn.Linear{Weight: head}, Cfg: cfg}, nil
}

// ModelType is "gpt2"; it is the architectures entry of config.json that tells a classifier.
func (m *Classifier) ModelType() string { return "gpt2" }

// VocabSize is the number of tokens.
func (m *Classifier) VocabSize() int { return m.Cfg.VocabSize }

// ResizeTokenEmbeddings implements models.Resizable.
func (m *Classifier) ResizeTokenEmbeddings(tokens, padToMultipleOf int) error {
	return models.GrowVocabulary(tokens, padToMultipleOf, &m.Cfg.VocabSize, m.Transformer.WTE.Weight)
}

// Config marshals to a config.json that transformers reads.
func (m *Classifier) Config() any {
	return struct {
		Architectures []string `json:"architectures"`
		ModelType     string   `json:"model_type"`
		NCtx          int      `json:"n_ctx"`
		TorchDType    string   `json:"torch_dtype"`
		ClassifierConfig
		Label2ID map[string]int `json:"label2id"`
	}{[]string{classifierArchitecture}, "gpt2", m.Cfg.NPositions, m.Transformer.WTE.Weight.DType().String(), m.Cfg,
		m.Cfg.ID2Label.Label2ID()}
}

// Labels are the names of the classes, in the order of the logits.
func (m *Classifier) Labels() []string { return m.Cfg.ID2Label.Names() }

// RecomputeUnits are the blocks.
func (m *Classifier) RecomputeUnits() []nn.Module { return m.Transformer.units() }

// InputEmbeddings implements models.Embedded.
func (m *Classifier) InputEmbeddings() *nn.Embedding { return m.Transformer.WTE }

// ExampleBatch is size texts of length tokens, n_positions for 0.
func (m *Classifier) ExampleBatch(c *tensor.Ctx, size, length int) *data.Batch {
	length = cmp.Or(length, m.Cfg.NPositions)
	ids, labels := tensor.Zeros(c, tensor.Int64, size, length), tensor.Zeros(c, tensor.Int64, size)
	tensors := map[string]*tensor.Tensor{data.InputIDs: ids, data.Labels: labels}
	return &data.Batch{Tensors: tensors, Size: size, Count: float64(size)}
}

// Forward reads input_ids [B,T], attention_mask, position_ids [B,T] and labels, the classes [B] (all three are
// optional). See models.ClassifyTexts.
func (m *Classifier) Forward(c *nn.Ctx, b *data.Batch) models.Output {
	return models.ClassifyTexts(c, m, m.Score, m.Cfg.PadTokenID, b, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return m.Transformer.forward(c, x, models.AttentionMask(c, b), nil)
	})
}

// TPPlan is that of the language model, with the whole head on each rank.
func (m *Classifier) TPPlan() map[string]string {
	plan := tpPlan()
	plan["score"] = "replicate"
	return plan
}

// Parts are the embeddings, the blocks, and the last norm with the head.
func (m *Classifier) Parts() []nn.Part { return m.Transformer.parts(m.Score) }

// isClassifier reports whether a config.json is a Classifier's.
func isClassifier(config []byte) bool {
	var head struct {
		Architectures []string `json:"architectures"`
	}
	return json.Unmarshal(config, &head) == nil && slices.Contains(head.Architectures, classifierArchitecture)
}
