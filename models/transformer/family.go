// SPDX-License-Identifier: Apache-2.0

package transformer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// family is what distinguishes the models of one model_type.
type family struct {
	causal, classifier string // transformers' classes
	// defaults are the keys of the config class with their values, where they differ from common.
	defaults string
	// harmless are keys that files of the family have and that nothing is computed by, beside those of every family.
	harmless []string
	// only are keys that would change what is computed, with the values that do not.
	only map[string][]string
	// resolve fills in what follows from other fields; nil: nothing does.
	resolve func(c *Config)
	// spec is what the stack computes.
	spec func(c *Config) spec
	// fused: queries, keys and values are saved as one array, and so are gate and up.
	fused bool
}

// spec is what a stack computes, beside the sizes in its Config.
type spec struct {
	norms      placement
	normOffset float64 // what is added to the weights of norms
	qkNorm     bool    // of each head
	wideQKNorm bool    // of all heads together
	qkvBias    bool
	outBias    bool
	mlpBias    bool
	embedScale float64 // of embeddings; 0: none
	attnScale  float64 // of scores; 0: 1/√HeadDim
	attnCap    float64 // soft cap of scores; 0: none
	finalCap   float64 // soft cap of logits; 0: none
	windows    []int   // of the layers, 0 for none; nil: none has one
	unrotated  []bool  // layers without RoPE; nil: none
}

// placement is where the norms of a block are.
type placement uint8

const (
	preNorm      placement = iota // before attention and MLP
	sandwichNorm                  // before and behind both
	postNorm                      // behind both
)

var families = map[string]*family{}

// register makes a family known by its model_type.
func register(modelType string, f family) {
	families[modelType] = &f
	models.Register(modelType, func(in *nn.Init, config []byte) (models.Configured, error) {
		cfg, err := ParseConfig(config)
		if err != nil {
			return nil, err
		}
		if cfg.Labels != nil {
			return NewClassifier(in, cfg)
		}
		return New(in, cfg)
	})
}

// common are the keys that most families have, with the values that most have.
const common = `{"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
	"num_attention_heads": 32, "num_key_value_heads": null, "head_dim": null, "hidden_act": "silu",
	"max_position_embeddings": 32768, "initializer_range": 0.02, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
	"attention_dropout": 0, "bos_token_id": null, "eos_token_id": null, "pad_token_id": null}`

// read are the keys that are read beside those of the config classes: of heads, of dtypes, and of RoPE in all its
// spellings.
var read = []string{"architectures", "model_type", "dtype", "torch_dtype", "id2label", "label2id", "num_labels",
	"problem_type", "rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor"}

// harmless are keys that transformers' base class, or a common tool, writes into any config.json and that change
// nothing that a decoder computes: settings of generation, of what a Python call returns, notes on the origin.
var harmless = strings.Fields(`_model_name_or_path _name_or_path _attn_implementation
	_attn_implementation_autoset _commit_hash
	_experts_implementation attn_implementation auto_map bad_words_ids begin_suppress_tokens
	chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample
	early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task
	forced_bos_token_id forced_eos_token_id gradient_checkpointing length_penalty max_length max_new_tokens
	min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions
	output_hidden_states output_scores prefix pretraining_tp prompt_token_ids remove_invalid_values
	repetition_penalty return_dict return_dict_in_generate sep_token_id suppress_tokens task_specific_params
	temperature tf_legacy_loss tie_encoder_decoder tokenizer_class tokenizer_model top_k top_p torchscript
	transformers.js_config transformers_version typical_p unk_token_id unsloth_fixed unsloth_version use_bfloat16
	use_cache`)

// onlyDefault are keys that would change what is computed, or what the weights mean, with the values that do not.
var onlyDefault = map[string][]string{
	"add_cross_attention":  {"false", "null"},
	"is_decoder":           {"false", "true", "null"},
	"is_encoder_decoder":   {"false", "null"},
	"pruned_heads":         {"{}", "null"},
	"quantization_config":  {"null"},
	"compression_config":   {"null"},
	"rope_interleaved":     {"false", "null"},
	"residual_multiplier":  {"1", "1.0", "null"},
	"embedding_multiplier": {"1", "1.0", "null"},
	"logits_scaling":       {"1", "1.0", "null"},
}

// keys are those of the config class, in its order.
func (f *family) keys() []string {
	var list []string
	for _, text := range []string{common, f.defaults} {
		d := json.NewDecoder(strings.NewReader(text))
		d.Token() // {, as TestDefaults sees
		for d.More() {
			key, _ := d.Token()
			var value json.RawMessage
			if d.Decode(&value) != nil {
				break
			}
			if name := key.(string); !slices.Contains(list, name) {
				list = append(list, name)
			}
		}
	}
	return list
}

// class is the class of transformers.
func (f *family) class(c Config) string {
	if c.Labels != nil {
		return f.classifier
	}
	return f.causal
}

// ledger refuses keys that the family does not know, and values that would change what is computed.
func (f *family) ledger(given map[string]json.RawMessage) error {
	known := slices.Concat(f.keys(), read, harmless, f.harmless)
	var unknown []string
	var faults []error
	for _, key := range slices.Sorted(maps.Keys(given)) {
		values, limited := f.only[key]
		if !limited {
			values, limited = onlyDefault[key]
		}
		value := string(bytes.TrimSpace(given[key]))
		switch {
		case limited && !slices.Contains(values, value):
			faults = append(faults, fmt.Errorf("%s = %.100s is not supported: want %s", key, value,
				strings.Join(values, " or ")))
		case !limited && !slices.Contains(known, key):
			unknown = append(unknown, fmt.Sprintf("%.100s = %.60s", key, value))
		}
	}
	if len(unknown) > 0 {
		faults = append(faults, fmt.Errorf("unknown: %s: this family has no such key, and it may change what is "+
			"computed: want a configuration without it", strings.Join(unknown, ", ")))
	}
	return errors.Join(faults...)
}

// slidingWindows are the windows of the layers by LayerTypes.
func (c *Config) slidingWindows() []int {
	if c.SlidingWindow == nil || !slices.Contains(c.LayerTypes, SlidingAttention) {
		return nil
	}
	windows := make([]int, len(c.LayerTypes))
	for i, kind := range c.LayerTypes {
		if kind == SlidingAttention {
			windows[i] = *c.SlidingWindow
		}
	}
	return windows
}

// sameWindow is the window of all layers.
func (c *Config) sameWindow() []int {
	if c.SlidingWindow == nil {
		return nil
	}
	return slices.Repeat([]int{*c.SlidingWindow}, c.NumHiddenLayers)
}

// activationOf is the function of a valid configuration.
func (c *Config) activationOf() tensor.Activation { return activations[c.activation()] }
