// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// ClassifyTexts is the Forward of m, which gives each text one of several classes by the hidden state at the text's
// last token that is not pad, as transformers' ForSequenceClassification. It reads input_ids [B,T], position_ids [B,T]
// and labels, the classes [B] (both are optional). Logits are [B,classes]. The loss terms are texts: labels that are
// not tensor.IgnoreIndex; a head of one class gives scores, and takes no labels. With a nil pad a batch has one text.
// score is in the model's last Part.
func ClassifyTexts(c *nn.Ctx, m nn.Module, score *nn.Linear, pad *int, b *data.Batch, hidden Hidden) Output {
	ids := b.Required(data.InputIDs)
	if pad == nil && ids.Size(0) > 1 {
		why := fmt.Sprintf("%d texts and no pad_token_id: want it in the configuration, or one text", ids.Size(0))
		panic(&tensor.Error{Op: "models.ClassifyTexts", Msg: why, Where: c.Path()})
	}
	if score.Weight.Shape()[0] == 1 && b.Tensors[data.Labels] != nil {
		panic(&tensor.Error{Op: "models.ClassifyTexts", Msg: "labels of a head with one class, which scores texts: " +
			"want no labels, and a loss of the scores (package models/preference)", Where: c.Path()})
	}
	c = WithPositions(c, b)
	out := nn.Unit(c, m, func(c *nn.Ctx, in []*tensor.Tensor) []*tensor.Tensor {
		h := hidden(c, in[0])
		if !c.Runs(score) {
			return []*tensor.Tensor{h}
		}
		return LogitsAndLoss(c, score.Forward(c, lastTokens(c, ids, h, pad)), b.Tensors[data.Labels])
	}, c.Received(ids)...)
	if !c.Runs(score) {
		return Output{Hidden: out}
	}
	return NewOutput(out)
}

// lastTokens picks the hidden states [B,C] out of h [B,T,C] at the last token that is not pad. Of a text that is
// nothing else it is the first.
func lastTokens(c *nn.Ctx, ids, h *tensor.Tensor, pad *int) *tensor.Tensor {
	rows, length := ids.Size(0), ids.Size(1)
	if pad == nil {
		return tensor.Select(c.Ctx, h, 1, -1)
	}
	filling := tensor.Full(c.Ctx, ids.DType(), float64(*pad))
	real := tensor.Cast(c.Ctx, tensor.Ne(c.Ctx, ids, filling), tensor.Int64)
	places := tensor.Mul(c.Ctx, real, tensor.Arange(c.Ctx, tensor.Int64, 0, 1, length))
	last := tensor.ArgMax(c.Ctx, places, 1, false)
	first := tensor.Arange(c.Ctx, tensor.Int64, 0, float64(length), rows) // of each text, in the table of all tokens
	return tensor.Embedding(c.Ctx, tensor.Reshape(c.Ctx, h, rows*length, h.Size(2)), tensor.Add(c.Ctx, first, last))
}
