// SPDX-License-Identifier: Apache-2.0

// Package sampling has the settings of the examples that generate text. It is no example itself.
package sampling

import (
	"slices"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/models/generation"
)

// SamplingArguments say how tokens are chosen. What is not given is as the model's generation_config.json has it.
type SamplingArguments struct {
	MaxNewTokens      *int     `json:"max_new_tokens" usage:"largest number of new tokens; none: the model's setting, or a default"`
	Temperature       *float64 `json:"temperature" usage:"0 takes the most likely token, 1 samples from the model's distribution; none: the model's setting"`
	TopK              *int     `json:"top_k" usage:"sample from the k most likely tokens; 0: from all; none: the model's setting"`
	TopP              *float64 `json:"top_p" usage:"sample from the most likely tokens whose probabilities add up to this; none: the model's setting"`
	MinP              *float64 `json:"min_p" usage:"sample from tokens with at least this share of the most likely token's probability; none: the model's setting"`
	RepetitionPenalty *float64 `json:"repetition_penalty" usage:"above 1, tokens that the text already has become less likely; none: the model's setting"`
	NoRepeatNGram     *int     `json:"no_repeat_ngram_size" usage:"never repeat a sequence of this many tokens; none: the model's setting"`
	Stop              []string `json:"stop" usage:"end the text before this string; repeatable"`
	Seed              uint64   `json:"seed" usage:"seed of the random draws"`
}

// Check reports all faults at once.
func (a *SamplingArguments) Check(c *args.Checker) {
	c.Require(a.MaxNewTokens == nil || *a.MaxNewTokens >= 1, "max_new_tokens", a.MaxNewTokens, "at least 1")
	c.Require(a.Temperature == nil || *a.Temperature >= 0, "temperature", a.Temperature, "at least 0")
	c.Require(a.TopK == nil || *a.TopK >= 0, "top_k", a.TopK, "at least 0")
	c.Require(a.TopP == nil || *a.TopP >= 0 && *a.TopP <= 1, "top_p", a.TopP, "a probability in [0, 1]")
	c.Require(a.MinP == nil || *a.MinP >= 0 && *a.MinP <= 1, "min_p", a.MinP, "a share in [0, 1]")
	c.Require(a.RepetitionPenalty == nil || *a.RepetitionPenalty > 0, "repetition_penalty", a.RepetitionPenalty,
		"a number above 0")
	c.Require(a.NoRepeatNGram == nil || *a.NoRepeatNGram >= 0, "no_repeat_ngram_size", a.NoRepeatNGram, "at least 0")
	c.Require(!slices.Contains(a.Stop, ""), "stop", a.Stop, "non-empty strings")
}

// Options are those of the model in a folder, changed by what is given. d is the model's tokenizer, and ends are tokens
// that end a text beside those of generation_config.json.
func (a *SamplingArguments) Options(dir string, d generation.Decoder, ends ...int) (generation.Options, error) {
	opt, err := generation.Saved(dir)
	if err != nil {
		return opt, err
	}
	give(&opt.MaxNewTokens, a.MaxNewTokens)
	give(&opt.Temperature, a.Temperature)
	give(&opt.TopK, a.TopK)
	give(&opt.TopP, a.TopP)
	give(&opt.MinP, a.MinP)
	give(&opt.RepetitionPenalty, a.RepetitionPenalty)
	give(&opt.NoRepeatNGram, a.NoRepeatNGram)
	opt.Seed = a.Seed
	for _, id := range ends {
		if !slices.Contains(opt.EOS, id) {
			opt.EOS = append(opt.EOS, id)
		}
	}
	if len(a.Stop) > 0 {
		opt.Stop = generation.StopStrings(d, a.Stop...)
	}
	return opt, nil
}

func give[T any](setting, given *T) {
	if given != nil {
		*setting = *given
	}
}
