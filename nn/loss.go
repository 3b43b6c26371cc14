package nn

import "github.com/lockstep-ml/lockstep/tensor"

// IgnoreIndex marks labels that do not count, as in PyTorch and transformers.
const IgnoreIndex = -100

// CrossEntropySum is the sum, over all labels except IgnoreIndex, of −log
// softmax(logits)[label], for logits [..., V] and labels [...]. Divide it by the number of
// counted labels of the whole optimizer step, never of a batch.
func CrossEntropySum(c *Ctx, logits, labels *tensor.Tensor) *tensor.Tensor {
	rows := tensor.Reshape(c.Ctx, logits, -1, logits.Size(-1))
	losses := tensor.CrossEntropy(c.Ctx, rows, tensor.Reshape(c.Ctx, labels, -1), IgnoreIndex)
	return tensor.Sum(c.Ctx, losses, nil, false)
}

// LinearCrossEntropySum is the CrossEntropySum of the logits h·weightᵀ + bias for h [..., C], weight [V, C] and bias [V] (nil: none). The logits never
// exist as a whole: see tensor.LinearCrossEntropy.
func LinearCrossEntropySum(c *Ctx, h *tensor.Tensor, weight, bias *Parameter, labels *tensor.Tensor) *tensor.Tensor {
	rows := tensor.Reshape(c.Ctx, h, -1, h.Size(-1))
	return tensor.LinearCrossEntropy(c.Ctx, rows, weight.tensor(), bias.tensor(), tensor.Reshape(c.Ctx, labels, -1), IgnoreIndex)
}

// CausalLMLossSum is the CrossEntropySum of predicting each next token: logits [B,T,V] at
// position t are compared with labels [B,T] at t+1.
func CausalLMLossSum(c *Ctx, logits, labels *tensor.Tensor) *tensor.Tensor {
	return CrossEntropySum(c, logits, NextTokens(c, labels))
}

// NextTokens shifts labels [B,T] by one, so that position t has the label of t+1; the last has IgnoreIndex. Shifting
// the labels avoids a copy of the logits, the largest tensor of the model.
func NextTokens(c *Ctx, labels *tensor.Tensor) *tensor.Tensor {
	next := tensor.Slice(c.Ctx, labels, 1, min(1, labels.Size(1)), labels.Size(1))
	none := tensor.Full(c.Ctx, labels.DType(), IgnoreIndex, labels.Size(0), labels.Size(1)-next.Size(1))
	return tensor.Concat(c.Ctx, 1, next, none)
}

// MSESum is the sum of squared differences.
func MSESum(c *Ctx, x, target *tensor.Tensor) *tensor.Tensor {
	d := tensor.Sub(c.Ctx, x, target)
	return tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, d, d), nil, false)
}
