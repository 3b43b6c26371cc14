// SPDX-License-Identifier: Apache-2.0

// Package gpt2 is the GPT-2 decoder (Radford et al. 2019), with the parameter names and the config.json of
// transformers' GPT2LMHeadModel and GPT2ForSequenceClassification. Use it to train a language model or a classifier of
// texts, or to fine-tune one that transformers saved. Start with [New] and [DefaultConfig]; models load in both
// directions.
//
// It registers itself with package models under "gpt2", so that models.LoadPretrained finds it. Package
// data/tokenizers tokenizes, and package models/generation writes text.
package gpt2

import (
	"cmp"
	"fmt"
	"math"
	"strconv"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

func init() {
	for name, size := range map[string]string{ // Radford et al. 2019; 124M, 355M, 774M and 1.56B parameters
		"gpt2":        `"n_embd": 768, "n_layer": 12, "n_head": 12`,
		"gpt2-medium": `"n_embd": 1024, "n_layer": 24, "n_head": 16`,
		"gpt2-large":  `"n_embd": 1280, "n_layer": 36, "n_head": 20`,
		"gpt2-xl":     `"n_embd": 1600, "n_layer": 48, "n_head": 25`,
	} {
		models.RegisterConfig(name, `{"model_type": "gpt2", `+size+`}`)
	}
	models.Register("gpt2", func(in *nn.Init, config []byte) (models.Configured, error) {
		if isClassifier(config) {
			cfg, err := ParseClassifierConfig(config)
			if err != nil {
				return nil, err
			}
			return NewClassifier(in, cfg)
		}
		cfg, err := ParseConfig(config)
		if err != nil {
			return nil, err
		}
		return New(in, cfg)
	})
}

// Model is GPT-2 with a language-model head.
type Model struct {
	Transformer *Transformer `nn:"transformer"`
	LMHead      *nn.LMHead   `nn:"lm_head"` // shares wte's Parameter when tied

	Cfg Config
	models.KeptConfig
}

// Transformer is the stack without the head.
type Transformer struct {
	WTE  *nn.Embedding `nn:"wte"`
	WPE  *nn.Embedding `nn:"wpe"`
	Drop *nn.Dropout   `nn:"drop"`
	H    []*Block      `nn:"h"`
	LNF  *nn.LayerNorm `nn:"ln_f"`
}

// New makes a model with GPT-2's initialisation: N(0, initializer_range²), the projections
// into the residual stream scaled by 1/√(2·n_layer), biases 0.
func New(in *nn.Init, cfg Config) (*Model, error) { return models.Make(in, "gpt2", cfg, newModel) }

func newModel(in *nn.Init, cfg Config) *Model {
	t := in.Sub("transformer")
	tr := &Transformer{
		WTE:  &nn.Embedding{Weight: newTable(t.Sub("wte"), cfg.VocabSize, cfg)},
		WPE:  &nn.Embedding{Weight: newTable(t.Sub("wpe"), cfg.NPositions, cfg)},
		Drop: &nn.Dropout{P: cfg.EmbdPdrop},
		LNF:  nn.NewLayerNorm(t.Sub("ln_f"), nn.LayerNormConfig{Dim: cfg.NEmbd, Eps: cfg.LayerNormEpsilon}),
	}
	for i := range cfg.NLayer {
		tr.H = append(tr.H, newBlock(t.Sub("h").Sub(strconv.Itoa(i)), cfg))
	}
	head := tr.WTE.Weight
	if !cfg.TieWordEmbeddings {
		head = newTable(in.Sub("lm_head"), cfg.VocabSize, cfg)
	}
	return &Model{Transformer: tr, LMHead: &nn.LMHead{Weight: head}, Cfg: cfg}
}

// newTable draws rows of n_embd elements with GPT-2's deviation, which may be 0.
func newTable(in *nn.Init, rows int, cfg Config) *nn.Parameter {
	return in.Normal("weight", cfg.InitializerRange, rows, cfg.NEmbd)
}

// ModelType is "gpt2".
func (m *Model) ModelType() string { return "gpt2" }

// VocabSize is the number of tokens.
func (m *Model) VocabSize() int { return m.Cfg.VocabSize }

// ResizeTokenEmbeddings implements models.Resizable.
func (m *Model) ResizeTokenEmbeddings(tokens, padToMultipleOf int) error {
	return models.GrowVocabulary(tokens, padToMultipleOf, &m.Cfg.VocabSize, m.Transformer.WTE.Weight, m.LMHead.Weight)
}

// Config marshals to a config.json that transformers reads.
func (m *Model) Config() any {
	return struct {
		Architectures []string `json:"architectures"`
		ModelType     string   `json:"model_type"`
		NCtx          int      `json:"n_ctx"`
		TorchDType    string   `json:"torch_dtype"`
		Config
	}{[]string{"GPT2LMHeadModel"}, "gpt2", m.Cfg.NPositions, m.Transformer.WTE.Weight.DType().String(), m.Cfg}
}

// RecomputeUnits are the blocks.
func (m *Model) RecomputeUnits() []nn.Module { return m.Transformer.units() }

// InputEmbeddings implements models.Embedded.
func (m *Model) InputEmbeddings() *nn.Embedding { return m.Transformer.WTE }

func (t *Transformer) units() []nn.Module {
	units := make([]nn.Module, len(t.H))
	for i, b := range t.H {
		units[i] = b
	}
	return units
}

// FLOPsPerToken is the floating-point operations of a forward and a backward pass per token of context length t: 6 per
// weight of the matrix products, and attention's 12·L·t·C (Chowdhery et al. 2022, appendix B). It counts by the
// configuration: the blocks, the last norm and the head.
func (m *Model) FLOPsPerToken(t int) float64 {
	c, inner := m.Cfg.NEmbd, m.Cfg.inner()
	layer := 4*c*c + 2*c*inner + 9*c + inner // with biases and norms
	n := m.Cfg.VocabSize*c + m.Cfg.NLayer*layer + 2*c
	return 6*float64(n) + 12*float64(m.Cfg.NLayer)*float64(t)*float64(c)
}

// ExampleBatch is size sequences of length tokens, n_positions for 0.
func (m *Model) ExampleBatch(c *tensor.Ctx, size, length int) *data.Batch {
	length = cmp.Or(length, m.Cfg.NPositions)
	ids, labels := tensor.Zeros(c, tensor.Int64, size, length), tensor.Zeros(c, tensor.Int64, size, length)
	return &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: ids, data.ShiftLabels: labels}, Size: size,
		Count: float64(size * (length - 1))}
}

