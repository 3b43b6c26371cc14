// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Hidden maps ids [B,T] to the hidden states [B,T,C] below a language model's head. A later stage of a pipeline maps
// the hidden states that it has received.
type Hidden func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor

// CausalLM is the Forward of language model m. It reads input_ids [B,T], position_ids [B,T] (optional) and, for the
// loss, shift_labels [B,T], the label of the next token at each place, or labels [B,T], which it shifts by one to make
// them; both together are an error. With either, it computes no logits under LossOnly, and only the labels'
// log-probabilities under LogProbs. head is in the model's last Part.
func CausalLM(c *nn.Ctx, m nn.Module, head *nn.LMHead, b *data.Batch, hidden Hidden) Output {
	c = WithPositions(c, b)
	in := c.Received(b.Required(data.InputIDs))
	if !c.Runs(head) {
		return Output{Hidden: []*tensor.Tensor{nn.Unit1(c, m, hidden, in[0])}}
	}
	labels := shiftLabels(c, b)
	if c.LogProbs {
		below := *c
		below.LogProbs, c = false, &below
		return Output{LogProbs: nn.Unit1(c, m, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
			return head.LogProbs(c, hidden(c, x), wantLabels(c, labels))
		}, in[0])}
	}
	alone := labels != nil && c.LossOnly
	out := nn.Unit(c, m, func(c *nn.Ctx, in []*tensor.Tensor) []*tensor.Tensor {
		h := hidden(c, in[0])
		if alone {
			return []*tensor.Tensor{head.LossSum(c, h, labels)}
		}
		return LogitsAndLoss(c, head.Forward(c, h), labels)
	}, in...)
	if alone {
		return Output{Loss: out[0]}
	}
	return NewOutput(out)
}

// WithPositions returns c with the position_ids of the batch, if it has some.
func WithPositions(c *nn.Ctx, b *data.Batch) *nn.Ctx {
	if p := b.Tensors[data.PositionIDs]; p != nil {
		return c.WithPositions(p)
	}
	return c
}

// AttentionMask is the mask of what the tokens of a batch may see: attention_mask hides padding, and with segment_ids a
// token sees only its own text. nil: all. The positions of these texts (position_ids) should restart with each.
func AttentionMask(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
	return nn.SegmentMask(c, b.Tensors[data.AttentionMask], b.Tensors[data.SegmentIDs])
}

// shiftLabels is the label of the next token at each place of the batch; nil if it has no labels.
func shiftLabels(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
	labels, shifted := b.Tensors[data.Labels], b.Tensors[data.ShiftLabels]
	switch {
	case labels == nil:
		return shifted
	case shifted == nil:
		return nn.NextTokens(c, labels)
	}
	panic(&tensor.Error{Op: "models.CausalLM", Msg: fmt.Sprintf("the batch has %s and %s: want %[2]s, which are "+
		"shifted, or %[1]s, which the model shifts", data.Labels, data.ShiftLabels), Where: c.Path()})
}

// wantLabels refuses a batch without the labels whose log-probabilities are asked for.
func wantLabels(c *nn.Ctx, labels *tensor.Tensor) *tensor.Tensor {
	if labels == nil {
		panic(&tensor.Error{Op: "models.CausalLM", Msg: fmt.Sprintf("log-probabilities of a batch without labels: "+
			"want %s or %s", data.ShiftLabels, data.Labels), Where: c.Path()})
	}
	return labels
}

// NextLogits is the Next of a Generator: the logits [B,V] of the token after the last of ids.
func NextLogits(c *nn.Ctx, m nn.Module, head *nn.LMHead, ids *tensor.Tensor, hidden Hidden) *tensor.Tensor {
	return nn.Unit1(c, m, func(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
		return head.Forward(c, tensor.Select(c.Ctx, hidden(c, ids), 1, -1))
	}, ids)
}
