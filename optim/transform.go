// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"math"

	"github.com/lockstep-ml/lockstep/tensor"
)

// L2 adds WeightDecay·p to the gradient: decay coupled with what follows in the chain.
type L2 struct{}

// State is empty.
func (L2) State() []string { return nil }

// Apply adds the decay term.
func (L2) Apply(c *tensor.Ctx, p Param, g *Group, _ *Slot, u *tensor.Tensor) {
	if g.WeightDecay != 0 {
		tensor.AxpbyInto(c, u, 1, u, g.WeightDecay, p.Tensor)
	}
}

// DecoupledDecay shrinks the parameter by 1 − lr·WeightDecay, apart from the update
// (Loshchilov & Hutter 2019).
type DecoupledDecay struct{}

// State is empty.
func (DecoupledDecay) State() []string { return nil }

// Apply shrinks p.
func (DecoupledDecay) Apply(c *tensor.Ctx, p Param, g *Group, _ *Slot, _ *tensor.Tensor) {
	if g.WeightDecay != 0 {
		tensor.ScaleInto(c, p.Tensor, 1-g.LR*g.WeightDecay)
	}
}

// Momentum replaces the update by a running sum of updates, b ← Momentum·b + (1−Dampening)·u,
// which begins as the first update (Sutskever et al. 2013, in PyTorch's form). With
// Nesterov the update is u + Momentum·b.
type Momentum struct {
	Momentum, Dampening float64
	Nesterov            bool
}

// State is the momentum buffer.
func (Momentum) State() []string { return []string{"momentum_buffer"} }

// add adds an update to the buffer.
func (m Momentum) add(c *tensor.Ctx, s *Slot, u *tensor.Tensor) (b *tensor.Tensor) {
	b = s.Tensors["momentum_buffer"]
	if s.Step == 1 {
		tensor.CopyInto(c, b, u)
	} else {
		tensor.AxpbyInto(c, b, m.Momentum, b, 1-m.Dampening, u)
	}
	return b
}

// plain reports whether the update is the momentum buffer after the gradient itself was added to it, so that neither needs a copy.
func (o *Optimizer) plain(g *Group) (m Momentum, ok bool) {
	if len(o.chain) != 2 || g.WeightDecay != 0 || o.factor != 1 {
		return m, false
	}
	_, decays := o.chain[0].(L2)
	m, ok = o.chain[1].(Momentum)
	return m, ok && decays && !m.Nesterov
}

// Apply replaces the update.
func (m Momentum) Apply(c *tensor.Ctx, _ Param, _ *Group, s *Slot, u *tensor.Tensor) {
	b := m.add(c, s, u)
	if m.Nesterov {
		tensor.AxpbyInto(c, u, 1, u, m.Momentum, b)
	} else {
		tensor.CopyInto(c, u, b)
	}
}

// ScaleByAdam replaces the update by Adam's direction, the bias-corrected mean of
// gradients over the root of that of their squares (Kingma & Ba 2015).
type ScaleByAdam struct{ Beta1, Beta2, Eps float64 }

// State is the two moments.
func (ScaleByAdam) State() []string { return []string{"exp_avg", "exp_avg_sq"} }

// Squares implements Squares.
func (ScaleByAdam) Squares() []string { return []string{"exp_avg_sq"} }

// Apply replaces the update.
func (a ScaleByAdam) Apply(c *tensor.Ctx, _ Param, _ *Group, s *Slot, u *tensor.Tensor) {
	t := float64(s.Step)
	tensor.AdamMoments(c, s.Tensors["exp_avg"], s.Tensors["exp_avg_sq"], u, u,
		a.Beta1, a.Beta2, a.Eps, 1-math.Pow(a.Beta1, t), 1-math.Pow(a.Beta2, t))
}

// fusible reports whether the chain is AdamW's and one pass gives the same bits as its links: the dtype computes in itself, the layouts are plain.
func (o *Optimizer) fusible(p Param, grad *tensor.Tensor) (adam ScaleByAdam, ok bool) {
	if len(o.chain) != 2 {
		return adam, false
	}
	_, decays := o.chain[0].(DecoupledDecay)
	adam, ok = o.chain[1].(ScaleByAdam)
	dt := p.DType()
	return adam, ok && decays && (dt == tensor.Float32 || dt == tensor.Float64) && grad.DType() == dt && p.IsContiguous() && grad.IsContiguous()
}

// step is the whole update of one parameter by AdamW, of the gradient times factor.
func (a ScaleByAdam) step(c *tensor.Ctx, p Param, g *Group, s *Slot, grad *tensor.Tensor, factor float64) {
	t := float64(s.Step)
	tensor.AdamW(c, p.Tensor, s.Tensors["exp_avg"], s.Tensors["exp_avg_sq"], grad, tensor.AdamWStep{
		Beta1: a.Beta1, Beta2: a.Beta2, Eps: a.Eps, Correction1: 1 - math.Pow(a.Beta1, t), Correction2: 1 - math.Pow(a.Beta2, t),
		LR: g.LR, WeightDecay: g.WeightDecay, GradScale: factor})
}
