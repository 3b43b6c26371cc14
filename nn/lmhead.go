// SPDX-License-Identifier: Apache-2.0

package nn

import "github.com/lockstep-ml/lockstep/tensor"

// LMHead is the head of a language model: it scores the tokens of a vocabulary by products of hidden states with the
// rows of Weight [V, C], as transformers' lm_head. A head that is tied to an Embedding has its Parameter.
type LMHead struct {
	Weight *Parameter `nn:"weight"`
}

// Forward maps hidden states h [..., C] to logits [..., V].
func (l *LMHead) Forward(c *Ctx, h *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, h *tensor.Tensor) *tensor.Tensor {
		return tensor.Linear(c.Ctx, h, c.Param(l.Weight), nil)
	}, h)
}

// LossSum is the CrossEntropySum of the logits, which never exist as a whole: see LinearCrossEntropySum.
func (l *LMHead) LossSum(c *Ctx, h, labels *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, h *tensor.Tensor) *tensor.Tensor {
		return LinearCrossEntropySum(c, h, l.Weight, nil, labels)
	}, h)
}

// LogProbs are the logarithms of the probabilities of labels, in their shape, without the logits: see LinearLogProbs.
func (l *LMHead) LogProbs(c *Ctx, h, labels *tensor.Tensor) *tensor.Tensor {
	return Unit1(c.WithLogProbs(), l, func(c *Ctx, h *tensor.Tensor) *tensor.Tensor {
		return LinearLogProbs(c, h, l.Weight, nil, labels)
	}, h)
}
