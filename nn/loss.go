// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// CrossEntropySum is the sum, over all labels except tensor.IgnoreIndex, of −log
// softmax(logits)[label], for logits [..., V] and labels [...]. Divide it by the number of
// counted labels of the whole optimizer step, never of a batch.
func CrossEntropySum(c *Ctx, logits, labels *tensor.Tensor) *tensor.Tensor {
	if smoothing := c.labelSmoothing(); smoothing != 0 {
		return CrossEntropySumWith(c, logits, labels, CrossEntropyOptions{LabelSmoothing: smoothing})
	}
	checkLabels(c, "nn.CrossEntropySum", logits, labels)
	rows := tensor.Reshape(c.Ctx, logits, -1, logits.Size(-1))
	losses := tensor.CrossEntropy(c.Ctx, rows, tensor.Reshape(c.Ctx, labels, -1), tensor.IgnoreIndex)
	return tensor.Sum(c.Ctx, losses, nil, false)
}

// LinearCrossEntropySum is the CrossEntropySum of the logits h·weightᵀ + bias for h [..., C], weight [V, C] and bias
// [V] (nil: none). The logits never exist as a whole: see tensor.LinearCrossEntropy.
func LinearCrossEntropySum(c *Ctx, h *tensor.Tensor, weight, bias *Parameter, labels *tensor.Tensor) *tensor.Tensor {
	checkLabels(c, "nn.LinearCrossEntropySum", h, labels)
	rows := tensor.Reshape(c.Ctx, h, -1, h.Size(-1))
	ids := tensor.Reshape(c.Ctx, labels, -1)
	w, b := c.Param(weight), c.Param(bias)
	loss := tensor.LinearCrossEntropy(c.Ctx, rows, w, b, ids, tensor.IgnoreIndex)
	if smoothing := c.labelSmoothing(); smoothing != 0 {
		excess := linearExcess(c, rows, w, b, ids)
		loss = tensor.Add(c.Ctx, loss, tensor.Affine(c.Ctx, excess, smoothing, 0))
	}
	return loss
}

// LinearLogProbs are the logarithms of the probabilities that the logits h·weightᵀ + bias give to labels, in the shape
// of labels and in float32: 0 where a label is tensor.IgnoreIndex. The logits never exist as a whole: see
// tensor.LinearLogProbs.
func LinearLogProbs(c *Ctx, h *tensor.Tensor, weight, bias *Parameter, labels *tensor.Tensor) *tensor.Tensor {
	checkLabels(c, "nn.LinearLogProbs", h, labels)
	rows := tensor.Reshape(c.Ctx, h, -1, h.Size(-1))
	ids := tensor.Reshape(c.Ctx, labels, -1)
	logs := tensor.LinearLogProbs(c.Ctx, rows, c.Param(weight), c.Param(bias), ids, tensor.IgnoreIndex)
	return tensor.Reshape(c.Ctx, logs, labels.Shape()...)
}

// linearExcess is what a label's logit has more than the mean of its row's logits, summed over all rows with a label.
// A smoothed cross entropy is the plain one plus the factor times this: the logsumexp of both is the same. For logits
// h·weightᵀ + bias the mean is that of h with the mean row of weight, so that no logits exist for it.
func linearExcess(c *Ctx, h, weight, bias, ids *tensor.Tensor) *tensor.Tensor {
	h, weight = single(c, h), single(c, weight)
	known, counts := countedLabels(c, ids)
	rows := tensor.Sub(c.Ctx, tensor.Embedding(c.Ctx, weight, known), tensor.RowMean(c.Ctx, weight))
	excess := tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, h, rows), []int{1}, false)
	if bias != nil {
		table := tensor.Reshape(c.Ctx, single(c, bias), -1, 1)
		own := tensor.Sub(c.Ctx, tensor.Embedding(c.Ctx, table, known), tensor.RowMean(c.Ctx, table))
		excess = tensor.Add(c.Ctx, excess, tensor.Squeeze(c.Ctx, own, 1))
	}
	none := tensor.Scalar(c.Ctx, excess.DType(), 0)
	return tensor.Sum(c.Ctx, tensor.Where(c.Ctx, counts, excess, none), nil, false)
}

