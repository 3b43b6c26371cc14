// SPDX-License-Identifier: Apache-2.0

// Package generation continues sequences of tokens with a language model: greedily, or by sampling with
// temperature, top-k and top-p. Use it to write text with a trained model, such as that of models/gpt2:
// [Generate] takes the ids of a prompt and returns those that follow.
//
// It works on token ids; package data/tokenizers turns text into ids and back.
package generation

import (
	"cmp"
	"context"
	"errors"
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
// nothing: set MaxNewTokens.
type Options struct {
	MaxNewTokens int
	// Temperature divides the logits; 0 chooses the likeliest token.
	Temperature float64
	// TopK keeps the k likeliest tokens; 0 keeps all (Fan et al. 2018).
	TopK int
	// TopP keeps the smallest set of likeliest tokens whose probability reaches p; 0 or 1
	// keeps all (Holtzman et al. 2020).
	TopP float64
	// RepetitionPenalty makes tokens that the prompt or the text already has less likely: their logits are divided by
	// it if positive and multiplied by it if negative (Keskar et al. 2019). 0 and 1 change nothing, below 1 repeats
	// more.
	RepetitionPenalty float64
	// EOS are the tokens that end the text.
	EOS []int
	// Seed of the draws.
	Seed uint64
	// OnToken, if set, is called with each new token as it comes.
	OnToken func(id int)
}

// Validate reports all faults at once.
func (o Options) Validate() error {
	var bad models.Faults
	positive := func(v float64) bool { return v >= 0 && !math.IsInf(v, 0) }
	bad.Want(o.MaxNewTokens >= 0, "max_new_tokens = %d: want at least 0", o.MaxNewTokens)
	bad.Want(positive(o.Temperature), "temperature = %g: want a number ≥ 0", o.Temperature)
	bad.Want(o.TopK >= 0, "top_k = %d: want at least 0", o.TopK)
	bad.Want(o.TopP >= 0 && o.TopP <= 1, "top_p = %g: want a probability in [0, 1]", o.TopP)
	bad.Want(positive(o.RepetitionPenalty), "repetition_penalty = %g: want a number ≥ 0", o.RepetitionPenalty)
	if len(bad) > 0 {
		return fmt.Errorf("generation: %s", strings.Join(bad, "; "))
	}
	return nil
}

// Generate continues prompt and returns the new tokens, the ending EOS included. When the
// model's context is full it goes on from the last half of it. A canceled context ends
// it with what was generated and the context's cause.
func Generate(ctx context.Context, c *nn.Ctx, m models.Generator, prompt []int, opt Options) ([]int, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	if len(prompt) == 0 {
		return nil, fmt.Errorf("generation: the prompt is empty: want at least one token")
	}
	var out []int
	var fault error
	err := tensor.Try(func() {
		c = c.With(c.NoGrad())
		c.Training = false
		cache := m.NewCache(c, 1)
		defer cache.Free()
		all := slices.Clone(prompt)
		feed := all
		draws := rng.NewStream(rng.Key(opt.Seed, "generation", 0))
		for len(out) < opt.MaxNewTokens && ctx.Err() == nil {
			if cache.Len()+len(feed) > cache.Cap() {
				cache.Reset()
				feed = all[max(0, len(all)-max(1, cache.Cap()/2)):]
			}
			logits := next(c, m, feed, cache)
			if best := logits[argmax(logits)]; math.IsNaN(float64(best)) || math.IsInf(float64(best), 0) {
				fault = fmt.Errorf(
					"generation: the largest logit of token %d is %g: the model's weights are not finite", len(all),
					best)
				return
			}
			penalize(logits, all, opt.RepetitionPenalty)
			id := choose(logits, opt, draws)
			out, all = append(out, id), append(all, id)
			feed = all[len(all)-1:]
			if opt.OnToken != nil {
				opt.OnToken(id)
			}
			if slices.Contains(opt.EOS, id) {
				return
			}
		}
	})
	switch {
	case err != nil:
		return out, err
	case fault != nil:
		return out, fault
	}
	return out, context.Cause(ctx)
}

// Continue is Generate with the signature of trainer.WithGeneration: maxLength, if it is not 0, bounds the tokens of
// prompt and continuation together, beside MaxNewTokens, of which 0 then is no bound.
func (o Options) Continue(ctx context.Context, c *nn.Ctx, m models.Generator, prompt []int, maxLength int) ([]int,
	error) {
	switch room := maxLength - len(prompt); {
	case maxLength > 0 && (o.MaxNewTokens == 0 || room < o.MaxNewTokens):
		o.MaxNewTokens = max(room, 0)
	case o.MaxNewTokens == 0:
		return nil, errors.New("generation: there is no bound for the number of tokens: want MaxNewTokens, or " +
			"generation_max_length")
	}
	return Generate(ctx, c, m, prompt, o)
}

// next returns the logits of the token that follows ids.
func next(c *nn.Ctx, m models.Generator, ids []int, cache models.Cache) []float32 {
	in := make([]int32, len(ids))
	for i, id := range ids {
		in[i] = int32(id)
	}
	var logits []float32
	c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
		y := m.Next(c, tensor.FromSlice(c.Ctx, in, 1, len(in)), cache)
		logits = tensor.ToSlice[float32](c.Ctx, tensor.Cast(c.Ctx, y, tensor.Float32))
		return nil
	})
	return logits
}

// penalize makes the tokens of seen less likely, each once however often it is there.
func penalize(logits []float32, seen []int, penalty float64) {
	if penalty == 0 || penalty == 1 {
		return
	}
	done := map[int]bool{}
	for _, id := range seen {
		switch x := logits[id]; {
		case done[id]:
		case x < 0:
			logits[id] = x * float32(penalty)
		default:
			logits[id] = x / float32(penalty)
		}
		done[id] = true
	}
}

// choose picks a token from logits.
func choose(logits []float32, opt Options, draws *rng.Stream) int {
	if opt.Temperature == 0 {
		return argmax(logits)
	}
	order := make([]int, len(logits))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(logits[b], logits[a]) })
	if opt.TopK > 0 {
		order = order[:min(opt.TopK, len(order))]
	}
	p, total := make([]float64, len(order)), 0.0
	for i, id := range order {
		p[i] = math.Exp((float64(logits[id]) - float64(logits[order[0]])) / opt.Temperature)
		total += p[i]
	}
	if opt.TopP > 0 && opt.TopP < 1 {
		sum := 0.0
		for i := range p {
			if sum += p[i]; sum >= opt.TopP*total {
				order, total = order[:i+1], sum
				break
			}
		}
	}
	u := draws.Float64() * total
	for i, id := range order {
		if u -= p[i]; u < 0 {
			return id
		}
	}
	return order[len(order)-1]
}

// argmax is the first index of the largest element, or of a NaN.
func argmax(x []float32) int {
	best := 0
	for i, v := range x {
		if v > x[best] || v != v {
			best = i
		}
	}
	return best
}
