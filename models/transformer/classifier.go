// SPDX-License-Identifier: Apache-2.0

package transformer

import (
	"cmp"
	"errors"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Classifier is the stack with a head that gives a text one of several classes, transformers'
// ForSequenceClassification.
type Classifier struct {
	Decoder *Decoder   `nn:"model"`
	Score   *nn.Linear `nn:"score"` // without bias

	Cfg Config
	models.KeptConfig
}

// NewClassifier makes a classifier of cfg.Labels with transformers' initialisation.
func NewClassifier(in *nn.Init, cfg Config) (*Classifier, error) {
	if cfg.Labels == nil {
		return nil, errors.New("transformer: the configuration has no Labels: want the names of the classes")
	}
	return models.Make(in, "transformer", cfg, func(in *nn.Init, cfg Config) *Classifier {
		cfg.resolve()
		return &Classifier{Decoder: newDecoder(in.Sub("model"), cfg), Score: newScore(in, cfg), Cfg: cfg}
	})
}

func newScore(in *nn.Init, cfg Config) *nn.Linear {
	return &nn.Linear{Weight: in.Sub("score").Normal("weight", cfg.InitializerRange, len(cfg.Labels), cfg.HiddenSize)}
}

// ClassifierOn puts a new head on a language model, for fine-tuning. The classifier shares m's stack. A text's last
// token is the one before the padding pad; nil: batches of one text only.
func ClassifierOn(in *nn.Init, m *Model, labels models.ID2Label, pad *int) (*Classifier, error) {
	cfg := m.Cfg
	cfg.Labels, cfg.PadTokenID = labels, pad
	if labels == nil {
		return nil, errors.New("transformer: no labels: want the names of the classes")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Classifier{Decoder: m.Decoder, Score: newScore(in, cfg), Cfg: cfg}, nil
}

// ModelType is the family. Classifiers differ in the entry architectures of config.json.
func (m *Classifier) ModelType() string { return m.Cfg.ModelType }

// VocabSize is the number of tokens.
func (m *Classifier) VocabSize() int { return m.Cfg.VocabSize }

// ResizeTokenEmbeddings implements models.Resizable.
func (m *Classifier) ResizeTokenEmbeddings(tokens, padToMultipleOf int) error {
	err := models.GrowVocabulary(tokens, padToMultipleOf, &m.Cfg.VocabSize, m.Decoder.Embed.Weight)
	m.Decoder.Cfg.VocabSize = m.Cfg.VocabSize
	return err
}

// Config marshals to a config.json that transformers reads.
func (m *Classifier) Config() any { return m.Cfg.document(m.Decoder.Embed.Weight.DType()) }

// Labels are the names of the classes, in the order of the logits.
func (m *Classifier) Labels() []string { return m.Cfg.Labels.Names() }

// RecomputeUnits are the blocks.
func (m *Classifier) RecomputeUnits() []nn.Module { return m.Decoder.units() }

// InputEmbeddings implements models.Embedded.
func (m *Classifier) InputEmbeddings() *nn.Embedding { return m.Decoder.Embed }

// Parts are the embeddings, the blocks, and the last norm with the head.
func (m *Classifier) Parts() []nn.Part { return m.Decoder.parts(m.Score) }

// TPPlan is that of the language model, with the whole head on each rank.
func (m *Classifier) TPPlan() map[string]string { return m.Decoder.plan("score", "replicate") }

// WeightMap reads and writes the names that transformers has.
func (m *Classifier) WeightMap() []models.WeightRule { return m.Decoder.weightMap() }

// ExampleBatch is size texts of length tokens; for 0 of max_position_embeddings, up to 2048.
func (m *Classifier) ExampleBatch(c *tensor.Ctx, size, length int) *data.Batch {
	length = cmp.Or(length, min(m.Cfg.MaxPositions, exampleLength))
	ids, labels := tensor.Zeros(c, tensor.Int64, size, length), tensor.Zeros(c, tensor.Int64, size)
	return &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: ids, data.Labels: labels}, Size: size,
		Count: float64(size)}
}

// Forward reads input_ids [B,T], attention_mask, position_ids [B,T] and labels, the classes [B] (all three are
// optional). See models.ClassifyTexts.
func (m *Classifier) Forward(c *nn.Ctx, b *data.Batch) models.Output {
	return models.ClassifyTexts(c, m, m.Score, m.Cfg.PadTokenID, b, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return m.Decoder.forward(c, b.Required(data.InputIDs), x, models.AttentionMask(c, b), nil)
	})
}