// NextTokens shifts labels [B,T] by one, so that position t has the label of t+1; the last has tensor.IgnoreIndex.
// CrossEntropySum compares the logits [B,T,V] of a language model with them. Collators that shift themselves
// (data.ShiftLabels) leave nothing to shift.
func NextTokens(c *Ctx, labels *tensor.Tensor) *tensor.Tensor {
	next := tensor.Slice(c.Ctx, labels, 1, min(1, labels.Size(1)), labels.Size(1))
	none := tensor.Full(c.Ctx, labels.DType(), tensor.IgnoreIndex, labels.Size(0), labels.Size(1)-next.Size(1))
	return tensor.Concat(c.Ctx, 1, next, none)
}

// CrossEntropyOptions change what CrossEntropySumWith computes. The zero value changes nothing.
type CrossEntropyOptions struct {
	// ClassWeights [V] multiply the loss of each label by its class's weight; nil: 1.
	ClassWeights *tensor.Tensor
	// LabelSmoothing, from 0 to 1, is the share of a label's probability that is spread evenly over all classes
	// (Szegedy et al. 2016). With ClassWeights each class's part of it has that class's weight, as in PyTorch.
	LabelSmoothing float64
}

// CrossEntropySumWith is CrossEntropySum with class weights and label smoothing: PyTorch's cross_entropy with reduction
// "sum".
//
// What to divide it by is a choice. The number of labels that count, as without weights, is data.Batch.Count and
// gives PyTorch's mean if the weights are on average 1 over the labels. PyTorch divides by LabelWeightSum, which a loss
// function returns as its count:
//
//	return sum, tensor.Item(c.Ctx, nn.LabelWeightSum(c, labels, weights))
func CrossEntropySumWith(c *Ctx, logits, labels *tensor.Tensor, opt CrossEntropyOptions) *tensor.Tensor {
	const name = "nn.CrossEntropySumWith"
	if !(opt.LabelSmoothing >= 0 && opt.LabelSmoothing <= 1) {
		refuse(c, name, "label smoothing %g: want a number from 0 to 1", opt.LabelSmoothing)
	}
	checkLabels(c, name, logits, labels)
	if opt.LabelSmoothing == 0 {
		opt.LabelSmoothing = c.labelSmoothing()
	}
	classes := logits.Size(-1)
	if w := opt.ClassWeights; w != nil && (w.Dim() != 1 || w.Size(0) != classes) {
		refuse(c, name, "class weights of shape %v: want one for each of %d classes", w.Shape(), classes)
	}
	if opt.ClassWeights == nil && opt.LabelSmoothing == 0 {
		return CrossEntropySum(c, logits, labels)
	}
	rows, ids := tensor.Reshape(c.Ctx, single(c, logits), -1, classes), tensor.Reshape(c.Ctx, labels, -1)
	known, counts := countedLabels(c, ids)
	var losses, spread, weights *tensor.Tensor
	if opt.ClassWeights != nil {
		weights = tensor.Cast(c.Ctx, opt.ClassWeights, rows.DType())
	}
	if opt.LabelSmoothing == 0 {
		losses = tensor.CrossEntropy(c.Ctx, rows, ids, tensor.IgnoreIndex)
	} else {
		logs := tensor.LogSoftmax(c.Ctx, rows, -1)
		picked := tensor.Gather(c.Ctx, logs, 1, tensor.Unsqueeze(c.Ctx, known, 1))
		losses = tensor.Affine(c.Ctx, tensor.Squeeze(c.Ctx, picked, 1), opt.LabelSmoothing-1, 0)
		if weights != nil {
			logs = tensor.Mul(c.Ctx, logs, weights)
		}
		spread = tensor.Affine(c.Ctx, tensor.Sum(c.Ctx, logs, []int{1}, false), -opt.LabelSmoothing/float64(classes), 0)
	}
	if weights != nil {
		losses = tensor.Mul(c.Ctx, losses, tensor.Gather(c.Ctx, weights, 0, known))
	}
	if spread != nil {
		none := tensor.Scalar(c.Ctx, losses.DType(), 0)
		losses = tensor.Where(c.Ctx, counts, tensor.Add(c.Ctx, losses, spread), none)
	}
	return tensor.Sum(c.Ctx, losses, nil, false)
}

