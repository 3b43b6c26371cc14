// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/ranks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// GenerateFunc continues a prompt and returns the new tokens. maxLength is generation_max_length, the most tokens of
// the prompt and its continuation together; 0: it is not set. m is this rank's model. The tokens depend only on the
// prompt and the weights, so they are the same on any number of ranks.
type GenerateFunc func(ctx context.Context, c *nn.Ctx, m models.Generator, prompt []int, maxLength int) ([]int, error)

// WithGeneration says how predict_with_generate continues prompts: the method Continue of generation.Options (package
// models/generation) does it greedily or by sampling. Without predict_with_generate it has no effect.
func WithGeneration(f GenerateFunc) Option { return func(t *Trainer) { t.generator = f } }

// checkGeneration rejects predict_with_generate where nothing can be generated.
func (t *Trainer) checkGeneration() error {
	if !t.args.PredictWithGenerate {
		return nil
	}
	if _, ok := t.model.(models.Generator); !ok {
		return fmt.Errorf("trainer: predict_with_generate: %T cannot generate text (models.Generator): want "+
			"predict_with_generate false",
			t.model)
	}
	if t.generator == nil {
		return errors.New("trainer: predict_with_generate needs a function that generates: want WithGeneration with " +
			"generation.Options.Continue, or predict_with_generate false")
	}
	return nil
}

// generates reports whether the predictions of a pass are generated tokens.
func (t *Trainer) generates(pass *evaluation) bool {
	return t.args.PredictWithGenerate && t.keepsPredictions(pass)
}

// prompts are the predictions of a batch before their tokens are generated: their prompts and labels.
func prompts(c *nn.Ctx, b *data.Batch) ([]Prediction, error) {
	ids, mask := b.Tensors[data.InputIDs], b.Tensors[data.AttentionMask]
	if ids == nil || len(ids.Shape()) != 2 || mask != nil && !slices.Equal(mask.Shape(), ids.Shape()) {
		return nil, fmt.Errorf("trainer: predict_with_generate: the batch has %s: want %s of shape [samples, "+
			"tokens], and %s, if present, of the same shape", b.Names(), data.InputIDs, data.AttentionMask)
	}
	list := labelled(c, b)
	tokens, kept := integers(c, ids), integers(c, mask)
	width := ids.Shape()[1]
	for i := range list {
		end := width
		if list[i].Labels != nil {
			end = promptEnd(list[i].Labels, b.Tensors[data.Labels] == nil, width)
		}
		for j := i * width; j < i*width+end; j++ {
			if kept == nil || kept[j] != 0 {
				list[i].Prompt = append(list[i].Prompt, tokens[j])
			}
		}
		if len(list[i].Prompt) == 0 {
			return nil, fmt.Errorf("trainer: predict_with_generate: sample %d has no tokens before its first label: "+
				"want a prompt", list[i].Index)
		}
	}
	return list, nil
}

// promptEnd is the number of tokens, with padding, before the first one that a label asks for. No label asks for the
// first token of a text. Shifted labels stand beside the token before.
func promptEnd(labels []float64, shifted bool, width int) int {
	for i, label := range labels {
		if shifted {
			i++
		}
		if label != tensor.IgnoreIndex && i > 0 {
			return min(i, width)
		}
	}
	return width
}

// integers are the elements of a tensor; nil for nil.
func integers(c *nn.Ctx, t *tensor.Tensor) []int {
	if t == nil {
		return nil
	}
	list := make([]int, 0, t.Numel())
	for _, x := range tensor.ToSlice[int64](c.Ctx, tensor.Cast(c.Ctx, t, tensor.Int64)) {
		list = append(list, int(x))
	}
	return list
}

