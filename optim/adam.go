// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"math"

	"github.com/lockstep-ml/lockstep/tensor"
)

func init() {
	register(DefaultAdamW, "adamw_torch", "adamw_torch_fused") // HuggingFace tells two implementations apart
	register(func() Adam { return Adam(DefaultAdamW()) }, "adam")
}

// AdamW is Adam with decoupled weight decay (Loshchilov & Hutter 2019), as torch.optim.AdamW.
type AdamW struct {
	Beta1 float64 `json:"adam_beta1"`
	Beta2 float64 `json:"adam_beta2"`
	Eps   float64 `json:"adam_epsilon"`
}

// DefaultAdamW has the defaults of torch.optim.AdamW: 0.9, 0.999 and 1e-8.
func DefaultAdamW() AdamW { return AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8} }

// New makes the optimizer over groups.
func (a AdamW) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	return New(c, "adamw", groups, DecoupledDecay{}, ScaleByAdam(a))
}

// Adam is Adam (Kingma & Ba 2015) with L2 decay, as torch.optim.Adam. Its defaults are AdamW's.
type Adam AdamW

// New makes the optimizer over groups.
func (a Adam) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	return New(c, "adam", groups, L2{}, ScaleByAdam(a))
}

// ScaleByAdam replaces the update by Adam's direction, the bias-corrected mean of
// gradients over the root of that of their squares (Kingma & Ba 2015).
type ScaleByAdam struct{ Beta1, Beta2, Eps float64 }

// State is the two moments.
func (ScaleByAdam) State(p tensor.Named) []StateTensor { return Like(p, "exp_avg", "exp_avg_sq") }

// Squares implements Squares.
func (ScaleByAdam) Squares() []string { return []string{"exp_avg_sq"} }

// Apply replaces the update.
func (a ScaleByAdam) Apply(c *tensor.Ctx, _ tensor.Named, _ *Group, s *Slot, u *tensor.Tensor) {
	t := float64(s.Step)
	tensor.AdamMoments(c, s.Tensors["exp_avg"], s.Tensors["exp_avg_sq"], u, u,
		a.Beta1, a.Beta2, a.Eps, 1-math.Pow(a.Beta1, t), 1-math.Pow(a.Beta2, t))
}

// adamW reports whether the chain is AdamW's.
func (o *Optimizer) adamW() (adam ScaleByAdam, ok bool) {
	if len(o.chain) != 2 {
		return adam, false
	}
	_, decays := o.chain[0].(DecoupledDecay)
	adam, ok = o.chain[1].(ScaleByAdam)
	return adam, ok && decays
}

// fusible reports whether the chain is AdamW's and one pass gives the same bits as its links: the dtype computes in
// itself, the layouts are plain.
func (o *Optimizer) fusible(p tensor.Named, grad *tensor.Tensor) (adam ScaleByAdam, ok bool) {
	adam, ok = o.adamW()
	dt := p.DType()
	return adam, ok && (dt == tensor.Float32 || dt == tensor.Float64) && grad.DType() == dt && p.IsContiguous() &&
		grad.IsContiguous()
}

// numbers are those of a step of AdamW.
func (a ScaleByAdam) numbers(o *Optimizer, w *work) tensor.AdamWStep {
	t := float64(w.s.Step)
	s := tensor.AdamWStep{
		Beta1: a.Beta1, Beta2: a.Beta2, Eps: a.Eps, Correction1: 1 - math.Pow(a.Beta1, t),
		Correction2: 1 - math.Pow(a.Beta2, t),
		LR:          w.g.LR, WeightDecay: w.g.WeightDecay, GradScale: o.factor}
	if w.row != nil {
		s.Scale, s.Numbers = o.by.scale, w.row
	}
	return s
}

// Elementwise promises that ScaleByAdam computes each element by itself.
func (ScaleByAdam) Elementwise() {}

// OnDevice promises that ScaleByAdam reads no numbers.
func (ScaleByAdam) OnDevice() {}
