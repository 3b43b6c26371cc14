// SPDX-License-Identifier: Apache-2.0

package transformer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Config is the configuration of a model, under the names that transformers' config.json has. A family reads those keys
// that its config class has. Start with [DefaultConfig] or [ParseConfig].
type Config struct {
	ModelType         string   `json:"model_type"` // the family
	VocabSize         int      `json:"vocab_size"`
	HiddenSize        int      `json:"hidden_size"`
	IntermediateSize  int      `json:"intermediate_size"`
	NumHiddenLayers   int      `json:"num_hidden_layers"`
	NumAttentionHeads int      `json:"num_attention_heads"`
	NumKeyValueHeads  int      `json:"num_key_value_heads" null:"ok"` // 0: NumAttentionHeads
	HeadDim           int      `json:"head_dim" null:"ok"`            // 0: HiddenSize/NumAttentionHeads
	HiddenAct         string   `json:"hidden_act"`
	HiddenActivation  string   `json:"hidden_activation" null:"ok"` // Gemma's name of HiddenAct
	MaxPositions      int      `json:"max_position_embeddings"`
	InitializerRange  float64  `json:"initializer_range"`
	RMSNormEps        float64  `json:"rms_norm_eps"`
	TieWordEmbeddings bool     `json:"tie_word_embeddings"`
	AttentionDropout  float64  `json:"attention_dropout"`
	AttentionBias     bool     `json:"attention_bias"`
	MLPBias           bool     `json:"mlp_bias"`
	SlidingWindow     *int     `json:"sliding_window"` // nil: none
	UseSlidingWindow  bool     `json:"use_sliding_window"`
	MaxWindowLayers   int      `json:"max_window_layers"`
	LayerTypes        []string `json:"layer_types"` // nil: as the family has them
	NoRopeLayers      []int    `json:"no_rope_layers"`
	NoRopeInterval    int      `json:"no_rope_layer_interval"`
	SlidingPattern    int      `json:"sliding_window_pattern"` // Gemma: every such layer has no window
	QueryScalar       float64  `json:"query_pre_attn_scalar"`
	AttnSoftCap       *float64 `json:"attn_logit_softcapping"`  // Gemma 2: of attention's scores; nil: none
	FinalSoftCap      *float64 `json:"final_logit_softcapping"` // Gemma 2: of logits; nil: none
	OriginalPositions int      `json:"original_max_position_embeddings"`
	BosTokenID        *int     `json:"bos_token_id"`
	EosTokenID        TokenIDs `json:"eos_token_id"`
	PadTokenID        *int     `json:"pad_token_id"`

	// RoPE rotates the queries and keys of all layers, or of those without a window where LocalRoPE is set.
	RoPE      RoPE  `json:"-"`
	LocalRoPE *RoPE `json:"-"` // Gemma 3: of layers with a window
	// Labels are the classes of a classifier; nil: a language model.
	Labels models.ID2Label `json:"-"`
}

// The values of Config.LayerTypes.
const (
	FullAttention    = "full_attention"
	SlidingAttention = "sliding_attention"
)

// TokenIDs are the tokens of a key that has one, several or none (null).
type TokenIDs []int

// UnmarshalJSON reads a number, a list of numbers, or null.
func (t *TokenIDs) UnmarshalJSON(text []byte) error {
	*t = nil
	if text[0] == '[' || bytes.Equal(text, []byte("null")) {
		return jsonfile.Unmarshal(text, (*[]int)(t))
	}
	*t = make(TokenIDs, 1)
	if err := json.Unmarshal(text, &(*t)[0]); err != nil {
		return errors.New("want a token's number or a list of them")
	}
	return nil
}

// MarshalJSON writes one token as a number.
func (t TokenIDs) MarshalJSON() ([]byte, error) {
	if len(t) == 1 {
		return json.Marshal(t[0])
	}
	return json.Marshal([]int(t))
}

// DefaultConfig is what transformers' config class of a model_type has by default; an error if no family has that name.
func DefaultConfig(modelType string) (Config, error) {
	text, err := json.Marshal(map[string]string{"model_type": modelType})
	if err != nil {
		return Config{}, err
	}
	return ParseConfig(text)
}

// ParseConfig reads a config.json. Keys that are missing keep the family's defaults. The error has all keys that the
// family does not know, and all switches that would change what is computed and are not supported.
func ParseConfig(text []byte) (Config, error) {
	given := map[string]json.RawMessage{}
	if err := jsonfile.Unmarshal(text, &given); err != nil {
		return Config{}, fmt.Errorf("transformer: config.json: %w", err)
	}
	var name string
	if err := json.Unmarshal(given["model_type"], &name); err != nil || families[name] == nil {
		return Config{}, fmt.Errorf("transformer: config.json: model_type %.100s: want one of %s", given["model_type"],
			strings.Join(slices.Sorted(maps.Keys(families)), ", "))
	}
	cfg, err := families[name].parse(text, given)
	if err != nil {
		return cfg, fmt.Errorf("transformer: config.json of %s: %w", name, err)
	}
	return cfg, cfg.Validate()
}

