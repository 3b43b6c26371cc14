// SPDX-License-Identifier: Apache-2.0

package nn

import "github.com/lockstep-ml/lockstep/tensor"

// LMHead is the head of a language model: it scores the tokens of a vocabulary by products of hidden states with the
// rows of Weight [V, C], as transformers' lm_head. A head that is tied to an Embedding has its Parameter.
type LMHead struct {
	Weight  *Parameter `nn:"weight"`
	SoftCap float64    // of the logits, see tensor.SoftCap; 0: none
}

// Forward maps hidden states h [..., C] to logits [..., V].
func (l *LMHead) Forward(c *Ctx, h *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, h *tensor.Tensor) *tensor.Tensor {
		return l.logits(c, h)
	}, h)
}

// LossSum is the CrossEntropySum of the logits, which never exist as a whole: see LinearCrossEntropySum.
func (l *LMHead) LossSum(c *Ctx, h, labels *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, h *tensor.Tensor) *tensor.Tensor {
		if l.SoftCap == 0 {
			return LinearCrossEntropySum(c, h, l.Weight, nil, labels)
		}
		checkLabels(c, "nn.LMHead.LossSum", h, labels)
		if c.labelSmoothing() != 0 { // the mean of capped logits takes all of them
			return CrossEntropySum(c, l.logits(c, h), labels)
		}
		return tensor.LinearCrossEntropyCapped(c.Ctx, tensor.Reshape(c.Ctx, h, -1, h.Size(-1)), c.Param(l.Weight), nil,
			tensor.Reshape(c.Ctx, labels, -1), tensor.IgnoreIndex, l.SoftCap)
	}, h)
}

func (l *LMHead) logits(c *Ctx, h *tensor.Tensor) *tensor.Tensor {
	z := tensor.Linear(c.Ctx, h, c.Param(l.Weight), nil)
	if l.SoftCap == 0 {
		return z
	}
	return tensor.SoftCap(c.Ctx, z, l.SoftCap)
}

// LogProbs are the logarithms of the probabilities of labels, in their shape, without the logits: see LinearLogProbs.
func (l *LMHead) LogProbs(c *Ctx, h, labels *tensor.Tensor) *tensor.Tensor {
	return Unit1(c.WithLogProbs(), l, func(c *Ctx, h *tensor.Tensor) *tensor.Tensor {
		if l.SoftCap == 0 {
			return LinearLogProbs(c, h, l.Weight, nil, labels)
		}
		checkLabels(c, "nn.LMHead.LogProbs", h, labels)
		logs := tensor.LinearLogProbsCapped(c.Ctx, tensor.Reshape(c.Ctx, h, -1, h.Size(-1)), c.Param(l.Weight), nil,
			tensor.Reshape(c.Ctx, labels, -1), tensor.IgnoreIndex, l.SoftCap)
		return tensor.Reshape(c.Ctx, logs, labels.Shape()...)
	}, h)
}