// LabelWeightSum is the sum of the class weights [V] of all labels but tensor.IgnoreIndex: what PyTorch's cross_entropy
// divides the sum of a batch by.
func LabelWeightSum(c *Ctx, labels, classWeights *tensor.Tensor) *tensor.Tensor {
	if classWeights.Dim() != 1 {
		refuse(c, "nn.LabelWeightSum", "class weights of shape %v: want one for each class", classWeights.Shape())
	}
	known, counts := countedLabels(c, tensor.Reshape(c.Ctx, labels, -1))
	weights := tensor.Gather(c.Ctx, single(c, classWeights), 0, known)
	return tensor.Sum(c.Ctx, tensor.Where(c.Ctx, counts, weights, tensor.Scalar(c.Ctx, weights.DType(), 0)), nil, false)
}

// countedLabels are the ids with 0 for those that are ignored, and whether each counts.
func countedLabels(c *Ctx, ids *tensor.Tensor) (known, counts *tensor.Tensor) {
	counts = tensor.Ne(c.Ctx, ids, tensor.Scalar(c.Ctx, ids.DType(), tensor.IgnoreIndex))
	return tensor.Where(c.Ctx, counts, ids, tensor.Scalar(c.Ctx, ids.DType(), 0)), counts
}

// single is t, in float32 if it is of a half type: losses are computed and added up in float32.
func single(c *Ctx, t *tensor.Tensor) *tensor.Tensor {
	if t.DType().IsHalf() {
		return tensor.Cast(c.Ctx, t, tensor.Float32)
	}
	return t
}

func refuse(c *Ctx, op, format string, args ...any) {
	panic(&tensor.Error{Op: op, Msg: fmt.Sprintf(format, args...), Where: c.Path()})
}

// checkLabels checks that rows [..., V] have a label each, in the same arrangement: labels in another one would be
// those of other rows.
func checkLabels(c *Ctx, op string, rows, labels *tensor.Tensor) {
	if shape := rows.Shape(); len(shape) == 0 || !slices.Equal(shape[:len(shape)-1], labels.Shape()) {
		refuse(c, op, "rows of shape %v and labels of shape %v: want a label for each row, in the rows' shape without "+
			"its last dim", shape, labels.Shape())
	}
}

// compared checks operands of an elementwise loss: another shape would broadcast, which is hardly ever meant.
func compared(c *Ctx, op string, x, target *tensor.Tensor) (_, _ *tensor.Tensor) {
	if !slices.Equal(x.Shape(), target.Shape()) {
		refuse(c, op, "operands of shapes %v and %v: want one shape", x.Shape(), target.Shape())
	}
	return single(c, x), single(c, target)
}

// BCEOptions change what BCEWithLogitsSum computes. The zero value changes nothing.
type BCEOptions struct {
	// Weight multiplies each term; it broadcasts to the logits' shape. nil: 1.
	Weight *tensor.Tensor
	// PosWeight multiplies the positive part of each term, for rare classes; it broadcasts too. nil: 1.
	PosWeight *tensor.Tensor
}