// Forward reads input_ids [B,T], attention_mask (optional) and what models.CausalLM reads.
func (m *Model) Forward(c *nn.Ctx, b *data.Batch) models.Output {
	return models.CausalLM(c, m, m.LMHead, b, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return m.Transformer.forward(c, x, models.AttentionMask(c, b), nil)
	})
}

// Parts are the embeddings, the blocks, and the last norm with the head.
func (m *Model) Parts() []nn.Part { return m.Transformer.parts(m.LMHead) }

// TPPlan divides attention by its heads, the feed-forward part by its inner features, and the embeddings of tokens and
// the head by tokens.
func (m *Model) TPPlan() map[string]string {
	plan := tpPlan()
	plan["lm_head"] = "colwise_gather_output"
	return plan
}

func tpPlan() map[string]string {
	return map[string]string{
		"transformer.wte":             "embedding_rowwise",
		"transformer.wpe":             "replicate",
		"transformer.h.*.attn.c_attn": "packed_colwise:3",
		"transformer.h.*.attn.c_proj": "rowwise",
		"transformer.h.*.mlp.c_fc":    "colwise",
		"transformer.h.*.mlp.c_proj":  "rowwise",
	}
}

func (t *Transformer) parts(head nn.Module) []nn.Part {
	return models.BlockParts(t.first(), t.H, nn.Part{t.LNF, head})
}

func (t *Transformer) first() nn.Part { return nn.Part{t.WTE, t.WPE, t.Drop} }

// forward maps ids [B,T], or what a stage of a pipeline has received, to hidden states [B,T,C]. With a cache, ids
// continue what the cache holds.
func (t *Transformer) forward(c *nn.Ctx, x, keys *tensor.Tensor, cache *nn.KVCache) *tensor.Tensor {
	return nn.Unit1(c, t, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		x = nn.RunPart1(c, t.first(), func(ids *tensor.Tensor) *tensor.Tensor { return t.embed(c, ids, cache) }, x)
		for i, b := range t.H {
			x = nn.RunPart1(c, nn.Part{b}, func(x *tensor.Tensor) *tensor.Tensor {
				return b.Forward(c, x, nn.AttentionInput{Mask: keys, Cache: cache.Layer(i)})
			}, x)
		}
		cache.Advance(x.Size(1))
		return nn.RunPart1(c, nn.Part{t.LNF}, func(x *tensor.Tensor) *tensor.Tensor { return t.LNF.Lowered(c, x) }, x)
	}, x)
}

// embed maps ids [B,T] to the input [B,T,C] of the blocks.
func (t *Transformer) embed(c *nn.Ctx, ids *tensor.Tensor, cache *nn.KVCache) *tensor.Tensor {
	t.check(c, ids, cache)
	pos := c.TokenPositions(ids, cache.Len())
	return t.Drop.Forward(c, tensor.Add(c.Ctx, t.WTE.Forward(c, ids), t.WPE.Forward(c, pos)))
}

// check refuses ids that are no [B,T], that no cache has room for, or that have no positions.
func (t *Transformer) check(c *nn.Ctx, ids *tensor.Tensor, cache *nn.KVCache) {
	fail := func(format string, args ...any) {
		panic(&tensor.Error{Op: "gpt2.Forward", Msg: fmt.Sprintf(format, args...), Where: c.Path()})
	}
	if ids.Dim() != 2 {
		fail("input_ids of shape %v: want [batch, tokens]", ids.Shape())
	}
	past, limit := cache.Len(), t.WPE.Weight.Size(0)
	if past+ids.Size(1) > limit && (cache != nil || c.Positions == nil) {
		fail("%d tokens after %d: want at most n_positions = %d in all", ids.Size(1), past, limit)
	}
}

// residualStd is the deviation of projections that end in the residual stream.
func residualStd(cfg Config) float64 { return cfg.InitializerRange / math.Sqrt(2*float64(cfg.NLayer)) }
