// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Resizable is implemented by models whose vocabulary can grow.
type Resizable interface {
	TokenReader
	// ResizeTokenEmbeddings grows the model's token embeddings to so many tokens, as transformers'
	// resize_token_embeddings: to the next multiple of padToMultipleOf, if that is not 0. A model that has as many
	// rows, or more, stays unchanged. New rows, those of padding included, are the mean of the old rows, computed in
	// float32. So the probabilities of the other tokens hardly change (Hewitt 2021, "Initializing New Word Embeddings
	// for Pretrained Language Models"). With mean_resizing transformers draws them from a normal distribution around
	// this mean, with 1e-9 of the rows' covariance; here they are the mean itself, alike on all ranks. A tied head
	// stays tied.
	//
	// Call it before you make a trainer, an optimizer or an adapter for the model: they keep the old tables.
	ResizeTokenEmbeddings(tokens, padToMultipleOf int) error
}

// GrowVocabulary is the ResizeTokenEmbeddings of a model with tables of a row per token, tied ones once or more often.
// size is where its configuration has their number. It is for packages of architectures.
func GrowVocabulary(tokens, padToMultipleOf int, size *int, tables ...*nn.Parameter) error {
	if tokens < 1 || padToMultipleOf < 0 {
		return fmt.Errorf("models: ResizeTokenEmbeddings to %d tokens, padded to a multiple of %d: want at least 1 "+
			"token, and a positive multiple or 0 for none", tokens, padToMultipleOf)
	}
	rows := tokens
	if m := padToMultipleOf; m > 0 {
		rows += (m - rows%m) % m
	}
	if rows <= *size && rows > 0 {
		return nil
	}
	if rows < 0 || rows > math.MaxInt32 {
		return fmt.Errorf("models: ResizeTokenEmbeddings to %d tokens, padded to a multiple of %d: want at most %d "+
			"rows", tokens, padToMultipleOf, math.MaxInt32)
	}
	grown := map[*nn.Parameter]*tensor.Tensor{}
	for _, p := range tables {
		if grown[p] != nil {
			continue
		}
		if p.Whole() != nil {
			return fmt.Errorf("models: ResizeTokenEmbeddings: ranks have parts of the embeddings %v: want it before "+
				"the model is divided", p.Whole().Shape())
		}
		if err := tensor.Try(func() { grown[p] = withMeanRows(p, rows) }); err != nil {
			return err
		}
	}
	for p, t := range grown {
		p.Tensor = t.SetRequiresGrad(p.IsLeaf())
	}
	*size = rows
	return nil
}

// withMeanRows is a table with further rows, its mean.
func withMeanRows(p *nn.Parameter, rows int) *tensor.Tensor {
	return tensor.NewCtx(p.Device()).NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		mean := tensor.Mean(c, tensor.Cast(c, p.Tensor, tensor.Float32), []int{0}, true)
		added := tensor.Expand(c, tensor.Cast(c, mean, p.DType()), rows-p.Size(0), p.Size(1))
		return []*tensor.Tensor{tensor.Concat(c, 0, p.Tensor, added)}
	})[0]
}
