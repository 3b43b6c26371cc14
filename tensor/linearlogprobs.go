// SPDX-License-Identifier: Apache-2.0

package tensor

import "github.com/lockstep-ml/lockstep/internal/backend"

// LinearLogProbs are the logarithms of the probabilities that a linear layer's outputs give to tokens, [N]: row i is
// log softmax(x·weightᵀ + bias)ᵢ[targetsᵢ] for x [N,K], weight [V,K], bias [V] (nil: none) and targets [N] (int32 or
// int64), and 0 where the target is ignoreIndex. They are float32 (float64 for float64 operands), and minus the rows
// of CrossEntropy with the same bits. A target outside [0,V) is a fault.
//
// As in LinearCrossEntropy the outputs [N,V] are never stored as a whole. The factors of the rows' gradients are known
// only in Backward, so backward computes the outputs again, chunk by chunk, if weight or bias have a gradient. Where
// both are frozen the gradient of x is computed with the log-probabilities.
func LinearLogProbs(c *Ctx, x, weight, bias, targets *Tensor, ignoreIndex int) *Tensor {
	return newHead(c, "LinearLogProbs", x, weight, bias, targets, ignoreIndex).logProbs(c)
}

// LinearLogProbsCapped is LinearLogProbs of outputs that pass SoftCap (Gemma 2).
func LinearLogProbsCapped(c *Ctx, x, weight, bias, targets *Tensor, ignoreIndex int, softCap float64) *Tensor {
	h := newHead(c, "LinearLogProbsCapped", x, weight, bias, targets, ignoreIndex)
	return h.withSoftCap(c, softCap).logProbs(c)
}

func (h *head) logProbs(c *Ctx) *Tensor {
	trained := h.ins[1].takesPart() || h.ins[2].takesPart()
	h.prepareGrads(c, func(i int) bool { return c.grad && !trained && h.ins[i].takesPart() })
	losses := h.run(c)
	logs := c.emptyLike(h.op, losses)
	a := floats(-1, 0)
	c.launchAttrs(backend.OpAffine, &a, logs, losses)
	if h.dx != nil {
		h.recordRows(c, logs)
	} else {
		h.recordAgain(c, logs)
	}
	return logs
}

// recordRows makes logs the result of a head whose weight and bias are frozen.
func (h *head) recordRows(c *Ctx, logs *Tensor) {
	dx := h.dx
	h.dx = nil
	c.record(h.op, []*Tensor{logs}, h.ins[:1], []*Tensor{dx}, func(b *Back) {
		scaled := Mul(b.Ctx, b.convert(h.op, dx, h.stat), Unsqueeze(b.Ctx, h.seedsOf(b, h.stat), 1))
		b.Set(0, b.convert(h.op, scaled, h.ins[0].GradDType()))
	})
	dx.st.orphan()
}

// recordAgain makes logs the result of a head that runs again for its gradients.
func (h *head) recordAgain(c *Ctx, logs *Tensor) {
	c.record(h.op, []*Tensor{logs}, h.ins, []*Tensor{h.x, h.weight, h.bias, h.targets}, func(b *Back) {
		again := *h
		again.seeds = h.seedsOf(b, h.x.dtype)
		again.prepareGrads(b.Ctx, b.Need)
		again.run(b.Ctx)
		for i, g := range []*Tensor{again.dx, again.dw, again.db} {
			if g == nil {
				continue
			}
			if i == 1 {
				g = g.narrow(0, 0, h.classes)
			}
			b.Set(i, b.convert(h.op, g, h.ins[i].GradDType()))
		}
	})
}

// seedsOf are what the gradients of the losses are multiplied by: a log-probability is minus a loss.
func (h *head) seedsOf(b *Back, dt DType) *Tensor {
	return b.convert(h.op, Neg(b.Ctx, b.materialize(h.op, b.Grad(0))), dt)
}