// BCEWithLogitsSum is the sum of the binary cross entropies of σ(logits) and targets of the same shape, which are 0 or
// 1 or between, in any dtype: torch.nn.BCEWithLogitsLoss with reduction "sum". Its count is the number of elements,
// whatever their weights. See tensor.BCEWithLogits.
func BCEWithLogitsSum(c *Ctx, logits, targets *tensor.Tensor, opt BCEOptions) *tensor.Tensor {
	logits, targets = compared(c, "nn.BCEWithLogitsSum", logits, targets)
	like := func(t *tensor.Tensor) *tensor.Tensor {
		if t == nil {
			return nil
		}
		return tensor.Cast(c.Ctx, t, logits.DType())
	}
	losses := tensor.BCEWithLogits(c.Ctx, logits, like(targets), like(opt.PosWeight))
	if opt.Weight != nil {
		losses = tensor.Mul(c.Ctx, losses, tensor.Expand(c.Ctx, like(opt.Weight), logits.Shape()...))
	}
	return tensor.Sum(c.Ctx, losses, nil, false)
}

// L1Sum is the sum of absolute differences; where the difference is 0, so is the gradient.
func L1Sum(c *Ctx, x, target *tensor.Tensor) *tensor.Tensor {
	x, target = compared(c, "nn.L1Sum", x, target)
	return tensor.Sum(c.Ctx, tensor.Abs(c.Ctx, tensor.Sub(c.Ctx, x, target)), nil, false)
}

// HuberSum is the sum of ½d² for differences d up to ±delta and of delta·(|d| − ½delta) for larger ones (Huber 1964),
// as torch.nn.HuberLoss. delta must be positive.
func HuberSum(c *Ctx, x, target *tensor.Tensor, delta float64) *tensor.Tensor {
	if !(delta > 0) {
		refuse(c, "nn.HuberSum", "delta %g: want a positive number", delta)
	}
	x, target = compared(c, "nn.HuberSum", x, target)
	return huberSum(c, x, target, delta)
}

// huberSum adds up m·(d − ½m), with the difference d and the one that is cut off, m.
func huberSum(c *Ctx, x, target *tensor.Tensor, delta float64) *tensor.Tensor {
	d := tensor.Sub(c.Ctx, x, target)
	m := tensor.Clamp(c.Ctx, d, -delta, delta)
	return tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, m, tensor.Sub(c.Ctx, d, tensor.Affine(c.Ctx, m, 0.5, 0))), nil, false)
}

// SmoothL1Sum is the sum of ½d²/beta for differences d up to ±beta and of |d| − ½beta for larger ones, as
// torch.nn.SmoothL1Loss: HuberSum/beta. With beta 0 it is L1Sum.
func SmoothL1Sum(c *Ctx, x, target *tensor.Tensor, beta float64) *tensor.Tensor {
	switch {
	case beta == 0:
		return L1Sum(c, x, target)
	case !(beta > 0):
		refuse(c, "nn.SmoothL1Sum", "beta %g: want a number ≥ 0", beta)
	}
	x, target = compared(c, "nn.SmoothL1Sum", x, target)
	return tensor.Affine(c.Ctx, huberSum(c, x, target, beta), 1/beta, 0)
}

// KLDivSum is the Kullback-Leibler divergence of the distributions target from those whose logarithms are logProbs,
// summed over all elements: Σ target·(ln target − logProbs), as torch.nn.KLDivLoss with reduction "sum"; a target of 0
// adds nothing. With logTarget target holds logarithms too. PyTorch's "batchmean" has the number of samples as its
// count.
func KLDivSum(c *Ctx, logProbs, target *tensor.Tensor, logTarget bool) *tensor.Tensor {
	x, p := compared(c, "nn.KLDivSum", logProbs, target)
	if logTarget {
		return tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, tensor.Exp(c.Ctx, p), tensor.Sub(c.Ctx, p, x)), nil, false)
	}
	none := tensor.Eq(c.Ctx, p, tensor.Scalar(c.Ctx, p.DType(), 0))
	logs := tensor.Log(c.Ctx, tensor.MaskedFill(c.Ctx, p, none, 1))
	return tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, p, tensor.Sub(c.Ctx, logs, x)), nil, false)
}

// MSESum is the sum of squared differences of operands of one shape.
func MSESum(c *Ctx, x, target *tensor.Tensor) *tensor.Tensor {
	x, target = compared(c, "nn.MSESum", x, target)
	d := tensor.Sub(c.Ctx, x, target)
	return tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, d, d), nil, false)
}
