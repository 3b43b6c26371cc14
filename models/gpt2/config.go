// SPDX-License-Identifier: Apache-2.0

package gpt2

import (
	"encoding/json"
	"fmt"

	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/lockstep-ml/lockstep/models"
)

// Config holds the fields of transformers' GPT2Config that change what is computed,
// under the same JSON names and defaults.
type Config struct {
	VocabSize          int     `json:"vocab_size"`
	NPositions         int     `json:"n_positions"`
	NEmbd              int     `json:"n_embd"`
	NLayer             int     `json:"n_layer"`
	NHead              int     `json:"n_head"`
	NInner             *int    `json:"n_inner"` // nil: 4·NEmbd
	ActivationFunction string  `json:"activation_function"`
	ResidPdrop         float64 `json:"resid_pdrop"`
	EmbdPdrop          float64 `json:"embd_pdrop"`
	AttnPdrop          float64 `json:"attn_pdrop"`
	LayerNormEpsilon   float64 `json:"layer_norm_epsilon"`
	InitializerRange   float64 `json:"initializer_range"`
	ScaleAttnWeights   bool    `json:"scale_attn_weights"`
	TieWordEmbeddings  bool    `json:"tie_word_embeddings"`
	BosTokenID         *int    `json:"bos_token_id"`
	EosTokenID         *int    `json:"eos_token_id"`
}

// DefaultConfig is GPT-2 small, 124 M parameters (Radford et al. 2019).
func DefaultConfig() Config {
	eos := 50256
	return Config{
		VocabSize: 50257, NPositions: 1024, NEmbd: 768, NLayer: 12, NHead: 12,
		ActivationFunction: "gelu_new", ResidPdrop: 0.1, EmbdPdrop: 0.1, AttnPdrop: 0.1,
		LayerNormEpsilon: 1e-5, InitializerRange: 0.02, ScaleAttnWeights: true, TieWordEmbeddings: true,
		BosTokenID: &eos, EosTokenID: &eos,
	}
}

// unsupported are switches of GPT2Config that this implementation does not have.
var unsupported = []string{"scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"}

// ParseConfig reads a config.json. Fields that are missing keep their defaults; a switch
// that would change the computation and is not supported is an error.
func ParseConfig(raw []byte) (Config, error) {
	cfg := DefaultConfig()
	if err := jsonfile.Unmarshal(raw, &cfg); err != nil {
		return cfg, fmt.Errorf("gpt2: config.json: %w", err)
	}
	all := map[string]json.RawMessage{}
	if err := jsonfile.Unmarshal(raw, &all); err != nil {
		return cfg, fmt.Errorf("gpt2: config.json: %w", err)
	}
	for _, key := range unsupported {
		if v := all[key]; v != nil && string(v) != "false" && string(v) != "null" {
			return cfg, fmt.Errorf("gpt2: config.json: %s = %.40s is not supported: want false", key, v)
		}
	}
	return cfg, cfg.Validate()
}

// Validate reports all impossible fields together.
func (c Config) Validate() error {
	var bad models.Faults
	want := bad.Want
	want(c.VocabSize > 0, "vocab_size = %d: want at least 1", c.VocabSize)
	want(c.NPositions > 0, "n_positions = %d: want at least 1", c.NPositions)
	want(c.NLayer > 0, "n_layer = %d: want at least 1", c.NLayer)
	want(c.NHead > 0 && c.NEmbd > 0 && c.NEmbd%max(c.NHead, 1) == 0,
		"n_embd = %d, n_head = %d: want a positive multiple of n_head", c.NEmbd, c.NHead)
	want(c.inner() > 0 || c.NInner == nil, "n_inner = %d: want null or at least 1", c.inner())
	_, known := activations[c.ActivationFunction]
	want(known, "activation_function = %q: want gelu_new, gelu, relu or silu", c.ActivationFunction)
	for _, p := range []struct {
		name string
		v    float64
	}{{"resid_pdrop", c.ResidPdrop}, {"embd_pdrop", c.EmbdPdrop}, {"attn_pdrop", c.AttnPdrop}} {
		want(p.v >= 0 && p.v < 1, "%s = %g: want a probability in [0, 1)", p.name, p.v)
	}
	want(c.LayerNormEpsilon > 0, "layer_norm_epsilon = %g: want a positive number", c.LayerNormEpsilon)
	want(c.InitializerRange >= 0, "initializer_range = %g: want at least 0", c.InitializerRange)
	return bad.Err("gpt2")
}

func (c Config) inner() int {
	if c.NInner != nil {
		return *c.NInner
	}
	return 4 * c.NEmbd
}