func (f *family) parse(text []byte, given map[string]json.RawMessage) (Config, error) {
	var cfg Config
	if err := f.ledger(given); err != nil {
		return cfg, err
	}
	whole := map[string]json.RawMessage{}
	for _, part := range []string{common, f.defaults} {
		if err := json.Unmarshal([]byte(part), &whole); err != nil {
			return cfg, err
		}
	}
	maps.Copy(whole, given)
	merged, err := json.Marshal(whole)
	if err != nil {
		return cfg, err
	}
	if err := jsonfile.Unmarshal(merged, &cfg); err != nil {
		return cfg, err
	}
	if err := refuseZeros("", given); err != nil {
		return cfg, err
	}
	head, err := f.head(given["architectures"])
	if err != nil {
		return cfg, err
	}
	if head == f.classifier {
		if cfg.Labels, err = models.ParseID2Label(text); err != nil {
			return cfg, err
		}
	}
	if err := cfg.readRoPE(whole); err != nil {
		return cfg, err
	}
	cfg.resolve()
	return cfg, nil
}

// positive are keys that stand for something else when they are missing, which 0 does not.
var positive = []string{"num_key_value_heads", "head_dim", "rope_theta", "rope_local_base_freq",
	"partial_rotary_factor", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
	"query_pre_attn_scalar"}

// refuseZeros refuses 0 as the value of such a key.
func refuseZeros(in string, given map[string]json.RawMessage) error {
	var bad []string
	for _, key := range positive {
		if x, err := strconv.ParseFloat(string(given[key]), 64); err == nil && x == 0 {
			bad = append(bad, fmt.Sprintf("%s%s = %s: want a positive number", in, key, given[key]))
		}
	}
	if bad == nil {
		return nil
	}
	return errors.New(strings.Join(bad, "; "))
}

// head is the class of transformers that config.json names, the language model's by default.
func (f *family) head(text json.RawMessage) (string, error) {
	var names []string
	if text != nil {
		if err := jsonfile.Unmarshal(text, &names); err != nil {
			return "", fmt.Errorf("architectures: %w", err)
		}
	}
	switch {
	case len(names) == 0:
		return f.causal, nil
	case len(names) == 1 && (names[0] == f.causal || names[0] == f.classifier):
		return names[0], nil
	}
	return "", fmt.Errorf("architectures = %q: want [%q] or [%q]", names, f.causal, f.classifier)
}

// resolve fills in what follows from other fields.
func (c *Config) resolve() {
	if c.NumKeyValueHeads == 0 {
		c.NumKeyValueHeads = c.NumAttentionHeads
	}
	if c.HeadDim == 0 && c.NumAttentionHeads > 0 {
		c.HeadDim = c.HiddenSize / c.NumAttentionHeads
	}
	if f := families[c.ModelType]; f != nil && f.resolve != nil {
		f.resolve(c)
	}
}

// value is *p, 0 if there is none.
func value(p *float64) float64 {
	if p == nil {
		return 0
	}
	return *p
}

// fillLayerTypes sets LayerTypes, unless they are given, so that the layers of which slides is true have the window.
func (c *Config) fillLayerTypes(slides func(layer int) bool) {
	if c.LayerTypes != nil {
		return
	}
	c.LayerTypes = make([]string, min(max(c.NumHiddenLayers, 0), maxLayers))
	for i := range c.LayerTypes {
		c.LayerTypes[i] = FullAttention
		if slides(i) {
			c.LayerTypes[i] = SlidingAttention
		}
	}
}

// maxLayers bounds num_hidden_layers.
const maxLayers = 10_000

// activations are the functions that config.json may name.
var activations = map[string]tensor.Activation{
	"silu": tensor.ActivationSiLU, "swish": tensor.ActivationSiLU, "gelu": tensor.ActivationGELU,
	"gelu_new": tensor.ActivationGELUTanh, "gelu_pytorch_tanh": tensor.ActivationGELUTanh,
	"relu": tensor.ActivationReLU,
}

// activation is the function in the feed-forward part.
func (c *Config) activation() string {
	if c.HiddenAct == "" {
		return c.HiddenActivation
	}
	return c.HiddenAct
}

