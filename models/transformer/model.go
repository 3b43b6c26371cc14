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

// Model is the stack with a language-model head.
type Model struct {
	Decoder *Decoder   `nn:"model"`
	LMHead  *nn.LMHead `nn:"lm_head"` // shares the table of the embeddings when tied

	Cfg Config
	models.KeptConfig
}

// New makes a language model with transformers' initialisation: N(0, initializer_range²), biases 0.
func New(in *nn.Init, cfg Config) (*Model, error) {
	if cfg.Labels != nil {
		return nil, errors.New("transformer: the configuration is a classifier's (Labels): want NewClassifier")
	}
	return models.Make(in, "transformer", cfg, newModel)
}

func newModel(in *nn.Init, cfg Config) *Model {
	cfg.resolve()
	d := newDecoder(in.Sub("model"), cfg)
	head := d.Embed.Weight
	if !cfg.TieWordEmbeddings {
		head = in.Sub("lm_head").Normal("weight", cfg.InitializerRange, cfg.VocabSize, cfg.HiddenSize)
	}
	return &Model{Decoder: d, LMHead: &nn.LMHead{Weight: head, SoftCap: d.spec().finalCap}, Cfg: cfg}
}

// ModelType is the family.
func (m *Model) ModelType() string { return m.Cfg.ModelType }

// VocabSize is the number of tokens.
func (m *Model) VocabSize() int { return m.Cfg.VocabSize }

// ResizeTokenEmbeddings implements models.Resizable.
func (m *Model) ResizeTokenEmbeddings(tokens, padToMultipleOf int) error {
	err := models.GrowVocabulary(tokens, padToMultipleOf, &m.Cfg.VocabSize, m.Decoder.Embed.Weight, m.LMHead.Weight)
	m.Decoder.Cfg.VocabSize = m.Cfg.VocabSize
	return err
}

// ContextLength is the number of tokens that the model was made for, max_position_embeddings.
func (m *Model) ContextLength() int { return m.Cfg.MaxPositions }

// EndTokens are the tokens that end a text, eos_token_id.
func (m *Model) EndTokens() []int { return m.Cfg.EosTokenID }

// Config marshals to a config.json that transformers reads.
func (m *Model) Config() any { return m.Cfg.document(m.Decoder.Embed.Weight.DType()) }

// RecomputeUnits are the blocks.
func (m *Model) RecomputeUnits() []nn.Module { return m.Decoder.units() }

// InputEmbeddings implements models.Embedded.
func (m *Model) InputEmbeddings() *nn.Embedding { return m.Decoder.Embed }

// Parts are the embeddings, the blocks, and the last norm with the head.
func (m *Model) Parts() []nn.Part { return m.Decoder.parts(m.LMHead) }

// TPPlan divides attention by its heads, the feed-forward part by its inner features, and embeddings and head by
// tokens. Where one norm has all heads of queries or keys, the projections are divided and each rank has all heads.
func (m *Model) TPPlan() map[string]string { return m.Decoder.plan("lm_head", "colwise_gather_output") }

// WeightMap reads and writes the names that transformers has.
func (m *Model) WeightMap() []models.WeightRule { return m.Decoder.weightMap() }

// FLOPsPerToken is the floating-point operations of a forward and a backward pass per token of context length t.
func (m *Model) FLOPsPerToken(t int) float64 {
	return m.Decoder.flops(t, m.Cfg.VocabSize*m.Cfg.HiddenSize)
}

// exampleLength is the number of tokens of an example, where max_position_embeddings is far more than a batch has.
const exampleLength = 2048

// ExampleBatch is size sequences of length tokens; for 0 of max_position_embeddings, up to 2048.
func (m *Model) ExampleBatch(c *tensor.Ctx, size, length int) *data.Batch {
	length = cmp.Or(length, min(m.Cfg.MaxPositions, exampleLength))
	ids, labels := tensor.Zeros(c, tensor.Int64, size, length), tensor.Zeros(c, tensor.Int64, size, length)
	return &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: ids, data.ShiftLabels: labels}, Size: size,
		Count: float64(size * (length - 1))}
}

// Forward reads input_ids [B,T], attention_mask (optional) and what models.CausalLM reads.
func (m *Model) Forward(c *nn.Ctx, b *data.Batch) models.Output {
	return models.CausalLM(c, m, m.LMHead, b, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return m.Decoder.forward(c, b.Required(data.InputIDs), x, models.AttentionMask(c, b), nil)
	})
}
