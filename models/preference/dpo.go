// SPDX-License-Identifier: Apache-2.0

package preference

import (
	"fmt"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// LossType is a loss of DPO, by TRL's names. With the log-ratio of an answer, log π(answer) − log π_ref(answer), and Δ,
// how much that of the chosen answer is more than that of the rejected one, the loss of a pair is:
type LossType string

const (
	// Sigmoid is −log σ(βΔ) (Rafailov et al. 2023). With label smoothing ε it is the conservative DPO of Mitchell 2023,
	// −(1−ε) log σ(βΔ) − ε log σ(−βΔ).
	Sigmoid LossType = "sigmoid"
	// Hinge is max(0, 1 − βΔ) (Zhao et al. 2023, arXiv:2305.10425).
	Hinge LossType = "hinge"
	// IPO is (Δ − 1/(2β))², with log-ratios that are means over the tokens of an answer (Azar et al. 2023,
	// arXiv:2310.12036).
	IPO LossType = "ipo"
	// Robust is that of Chowdhury et al. 2024 (arXiv:2403.00409), (−(1−ε) log σ(βΔ) + ε log σ(−βΔ))/(1−2ε), where ε,
	// the label smoothing, is how often people chose the wrong answer.
	Robust LossType = "robust"
)

// LossTypes are all losses.
func LossTypes() []LossType { return []LossType{Sigmoid, Hinge, IPO, Robust} }

// DPO trains a language model to prefer chosen answers to rejected ones, compared with a reference.
type DPO struct {
	// Beta is how much a deviation from the reference costs; for IPO it is τ. TRL's default is 0.1.
	Beta float64
	// Loss is Sigmoid if it is empty.
	Loss LossType
	// LabelSmoothing is the ε of Sigmoid and Robust.
	LabelSmoothing float64
	// Reference is not used for batches that have its log-probabilities (chat.ReferenceLogProbs). nil: all have.
	Reference Reference
	// Dropout keeps the dropout of the model that is trained, which TRL leaves out. The reference never has any.
	Dropout bool
}

// DPOFigures are the figures of a step, by TRL's names: rewards are β times the log-ratios, accuracies how often that
// of the chosen answer is the larger one, and logps the log-probabilities of answers.
func DPOFigures() []string {
	return []string{"rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen",
		"logps/rejected"}
}

// Check refuses settings without a meaning.
func (d *DPO) Check() error {
	smoothed := d.loss() == Sigmoid || d.loss() == Robust
	switch {
	case !slices.Contains(LossTypes(), d.loss()):
		return fmt.Errorf("preference: loss type %.40q: want one of %q", d.Loss, LossTypes())
	case !(d.Beta > 0) || math.IsInf(d.Beta, 0):
		return fmt.Errorf("preference: beta %g: want a positive number", d.Beta)
	case !(d.LabelSmoothing >= 0 && d.LabelSmoothing < 0.5):
		return fmt.Errorf("preference: label smoothing %g: want a number from 0 to below 0.5", d.LabelSmoothing)
	case d.LabelSmoothing > 0 && !smoothed:
		return fmt.Errorf("preference: label smoothing %g with the loss %s: want 0, or the loss %s or %s",
			d.LabelSmoothing, d.loss(), Sigmoid, Robust)
	}
	return nil
}

func (d *DPO) loss() LossType {
	if d.Loss == "" {
		return Sigmoid
	}
	return d.Loss
}

// Step is a trainer.StepFunc for batches of chat.CollatePairs. The loss is the sum over the pairs, and Logits are the
// log-probabilities [B,2] of both answers.
func (d *DPO) Step(c *nn.Ctx, m models.Model, b *data.Batch) (out models.Output, count float64, err error) {
	if err := d.Check(); err != nil {
		return out, 0, err
	}
	texts, err := textsOf(c, b)
	if err != nil {
		return out, 0, err
	}
	reference := b.Tensors[chat.ReferenceLogProbs]
	switch {
	case reference != nil:
	case d.Reference == nil:
		return out, 0, fmt.Errorf("preference: the batch has no %s, but %s, and there is no reference: want one of "+
			"them", chat.ReferenceLogProbs, b.Names())
	default:
		if reference, err = d.Reference.logProbs(c, m, texts); err != nil {
			return out, 0, err
		}
	}
	own := c
	if !d.Dropout {
		own = c.WithoutDropout()
	}
	logs, err := answersOf(own, m, texts)
	if err != nil {
		return out, 0, err
	}
	ratios := tensor.Sub(c.Ctx, logs, tensor.Cast(c.Ctx, reference, logs.DType()))
	out.Loss = d.lossOf(c, ratios, texts)
	out.Logits = tensor.Detach(logs)
	out.Figures = d.figures(c.With(c.NoGrad()), tensor.Detach(ratios), tensor.Detach(logs))
	return out, b.Count, nil
}

// lossOf is the sum of the losses of log-ratios [B,2].
func (d *DPO) lossOf(c *nn.Ctx, ratios *tensor.Tensor, texts *data.Batch) *tensor.Tensor {
	if d.loss() == IPO {
		ratios = tensor.Div(c.Ctx, ratios, lengths(c, texts, ratios.DType()))
	}
	delta := tensor.Sub(c.Ctx, tensor.Select(c.Ctx, ratios, 1, 0), tensor.Select(c.Ctx, ratios, 1, 1))
	var losses *tensor.Tensor
	switch d.loss() {
	case Hinge:
		losses = tensor.ReLU(c.Ctx, tensor.Affine(c.Ctx, delta, -d.Beta, 1))
	case IPO:
		off := tensor.Affine(c.Ctx, delta, 1, -1/(2*d.Beta))
		losses = tensor.Mul(c.Ctx, off, off)
	case Robust:
		e := d.LabelSmoothing
		losses = d.smoothed(c, delta, (1-e)/(1-2*e), -e/(1-2*e))
	default:
		losses = d.smoothed(c, delta, 1-d.LabelSmoothing, d.LabelSmoothing)
	}
	return tensor.Sum(c.Ctx, losses, nil, false)
}

// smoothed are −right·log σ(βΔ) − wrong·log σ(−βΔ).
func (d *DPO) smoothed(c *nn.Ctx, delta *tensor.Tensor, right, wrong float64) *tensor.Tensor {
	losses := minusLogSigmoid(c, tensor.Affine(c.Ctx, delta, d.Beta, 0))
	if wrong == 0 {
		return losses
	}
	flipped := minusLogSigmoid(c, tensor.Affine(c.Ctx, delta, -d.Beta, 0))
	return tensor.Add(c.Ctx, tensor.Affine(c.Ctx, losses, right, 0), tensor.Affine(c.Ctx, flipped, wrong, 0))
}

// minusLogSigmoid is −log σ(x).
func minusLogSigmoid(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return tensor.Softplus(c.Ctx, tensor.Affine(c.Ctx, x, -1, 0), 1, math.Inf(1))
}

// lengths are the numbers of tokens of the answers, [B,2], at least 1.
func lengths(c *nn.Ctx, texts *data.Batch, dt tensor.DType) *tensor.Tensor {
	labels := texts.Tensors[data.ShiftLabels]
	counts := tensor.Ne(c.Ctx, labels, tensor.Scalar(c.Ctx, labels.DType(), tensor.IgnoreIndex))
	n := tensor.Sum(c.Ctx, tensor.Cast(c.Ctx, counts, dt), []int{1}, false)
	return tensor.Maximum(c.Ctx, tensor.Reshape(c.Ctx, n, -1, 2), tensor.Scalar(c.Ctx, dt, 1))
}

// figures are DPOFigures, summed over the pairs.
func (d *DPO) figures(c *nn.Ctx, ratios, logs *tensor.Tensor) map[string]*tensor.Tensor {
	column := func(t *tensor.Tensor, i int) *tensor.Tensor { return tensor.Select(c.Ctx, t, 1, i) }
	sum := func(t *tensor.Tensor) *tensor.Tensor { return tensor.Sum(c.Ctx, t, nil, false) }
	rewards := tensor.Affine(c.Ctx, ratios, d.Beta, 0)
	chosen, rejected := column(rewards, 0), column(rewards, 1)
	return map[string]*tensor.Tensor{
		"rewards/chosen": sum(chosen), "rewards/rejected": sum(rejected),
		"rewards/accuracies": sum(tensor.Cast(c.Ctx, tensor.Gt(c.Ctx, chosen, rejected), rewards.DType())),
		"rewards/margins":    sum(tensor.Sub(c.Ctx, chosen, rejected)),
		"logps/chosen":       sum(column(logs, 0)), "logps/rejected": sum(column(logs, 1)),
	}
}