// generate continues the prompts of this rank. Ranks that must compute at the same time, as those that gather a sharded
// model's parameters, continue the prompts of all of them, each rank every one.
func (t *Trainer) generate(ctx context.Context, pass *evaluation) error {
	peers := t.acc.ComputingRanks()
	all, err := gatherPrompts(context.WithoutCancel(ctx), peers, pass.predictions)
	if err != nil {
		return err
	}
	made, interrupted := map[int64][]int{}, false
	err = t.acc.SummonParts(func() error {
		for _, p := range all {
			interrupted = ctx.Err() != nil
			if err := peers.Agree(context.WithoutCancel(ctx), &interrupted); err != nil || interrupted {
				return err
			}
			if made[p.Index] != nil {
				continue // ranks that share matrices have the same samples
			}
			out, err := t.continued(ctx, peers, p)
			if err != nil && ctx.Err() == nil {
				return fmt.Errorf("trainer: predict_with_generate: sample %d: %w", p.Index, err)
			}
			made[p.Index] = append([]int{}, out...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range pass.predictions {
		pass.predictions[i].Generated = made[pass.predictions[i].Index]
	}
	return t.endBatches(context.WithoutCancel(ctx), interrupted || ctx.Err() != nil, false, nil, causeOf(ctx))
}

// continued is the continuation of a prompt. The end of a context must not stop one of several ranks that compute
// together.
func (t *Trainer) continued(ctx context.Context, peers *ranks.Peers, p Prediction) (out []int, err error) {
	limit := 0
	if t.args.GenerationMaxLength != nil {
		limit = *t.args.GenerationMaxLength
	}
	if limit > 0 && len(p.Prompt) >= limit {
		return nil, fmt.Errorf("the prompt has %d tokens: want fewer than generation_max_length (%d)", len(p.Prompt),
			limit)
	}
	if peers.WorldSize() > 1 {
		ctx = context.WithoutCancel(ctx)
	}
	fault := tensor.Recover(func() {
		out, err = t.generator(ctx, t.acc.EvalCtx(), t.model.(models.Generator), slices.Clone(p.Prompt), limit)
	})
	if err = errors.Join(fault, err); err != nil {
		err = fmt.Errorf("%s: %w", passedTo("WithGeneration"), err)
	}
	return out, err
}

// gatherPrompts are the prompts of all peers, the same list on each.
func gatherPrompts(ctx context.Context, peers *ranks.Peers, mine []Prediction) ([]Prediction, error) {
	if peers.WorldSize() == 1 {
		return mine, nil
	}
	rows := make([]ranks.Row, len(mine))
	for i, p := range mine {
		rows[i] = ranks.Row{Index: p.Index, Arrays: []ranks.Array{tokensOf(p.Prompt)}}
	}
	parts, err := peers.GatherRows(ctx, rows)
	if err != nil {
		return nil, err
	}
	var all []Prediction
	for rank, part := range parts {
		for _, row := range part {
			if len(row.Arrays) != 1 || row.Arrays[0].DType != tensor.Int64 {
				return nil, fmt.Errorf("trainer: prompts of rank %d: sample %d: want tokens in int64", rank, row.Index)
			}
			all = append(all, Prediction{Index: row.Index, Prompt: integersOf(row.Arrays[0])})
		}
	}
	return all, nil
}

// tokensOf is a list of tokens as ranks tell it each other.
func tokensOf(list []int) ranks.Array {
	wide := make([]int64, len(list))
	for i, x := range list {
		wide[i] = int64(x)
	}
	return ranks.Array{DType: tensor.Int64, Shape: []int{len(list)}, Data: bytesOf(wide)}
}

func integersOf(a ranks.Array) []int {
	wide := elementsOf[int64](a)
	list := make([]int, len(wide))
	for i, x := range wide {
		list[i] = int(x)
	}
	return list
}

// Texts decodes each sample's labels and the tokens that were generated for it, for metrics of texts such as
// metrics.ChrF. Labels that are tensor.IgnoreIndex (−100) are left out. It is an error without predict_with_generate.
func (p EvalPrediction) Texts(decode func(ids []int) (string, error)) (references, predictions []string, err error) {
	for _, s := range p.Predictions {
		switch {
		case s.Generated == nil:
			return nil, nil, fmt.Errorf("trainer: sample %d has no generated tokens: want predict_with_generate",
				s.Index)
		case s.Labels == nil:
			return nil, nil, fmt.Errorf("trainer: sample %d has no labels", s.Index)
		}
		var wanted []int
		for _, label := range s.Labels {
			if label != tensor.IgnoreIndex {
				wanted = append(wanted, int(label))
			}
		}
		for _, part := range []struct {
			ids  []int
			into *[]string
		}{{wanted, &references}, {s.Generated, &predictions}} {
			text, err := decode(part.ids)
			if err != nil {
				return nil, nil, fmt.Errorf("trainer: tokens of sample %d: %w", s.Index, err)
			}
			*part.into = append(*part.into, text)
		}
	}
	return references, predictions, nil
}
