// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"math"

	"github.com/lockstep-ml/lockstep/tensor"
)

var (
	_ = register("schedule_free_adamw", ScheduleFreeAdamW{})
	_ = register("schedule_free_radam", ScheduleFreeRAdam{})
	_ = register("schedule_free_sgd", ScheduleFreeSGD{})
)

// ScheduleFreeAdamW is AdamW that averages weights instead of lowering the learning rate (Defazio et al. 2024, "The
// Road Less Scheduled"), as schedulefree's AdamWScheduleFree. Call Optimizer.Eval before an evaluation or a save, and
// Optimizer.Train before the next step.
type ScheduleFreeAdamW struct {
	Beta1 float64 `json:"adam_beta1"` // the share of the average in the weights of training
	Beta2 float64 `json:"adam_beta2"`
	Eps   float64 `json:"adam_epsilon"`
	// WarmupSteps is the number of steps in which the learning rate rises from 0.
	WarmupSteps float64 `json:"warmup_steps"`
	// Power is the exponent of the step in the weights of the average, and LRPower that of the learning rate.
	Power   float64 `json:"r"`
	LRPower float64 `json:"weight_lr_power"`
}

// New makes the optimizer over groups.
func (o ScheduleFreeAdamW) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	return New(c, "schedule_free_adamw", groups, stepScheduleFree{beta: o.Beta1, power: o.Power, lrPower: o.LRPower,
		warmup: o.WarmupSteps, squares: true, beta2: o.Beta2, eps: o.Eps})
}

// ScheduleFreeRAdam is ScheduleFreeAdamW with RAdam's warm-up (Liu et al. 2020, "On the Variance of the Adaptive
// Learning Rate and Beyond"), as schedulefree's RAdamScheduleFree. The first steps, in which the second moment is of
// too few gradients, leave weights as they are.
type ScheduleFreeRAdam struct {
	Beta1   float64 `json:"adam_beta1"`
	Beta2   float64 `json:"adam_beta2"`
	Eps     float64 `json:"adam_epsilon"`
	Power   float64 `json:"r"`
	LRPower float64 `json:"weight_lr_power"`
}

// New makes the optimizer over groups.
func (o ScheduleFreeRAdam) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	return New(c, "schedule_free_radam", groups, stepScheduleFree{beta: o.Beta1, power: o.Power, lrPower: o.LRPower,
		squares: true, beta2: o.Beta2, eps: o.Eps, rectified: true})
}

// ScheduleFreeSGD is gradient descent that averages weights, as schedulefree's SGDScheduleFree.
type ScheduleFreeSGD struct {
	Momentum    float64 `json:"momentum"` // as ScheduleFreeAdamW's Beta1
	WarmupSteps float64 `json:"warmup_steps"`
	Power       float64 `json:"r"`
	LRPower     float64 `json:"weight_lr_power"`
}

// New makes the optimizer over groups.
func (o ScheduleFreeSGD) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	return New(c, "schedule_free_sgd", groups, stepScheduleFree{beta: o.Momentum, power: o.Power, lrPower: o.LRPower,
		warmup: o.WarmupSteps})
}

// stepScheduleFree is a whole step. The parameter y lies between z, which gradients move, and the average x of all z:
// y = (1−beta)·z + beta·x. x is not kept.
type stepScheduleFree struct {
	beta, power, lrPower, warmup float64
	squares                      bool // divides by a root of a mean of squares, by beta2 and eps
	beta2, eps                   float64
	rectified                    bool
}

// Traits: the weights of the average are sums over steps, which the host keeps.
func (o stepScheduleFree) Traits() Traits { return Traits{Moves: true, Average: o.average} }

// State is z, the mean of squares, and the weights: the largest learning rate, and the sum of the average's weights.
func (o stepScheduleFree) State(p tensor.Named) []StateTensor {
	list := Like(p, "z")
	if o.squares {
		list = append(list, squares(p, "exp_avg_sq")...)
	}
	return append(list, StateTensor{Name: "weights", Shape: []int{2}, DType: tensor.Float64, NonNegative: true})
}

// average replaces y by x.
func (o stepScheduleFree) average(c *tensor.Ctx, p tensor.Named, s *Slot) {
	lerp(c, p.Tensor, tensor.Cast(c, s.Tensors["z"], p.DType()), 1-1/o.beta)
}

// lerp moves x by a share of the way to end. Where they are equal, x keeps its bits.
func lerp(c *tensor.Ctx, x, end *tensor.Tensor, share float64) {
	if d := tensor.Sub(c, end, x); share < 0.5 {
		tensor.AxpbyInto(c, x, 1, x, share, d)
	} else {
		tensor.AxpbyInto(c, x, 1, end, share-1, d)
	}
}

// Apply makes the step.
func (o stepScheduleFree) Apply(c *tensor.Ctx, p tensor.Named, g *Group, s *Slot, u *tensor.Tensor) {
	t, z := float64(s.Step), s.Tensors["z"]
	if s.Step == 1 {
		tensor.CopyInto(c, z, p.Tensor)
	}
	lr, adapts := o.rate(g.LR, t)
	share := o.share(c, s, lr, t)
	if o.squares {
		v := s.Tensors["exp_avg_sq"]
		tensor.AxpbyInto(c, v, o.beta2, v, 1-o.beta2, tensor.Mul(c, u, u))
		if adapts {
			divideByRoot(c, u, tensor.Affine(c, v, 1/(1-math.Pow(o.beta2, t)), 0), o.eps)
		}
	}
	if g.WeightDecay != 0 {
		tensor.AxpbyInto(c, u, 1, u, g.WeightDecay, p.Tensor)
	}
	lerp(c, p.Tensor, z, share)
	tensor.AxpbyInto(c, p.Tensor, 1, p.Tensor, lr*(o.beta*(1-share)-1), u)
	tensor.AxpbyInto(c, z, 1, z, -lr, u)
}

// rate is the learning rate of step t; adapts is false while gradients are taken as they are.
func (o stepScheduleFree) rate(lr, t float64) (rate float64, adapts bool) {
	if !o.rectified {
		return lr * min(t/max(o.warmup, 1), 1), true
	}
	power, last := math.Pow(o.beta2, t), 2/(1-o.beta2)-1
	rho := last - 2*t*power/(1-power)
	if rho <= 4 {
		return 0, false
	}
	return lr * math.Sqrt((rho-4)*(rho-2)*last/((last-4)*(last-2)*rho)), true
}

// share is the weight of z in the new average, and counts it.
func (o stepScheduleFree) share(c *tensor.Ctx, s *Slot, lr, t float64) float64 {
	weights := tensor.ToSlice[float64](c, s.Tensors["weights"])
	weights[0] = max(weights[0], lr)
	weight := math.Pow(t, o.power) * math.Pow(weights[0], o.lrPower)
	weights[1] += weight
	tensor.CopyInto(c, s.Tensors["weights"], tensor.FromSlice(c, weights, 2))
	if weights[1] == 0 {
		return 0
	}
	return weight / weights[1]
}