// Validate reports all impossible fields together.
func (c Config) Validate() error {
	f := families[c.ModelType]
	if f == nil {
		return fmt.Errorf("transformer: model_type %.100q: want one of %s", c.ModelType,
			strings.Join(slices.Sorted(maps.Keys(families)), ", "))
	}
	c.resolve()
	var bad models.Faults
	for _, s := range []struct {
		name string
		v    int
	}{{"vocab_size", c.VocabSize}, {"hidden_size", c.HiddenSize}, {"intermediate_size", c.IntermediateSize},
		{"num_attention_heads", c.NumAttentionHeads}, {"num_key_value_heads", c.NumKeyValueHeads},
		{"head_dim", c.HeadDim}, {"max_position_embeddings", c.MaxPositions}} {
		bad.Want(s.v > 0, "%s = %d: want at least 1", s.name, s.v)
	}
	bad.Want(c.NumHiddenLayers > 0 && c.NumHiddenLayers <= maxLayers, "num_hidden_layers = %d: want 1 to %d",
		c.NumHiddenLayers, maxLayers)
	bad.Want(c.NumAttentionHeads%max(c.NumKeyValueHeads, 1) == 0,
		"num_attention_heads = %d, num_key_value_heads = %d: want a multiple", c.NumAttentionHeads, c.NumKeyValueHeads)
	_, known := activations[c.activation()]
	bad.Want(known, "hidden_act = %q: want one of %s", c.activation(),
		strings.Join(slices.Sorted(maps.Keys(activations)), ", "))
	bad.Want(c.RMSNormEps > 0, "rms_norm_eps = %g: want a positive number", c.RMSNormEps)
	bad.Want(c.InitializerRange >= 0, "initializer_range = %g: want at least 0", c.InitializerRange)
	bad.Want(c.AttentionDropout >= 0 && c.AttentionDropout < 1, "attention_dropout = %g: want a probability in [0, 1)",
		c.AttentionDropout)
	if w := c.SlidingWindow; w != nil {
		bad.Want(*w > 0, "sliding_window = %d: want null or at least 1", *w)
	}
	for _, s := range []struct {
		name string
		v    *float64
	}{{"attn_logit_softcapping", c.AttnSoftCap}, {"final_logit_softcapping", c.FinalSoftCap}} {
		bad.Want(s.v == nil || *s.v > 0, "%s = %g: want null or a positive number", s.name, value(s.v))
	}
	c.checkLayers(&bad)
	if p := c.PadTokenID; p != nil && c.Labels != nil {
		bad.Want(*p >= 0 && *p < c.VocabSize, "pad_token_id = %d: want a token below vocab_size = %d", *p, c.VocabSize)
	}
	if c.Labels != nil {
		c.Labels.Check(&bad, 1)
	}
	if len(bad) == 0 {
		c.RoPE.check(&bad, &c)
		if c.LocalRoPE != nil {
			c.LocalRoPE.check(&bad, &c)
		}
	}
	return bad.Err("transformer")
}

// checkLayers reports lists that are not of the layers.
func (c *Config) checkLayers(bad *models.Faults) {
	for i, kind := range c.LayerTypes {
		ok := kind == FullAttention || kind == SlidingAttention && c.SlidingWindow != nil
		bad.Want(ok, "layer_types[%d] = %q: want %s, or %s with a sliding_window", i, kind, FullAttention,
			SlidingAttention)
		if !ok {
			break
		}
	}
	bad.Want(c.LayerTypes == nil || len(c.LayerTypes) == c.NumHiddenLayers,
		"%d layer_types: want one for each of num_hidden_layers = %d", len(c.LayerTypes), c.NumHiddenLayers)
	bad.Want(c.NoRopeLayers == nil || len(c.NoRopeLayers) >= c.NumHiddenLayers,
		"%d no_rope_layers: want one for each of num_hidden_layers = %d", len(c.NoRopeLayers), c.NumHiddenLayers)
}

// document is the config.json: the family's keys in transformers' order, and RoPE in the spellings of transformers 4
// and 5.
func (c Config) document(dt tensor.DType) document {
	f := families[c.ModelType]
	values := map[string]json.RawMessage{}
	if text, err := json.Marshal(c); err != nil || json.Unmarshal(text, &values) != nil {
		return nil // a valid configuration has no number without a text
	}
	doc := document{{"architectures", []string{f.class(c)}}, {"model_type", c.ModelType}}
	for _, key := range f.keys() {
		if v, ok := values[key]; ok && string(v) != `""` {
			doc = append(doc, field{key, v})
		}
	}
	doc = append(doc, c.ropeFields()...)
	doc = append(doc, field{"torch_dtype", dt.String()})
	if c.Labels != nil {
		doc = append(doc, field{"id2label", c.Labels}, field{"label2id", c.Labels.Label2ID()})
	}
	return doc
}

// document is a JSON object whose fields keep their order.
type document []field

type field struct {
	key   string
	value any
}

// MarshalJSON writes the fields in their order.
func (d document) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for i, f := range d {
		key, err := json.Marshal(f.key)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(f.value)
		if err != nil {
			return nil, err
		}
		b.WriteByte("{,"[min(i, 1)])
		b.Write(key)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}
