// SPDX-License-Identifier: Apache-2.0

// Package generation continues sequences of tokens with a language model, one or a batch, as transformers' generate
// does: greedily, or by sampling with temperature, top-k, top-p and min-p. Use it to write text with a trained model,
// such as that of models/gpt2: [Generate] takes the ids of a prompt and returns those that follow.
//
// It works on token ids; package data/tokenizers turns text into ids and back.
package generation

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/rng"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Options say how the next token is chosen. The zero value is greedy and generates
// nothing: set MaxNewTokens. Logits are changed in the order of the fields, as in transformers.
type Options struct {
	MaxNewTokens int
	// NumReturnSequences is how many texts Batch continues each prompt by, each with its own draws; 0 is 1.
	NumReturnSequences int
	// PrefillChunk is how many tokens of a prompt the model reads at a time, which takes less memory; 0: all
	// (prefill_chunk_size). The bits are the same, except with dynamic RoPE, whose angles depend on the length so far.
	PrefillChunk int
	// RepetitionPenalty makes tokens that the prompt or the text already has less likely: their logits are divided by
	// it if positive and multiplied by it if negative (Keskar et al. 2019). 0 and 1 change nothing, below 1 repeats
	// more.
	RepetitionPenalty float64
	// NoRepeatNGram is the length of sequences of tokens, those of the prompt included, that come once only; 0: any may
	// come again (no_repeat_ngram_size).
	NoRepeatNGram int
	// MinNewTokens is how many tokens come before one of EOS may.
	MinNewTokens int
	// Processors change logits by what a program needs. −Inf forbids a token.
	Processors []Processor
	// Temperature divides the logits; 0 chooses the likeliest token.
	Temperature float64
	// TopK keeps the k likeliest tokens; 0 keeps all (Fan et al. 2018).
	TopK int
	// TopP keeps the smallest set of likeliest tokens whose probability reaches p; 0 or 1
	// keeps all (Holtzman et al. 2020).
	TopP float64
	// MinP keeps the tokens that are at least so probable, as a share of the likeliest one's probability; 0 keeps all
	// (Nguyen et al. 2024).
	MinP float64

	// EOS are the tokens that end the text.
	EOS []int
	// Stop, if set, is asked after each token whether the text ends with it, and is given the new tokens: see
	// StopStrings.
	Stop func(tokens []int) bool
	// Seed of the draws.
	Seed uint64
	// OnToken, if set, is called with each new token as it comes: of a batch, with those of its first text.
	OnToken func(id int)
	// OnBatchToken, if set, is called with each new token of each text of a batch.
	OnBatchToken func(text, id int)
}

// Processor changes the logits of the token that follows tokens, which begin with the prompt.
type Processor func(tokens []int, logits []float32)

// Validate reports all faults at once.
func (o Options) Validate() error {
	var bad models.Faults
	positive := func(v float64) bool { return v >= 0 && !math.IsInf(v, 0) }
	bad.Want(o.MaxNewTokens >= 0, "max_new_tokens = %d: want at least 0", o.MaxNewTokens)
	bad.Want(o.NumReturnSequences >= 0, "num_return_sequences = %d: want at least 0", o.NumReturnSequences)
	bad.Want(o.PrefillChunk >= 0, "prefill_chunk_size = %d: want at least 0", o.PrefillChunk)
	bad.Want(o.MinNewTokens >= 0, "min_new_tokens = %d: want at least 0", o.MinNewTokens)
	bad.Want(positive(o.Temperature), "temperature = %g: want a number ≥ 0", o.Temperature)
	bad.Want(o.TopK >= 0, "top_k = %d: want at least 0", o.TopK)
	bad.Want(o.TopP >= 0 && o.TopP <= 1, "top_p = %g: want a probability in [0, 1]", o.TopP)
	bad.Want(o.MinP >= 0 && o.MinP <= 1, "min_p = %g: want a share in [0, 1]", o.MinP)
	bad.Want(positive(o.RepetitionPenalty), "repetition_penalty = %g: want a number ≥ 0", o.RepetitionPenalty)
	bad.Want(o.NoRepeatNGram >= 0, "no_repeat_ngram_size = %d: want at least 0", o.NoRepeatNGram)
	if len(bad) > 0 {
		return fmt.Errorf("generation: %s", strings.Join(bad, "; "))
	}
	return nil
}

// Generate continues prompt and returns the new tokens, the ending EOS included. When the model's context is full it
// continues from the last half of it. A canceled context ends it with what was generated and the context's cause.
func Generate(ctx context.Context, c *nn.Ctx, m models.Generator, prompt []int, opt Options) ([]int, error) {
	opt.NumReturnSequences = 1
	out, err := Batch(ctx, c, m, [][]int{prompt}, opt)
	if len(out) == 0 {
		return nil, err
	}
	return out[0], err
}

// Batch continues several prompts, of any lengths, together, and returns the new tokens of each, as Generate does. A
// text does not depend on the others: shorter prompts are padded on the left, and each text has its own random numbers;
// the first text has those of Generate. Only RoPE that depends on the length, dynamic and LongRoPE, has that of the
// longest, as in transformers. The texts of one prompt (NumReturnSequences) follow one another.
func Batch(ctx context.Context, c *nn.Ctx, m models.Generator, prompts [][]int, opt Options) (out [][]int, err error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	b := &batch{opt: opt, m: m}
	for i, prompt := range prompts {
		if len(prompt) == 0 {
			which := "the prompt"
			if len(prompts) > 1 {
				which = fmt.Sprintf("prompt %d of %d", i+1, len(prompts))
			}
			return nil, errEmpty(which)
		}
		for range max(1, opt.NumReturnSequences) {
			b.texts = append(b.texts, newText(len(b.texts), prompt, opt.Seed))
		}
	}
	var fault error
	err = tensor.Try(func() {
		c = c.With(c.NoGrad())
		c.Training = false
		b.cache = m.NewCache(c, len(b.texts))
		defer b.cache.Free()
		for fault == nil && b.goesOn() && ctx.Err() == nil {
			fault = b.step(c)
		}
	})
	for _, t := range b.texts {
		out = append(out, t.new())
	}
	switch {
	case err != nil:
		return out, err
	case fault != nil:
		return out, fault
	}
	return out, context.Cause(ctx)
}

