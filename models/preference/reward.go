// SPDX-License-Identifier: Apache-2.0

package preference

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Reward trains a classifier with one label, as transformers' ForSequenceClassification with num_labels 1, to score
// chosen answers higher than rejected ones (Bradley and Terry 1952; Ouyang et al. 2022, arXiv:2203.02155): the loss of
// a pair is −log σ(chosen − rejected − margin).
type Reward struct {
	// CenterCoefficient is TRL's center_rewards_coefficient: it times (chosen + rejected)² is added, so that scores
	// have a mean of 0 (Eisenstein et al. 2023, arXiv:2312.09244). 0: nothing is.
	CenterCoefficient float64
	// Dropout keeps the model's dropout, which TRL leaves out.
	Dropout bool
}

// RewardFigures are the figures of a step, by TRL's names: accuracy is how often the chosen answer has the higher
// score, and margin by how much.
func RewardFigures() []string { return []string{"mean_reward", "accuracy", "margin"} }

// Step is a trainer.StepFunc for batches of chat.CollatePairs. The loss is the sum over the pairs, and Logits are the
// scores [B,2] of both texts.
func (r *Reward) Step(c *nn.Ctx, m models.Model, b *data.Batch) (out models.Output, count float64, err error) {
	texts, err := textsOf(c, b)
	if err != nil {
		return out, 0, err
	}
	delete(texts.Tensors, data.ShiftLabels)
	own := c
	if !r.Dropout {
		own = c.WithoutDropout()
	}
	scores := m.Forward(own, texts).Logits
	if s := scores.Shape(); len(s) != 2 || s[1] != 1 {
		return out, 0, fmt.Errorf("preference: %T gives logits of shape %v for %d texts: want one score for each, of "+
			"a classifier with num_labels 1", m, s, texts.Size)
	}
	if scores.DType().IsHalf() {
		scores = tensor.Cast(c.Ctx, scores, tensor.Float32)
	}
	scores = tensor.Reshape(c.Ctx, scores, -1, 2)
	chosen, rejected := tensor.Select(c.Ctx, scores, 1, 0), tensor.Select(c.Ctx, scores, 1, 1)
	ahead := tensor.Sub(c.Ctx, chosen, rejected)
	if margin := b.Tensors[chat.Margins]; margin != nil {
		ahead = tensor.Sub(c.Ctx, ahead, tensor.Cast(c.Ctx, margin, ahead.DType()))
	}
	losses := minusLogSigmoid(c, ahead)
	if r.CenterCoefficient != 0 {
		both := tensor.Add(c.Ctx, chosen, rejected)
		square := tensor.Mul(c.Ctx, both, both)
		losses = tensor.Add(c.Ctx, losses, tensor.Affine(c.Ctx, square, r.CenterCoefficient, 0))
	}
	out.Loss, out.Logits = tensor.Sum(c.Ctx, losses, nil, false), tensor.Detach(scores)
	out.Figures = rewardFigures(c.With(c.NoGrad()), tensor.Detach(scores))
	return out, b.Count, nil
}

// rewardFigures are RewardFigures of scores [B,2], summed over the pairs.
func rewardFigures(c *nn.Ctx, scores *tensor.Tensor) map[string]*tensor.Tensor {
	sum := func(t *tensor.Tensor) *tensor.Tensor { return tensor.Sum(c.Ctx, t, nil, false) }
	chosen, rejected := tensor.Select(c.Ctx, scores, 1, 0), tensor.Select(c.Ctx, scores, 1, 1)
	return map[string]*tensor.Tensor{
		"mean_reward": tensor.Affine(c.Ctx, sum(scores), 0.5, 0),
		"accuracy":    sum(tensor.Cast(c.Ctx, tensor.Gt(c.Ctx, chosen, rejected), scores.DType())),
		"margin":      sum(tensor.Sub(c.Ctx, chosen, rejected)),
	}
}
