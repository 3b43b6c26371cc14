// SPDX-License-Identifier: Apache-2.0

package generation

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/lockstep-ml/lockstep/internal/modelfiles"
)

// ConfigFile is the file of a saved model that has its settings of generation.
const ConfigFile = "generation_config.json"

// maxConfig bounds the file in bytes.
const maxConfig = 1 << 20

// config is what of the file concerns us.
type config struct {
	DoSample          bool            `json:"do_sample"`
	Temperature       *float64        `json:"temperature"`
	TopK              *int            `json:"top_k"`
	TopP              float64         `json:"top_p"`
	MinP              float64         `json:"min_p"`
	RepetitionPenalty float64         `json:"repetition_penalty"`
	NoRepeatNGram     int             `json:"no_repeat_ngram_size"`
	MinNewTokens      int             `json:"min_new_tokens"`
	MaxNewTokens      int             `json:"max_new_tokens"`
	NumReturn         int             `json:"num_return_sequences"`
	PrefillChunk      int             `json:"prefill_chunk_size"`
	EOS               json.RawMessage `json:"eos_token_id"`
}

// neutral are keys of transformers that change the text, and the values with which they do not.
var neutral = map[string][]string{
	"num_beams": {"1"}, "num_beam_groups": {"1"}, "typical_p": {"1", "1.0"},
	"epsilon_cutoff": {"0", "0.0"}, "eta_cutoff": {"0", "0.0"}, "penalty_alpha": {"0", "0.0"}, "top_h": nil,
	"guidance_scale": {"1", "1.0"}, "bad_words_ids": nil, "force_words_ids": nil, "sequence_bias": nil,
	"constraints": nil, "forced_bos_token_id": nil, "forced_eos_token_id": nil, "suppress_tokens": {"[]"},
	"begin_suppress_tokens": {"[]"}, "exponential_decay_length_penalty": nil, "stop_strings": {"[]"},
	"encoder_repetition_penalty": {"1", "1.0"}, "encoder_no_repeat_ngram_size": {"0"}, "watermarking_config": nil,
	"dola_layers": nil, "renormalize_logits": {"false", "true"}, "remove_invalid_values": {"false", "true"},
}

// Saved reads the options of a saved model from the generation_config.json of its folder; without the file they are
// greedy. As in transformers, temperature 1 and top_k 50 stand for what a file that samples does not say. MaxNewTokens
// is 0 if the file does not say. Settings that would change the text, and that are not built, are an error.
func Saved(dir string) (o Options, err error) {
	text, err := modelfiles.ReadFile(filepath.Join(dir, ConfigFile), maxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return o, nil
	}
	if err != nil {
		return o, fmt.Errorf("generation: %w", err)
	}
	if o, err = parse(text); err != nil {
		return o, fmt.Errorf("generation: %s: %w", filepath.Join(dir, ConfigFile), err)
	}
	return o, nil
}

func parse(text []byte) (o Options, err error) {
	var cfg config
	var given map[string]json.RawMessage
	if err := jsonfile.Unmarshal(text, &cfg); err != nil {
		return o, err
	}
	if err := json.Unmarshal(text, &given); err != nil {
		return o, err
	}
	var refused []string
	for key, values := range neutral {
		if value, ok := given[key]; ok && string(value) != "null" && !slices.Contains(values, string(value)) {
			refused = append(refused, fmt.Sprintf("%s is %.100s", key, value))
		}
	}
	if slices.Sort(refused); len(refused) > 0 {
		return o, fmt.Errorf("%s: not supported: want these settings left out", strings.Join(refused, ", "))
	}
	o = Options{MaxNewTokens: cfg.MaxNewTokens, MinNewTokens: cfg.MinNewTokens, NoRepeatNGram: cfg.NoRepeatNGram,
		RepetitionPenalty: cfg.RepetitionPenalty, NumReturnSequences: cfg.NumReturn, PrefillChunk: cfg.PrefillChunk}
	if cfg.DoSample {
		o.Temperature, o.TopK, o.TopP, o.MinP = 1, 50, cfg.TopP, cfg.MinP
		if cfg.Temperature != nil {
			o.Temperature = *cfg.Temperature
		}
		if cfg.TopK != nil {
			o.TopK = *cfg.TopK
		}
	}
	if o.EOS, err = tokenIDs(cfg.EOS); err != nil {
		return o, err
	}
	if cfg.DoSample && o.Temperature == 0 {
		return o, errors.New("temperature is 0 and do_sample true: want a temperature above 0, or do_sample false")
	}
	return o, o.Validate()
}

// EndTokens are the tokens at which the model of a generation_config.json stops; none if the file does not say, and the
// model's config.json counts.
func EndTokens(text []byte) ([]int, error) {
	var cfg struct {
		EOS json.RawMessage `json:"eos_token_id"`
	}
	if err := jsonfile.Unmarshal(text, &cfg); err != nil {
		return nil, fmt.Errorf("generation: %w", err)
	}
	ids, err := tokenIDs(cfg.EOS)
	if err != nil {
		return nil, fmt.Errorf("generation: %w", err)
	}
	return ids, nil
}

// tokenIDs reads one id, several or none.
func tokenIDs(text json.RawMessage) (ids []int, err error) {
	if len(text) == 0 || string(text) == "null" {
		return nil, nil
	}
	var one int
	if json.Unmarshal(text, &one) == nil {
		ids = []int{one}
	} else if json.Unmarshal(text, &ids) != nil {
		return nil, fmt.Errorf("eos_token_id is %.100s: want a token's id, or several", text)
	}
	for _, id := range ids {
		if id < 0 {
			return nil, fmt.Errorf("eos_token_id is %.100s: want ids of at least 0", text)
		}
	}
	return ids, nil
}
