// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"math"

	"github.com/lockstep-ml/lockstep/tensor"
)

var defaultAdafactor = register("adafactor", Adafactor{})

// Adafactor keeps one mean of squares for each row and column of a matrix instead of each element (Shazeer & Stern
// 2018), as transformers' Adafactor.
type Adafactor struct {
	// ScaleParameter multiplies the learning rate by the root mean square of the parameter, at least Eps2.
	ScaleParameter bool `json:"scale_parameter"`
	// RelativeStep takes 1/√t in step t for the learning rate, at most 0.01, or 10⁻⁶·t with WarmupInit. The groups'
	// rates have no effect then.
	RelativeStep bool `json:"relative_step"`
	WarmupInit   bool `json:"warmup_init"`
	// Eps1 is added to squares.
	Eps1 float64 `json:"eps1"`
	Eps2 float64 `json:"eps2"`
	// ClipThreshold bounds the root mean square of an update.
	ClipThreshold float64 `json:"clip_threshold"`
	// DecayRate is the exponent of the means: that of step t keeps the share 1 − t^DecayRate.
	DecayRate float64 `json:"decay_rate"`
	// Beta1, if not 0, keeps a mean of updates.
	Beta1 float64 `json:"beta1"`
}

// DefaultAdafactor has the settings that HuggingFace's Trainer passes: neither ScaleParameter nor RelativeStep.
func DefaultAdafactor() Adafactor { return defaultAdafactor }

// New makes the optimizer over groups.
func (o Adafactor) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	return New(c, "adafactor", groups, StepByAdafactor(o))
}

// StepByAdafactor is a whole step of Adafactor, with decoupled decay.
type StepByAdafactor Adafactor

// Traits: the norms are those of whole parameters.
func (StepByAdafactor) Traits() Traits { return Traits{OnDevice: true, Moves: true} }

// State is the means of squares of rows (the last dimension is averaged) and of columns; of a vector those of elements.
func (o StepByAdafactor) State(p tensor.Named) (list []StateTensor) {
	if o.Beta1 != 0 {
		list = Like(p, "exp_avg")
	}
	shape := p.Shape()
	n := len(shape)
	if n < 2 {
		return append(list, squares(p, "exp_avg_sq")...)
	}
	rows, columns := squares(p, "exp_avg_sq_row")[0], squares(p, "exp_avg_sq_col")[0]
	rows.Shape = shape[: n-1 : n-1]
	columns.Shape = append(shape[:n-2:n-2], shape[n-1])
	return append(list, rows, columns)
}

// Apply makes the step.
func (o StepByAdafactor) Apply(c *tensor.Ctx, p tensor.Named, g *Group, s *Slot, u *tensor.Tensor) {
	if u.Numel() == 0 {
		return
	}
	keep := 1 - math.Pow(float64(s.Step), o.DecayRate)
	square := tensor.Affine(c, tensor.Mul(c, u, u), 1, o.Eps1)
	tensor.CopyInto(c, u, tensor.Mul(c, u, o.inverseRoot(c, s, square, keep)))
	divideBy(c, u, tensor.Clamp(c, tensor.Affine(c, rms(c, u), 1/o.ClipThreshold, 0), 1, math.Inf(1)))

	lr := o.rate(g, s)
	var scale *tensor.Tensor
	if o.ScaleParameter {
		scale = tensor.Clamp(c, rms(c, p.Tensor), o.Eps2, math.Inf(1))
		multiplyBy(c, u, scale)
	}
	tensor.ScaleInto(c, u, lr)
	if o.Beta1 != 0 {
		m := s.Tensors["exp_avg"]
		tensor.AxpbyInto(c, m, o.Beta1, m, 1-o.Beta1, u)
		u = m
	}
	if decay := g.WeightDecay * lr; decay != 0 && scale == nil {
		tensor.ScaleInto(c, p.Tensor, 1-decay)
	} else if decay != 0 {
		multiplyBy(c, p.Tensor, tensor.Affine(c, scale, -decay, 1))
	}
	tensor.AxpbyInto(c, p.Tensor, 1, p.Tensor, -1, u)
}

// rate is the learning rate without the parameter's scale.
func (o StepByAdafactor) rate(g *Group, s *Slot) float64 {
	if !o.RelativeStep {
		return g.LR
	}
	t, most := float64(s.Step), 1e-2
	if o.WarmupInit {
		most = 1e-6 * t
	}
	return min(most, 1/math.Sqrt(t))
}

// inverseRoot adds squares to the means, and is the inverse root of what they are for each element.
func (StepByAdafactor) inverseRoot(c *tensor.Ctx, s *Slot, square *tensor.Tensor, keep float64) *tensor.Tensor {
	n := len(square.Shape())
	if n < 2 {
		v := s.Tensors["exp_avg_sq"]
		tensor.AxpbyInto(c, v, keep, v, 1-keep, square)
		return tensor.Rsqrt(c, v)
	}
	rows, columns := s.Tensors["exp_avg_sq_row"], s.Tensors["exp_avg_sq_col"]
	tensor.AxpbyInto(c, rows, keep, rows, 1-keep, tensor.Mean(c, square, []int{n - 1}, false))
	tensor.AxpbyInto(c, columns, keep, columns, 1-keep, tensor.Mean(c, square, []int{n - 2}, false))
	row := tensor.Rsqrt(c, tensor.Div(c, rows, tensor.Mean(c, rows, []int{n - 2}, true)))
	return tensor.Mul(c, tensor.Unsqueeze(c, row, n-1), tensor.Rsqrt(c, tensor.Unsqueeze(c, columns, n-2)))
}