// defaultNewTokens is how many tokens follow a prompt where nothing says how many: the default of transformers.
const defaultNewTokens = 20

// Continue is Generate with the signature of trainer.WithGeneration: maxLength, if it is not 0, bounds the tokens of
// prompt and continuation together, beside MaxNewTokens, of which 0 then is no bound. Without any bound there are at
// most 20 new tokens, as in transformers.
func (o Options) Continue(ctx context.Context, c *nn.Ctx, m models.Generator, prompt []int, maxLength int) ([]int,
	error) {
	switch room := maxLength - len(prompt); {
	case maxLength > 0 && (o.MaxNewTokens == 0 || room < o.MaxNewTokens):
		o.MaxNewTokens = max(room, 0)
	case o.MaxNewTokens == 0:
		o.MaxNewTokens = defaultNewTokens
	}
	return Generate(ctx, c, m, prompt, o)
}

func errEmpty(which string) error {
	return fmt.Errorf("generation: %s is empty: want at least one token", which)
}

// text is one text of a batch.
type text struct {
	all    []int // prompt, and what came after it
	prompt int   // tokens of it
	ended  bool
	draws  *rng.Stream
}

// newText begins the text of a number in a batch.
func newText(number int, prompt []int, seed uint64) *text {
	return &text{all: slices.Clone(prompt), prompt: len(prompt),
		draws: rng.NewStream(rng.Key(seed, "generation", uint64(number)))}
}

func (t *text) new() []int { return t.all[t.prompt:] }

// batch is texts that are continued together.
type batch struct {
	opt   Options
	m     models.Generator
	cache models.Cache
	texts []*text
}

// goesOn reports whether a text needs another token.
func (b *batch) goesOn() bool {
	return slices.ContainsFunc(b.texts, func(t *text) bool { return !t.ended && len(t.new()) < b.opt.MaxNewTokens })
}

// step adds a token to each text that has not ended.
func (b *batch) step(c *nn.Ctx) error {
	logits := b.next(c)
	vocabulary := len(logits) / len(b.texts)
	for i, t := range b.texts {
		if t.ended {
			continue
		}
		id, err := b.opt.extend(t, logits[i*vocabulary:][:vocabulary])
		if err != nil {
			return err
		}
		if b.opt.OnToken != nil && i == 0 {
			b.opt.OnToken(id)
		}
		if b.opt.OnBatchToken != nil {
			b.opt.OnBatchToken(i, id)
		}
	}
	return nil
}

// extend adds the token that is chosen by logits, and sees whether the text ends with it.
func (o *Options) extend(t *text, logits []float32) (id int, err error) {
	if best := logits[argmax(logits)]; math.IsNaN(float64(best)) || math.IsInf(float64(best), 0) {
		return 0, fmt.Errorf("generation: the largest logit of token %d is %g: the model's weights are not finite",
			len(t.all), best)
	}
	if id, err = o.choose(t, logits); err != nil {
		return 0, err
	}
	t.all = append(t.all, id)
	t.ended = slices.Contains(o.EOS, id) || o.Stop != nil && o.Stop(t.new())
	return id, nil
}

// next returns the logits of the texts' next tokens, one text behind the other.
func (b *batch) next(c *nn.Ctx) (logits []float32) {
	ids, rows := b.feed(), len(b.texts)
	n := len(ids) / rows
	chunk := cmp.Or(b.opt.PrefillChunk, n)
	for at := 0; at < n; at += chunk {
		var part []int32
		for row := range rows {
			part = append(part, ids[row*n+at:row*n+min(at+chunk, n)]...)
		}
		logits = logitsOf(c, b.m, b.cache, part, rows)
	}
	return logits
}

// logitsOf feeds rows of ids, one after the other, and returns the logits of what follows, one row behind the other.
func logitsOf(c *nn.Ctx, m models.Generator, k models.Cache, ids []int32, rows int) (logits []float32) {
	c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
		y := m.Next(c, tensor.FromSlice(c.Ctx, ids, rows, len(ids)/rows), k)
		logits = tensor.ToSlice[float32](c.Ctx, tensor.Cast(c.Ctx, y, tensor.Float32))
		return nil
	})
	return logits
}

// feed is what the model has not seen of the texts, with padding on the left. If there is no room in its context, that
// is the last half of it.
func (b *batch) feed() (ids []int32) {
	if held := b.cache.Len(); held > 0 && held < b.cache.Cap() {
		for _, t := range b.texts {
			ids = append(ids, int32(t.all[len(t.all)-1])) // of one that has ended anything will do
		}
		return ids
	}
	longest := 0
	for _, t := range b.texts {
		longest = max(longest, len(t.all))
	}
	if longest > b.cache.Cap() || b.cache.Len() > 0 {
		longest = max(1, b.cache.Cap()/2)
	}
	b.cache.Reset()
	first := make([]int, len(b.texts))
	for i, t := range b.texts {
		seen := t.all[max(0, len(t.all)-longest):]
		first[i] = longest - len(seen)
		ids = append(ids, make([]int32, first[i])...)
		for _, id := range seen {
			ids = append(ids, int32(id))
		}
	}
	b.cache.Pad(first)
	return ids
}
