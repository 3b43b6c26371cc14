// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// wantWritable checks the target of a write in place.
func (c *Ctx) wantWritable(op string, dst *Tensor, ins ...*Tensor) {
	dst.check(c, op)
	if c.grad && dst.takesPart() {
		c.fail(op, []*Tensor{dst},
			"cannot write in place to a tensor that takes part in autograd: use NoGrad or Detach")
	}
	for d, s := range dst.Strides() {
		if s == 0 && dst.shape[d] > 1 && dst.Numel() > 0 {
			c.fail(op, []*Tensor{dst}, "cannot write in place to a broadcast tensor: elements of dim %d share memory",
				d)
		}
	}
	for _, t := range ins {
		t.check(c, op)
		if !slices.Equal(t.Shape(), dst.Shape()) {
			c.fail(op, append([]*Tensor{dst}, ins...), "want operands of one shape")
		}
	}
	dst.st.ver++
}

// CopyInto overwrites dst with src, converting dtypes.
func CopyInto(c *Ctx, dst, src *Tensor) {
	c.wantWritable("CopyInto", dst, src)
	c.launchAttrs(backend.OpCopy, &attrs{flag: c.flag()}, dst, src)
}

// FillInto overwrites every element of dst with v.
func FillInto(c *Ctx, dst *Tensor, v float64) {
	c.wantWritable("FillInto", dst)
	c.fillIf(dst, v, c.flag())
}

// AxpbyInto overwrites dst with a·x + b·y; dst may be x or y.
func AxpbyInto(c *Ctx, dst *Tensor, a float64, x *Tensor, b float64, y *Tensor) {
	c.wantWritable("AxpbyInto", dst, x, y)
	c.sameDType("AxpbyInto", dst, x, y)
	c.wantFloat("AxpbyInto", dst)
	at := floats(a, b)
	at.flag = c.flag()
	c.launchAttrs(backend.OpAxpby, &at, dst, x, y)
}

// AddInto adds x to dst.
func AddInto(c *Ctx, dst, x *Tensor) {
	c.wantWritable("AddInto", dst, x)
	c.sameDType("AddInto", dst, x)
	c.launchAttrs(backend.OpAdd, &attrs{flag: c.flag()}, dst, dst, x)
}

// ScaleInto multiplies dst by a host number.
func ScaleInto(c *Ctx, dst *Tensor, a float64) {
	c.wantWritable("ScaleInto", dst)
	c.wantFloat("ScaleInto", dst)
	at := floats(a)
	at.flag = c.flag()
	c.launchAttrs(backend.OpAffine, &at, dst, dst)
}

// ScaleByInto multiplies dst by factor, one element of float64 on the device, with the bits of [ScaleInto] by that
// number. The device must be able to step without the host, see Device.StepsAlone.
func ScaleByInto(c *Ctx, dst, factor *Tensor) {
	c.wantWritable("ScaleByInto", dst)
	c.wantFloat("ScaleByInto", dst)
	c.wantNumbers("ScaleByInto", factor, 1)
	at := attrs{flag: c.flag()}
	c.launchAttrs(backend.OpAffine, &at, dst, dst, factor)
}

// wantNumbers checks numbers that a kernel reads in the device's memory.
func (c *Ctx) wantNumbers(op string, t *Tensor, n int) {
	t.check(c, op)
	if t.dtype != Float64 || t.Numel() != n || !t.IsContiguous() {
		c.fail(op, []*Tensor{t}, "want the step's numbers as float64, %d contiguous elements", n)
	}
	c.wantAlone(op)
}

// StochasticRoundInto overwrites dst, of a half type, with src, float32. A number between two values of dst's dtype
// becomes either of them, the nearer one more often, so that the mean of many roundings is the number itself (Gupta et
// al. 2015). The choice depends on the context's random stream and position and on the element: first is the index of
// the first element in a larger tensor that is rounded piece by piece, else 0. Both are contiguous.
func StochasticRoundInto(c *Ctx, dst, src *Tensor, first int) {
	const name = "StochasticRoundInto"
	c.wantWritable(name, dst, src)
	ts := []*Tensor{dst, src}
	switch {
	case !dst.dtype.IsHalf() || src.dtype != Float32:
		c.fail(name, ts, "want a target of %v or %v, and numbers of %v", BFloat16, Float16, Float32)
	case !dst.IsContiguous() || !src.IsContiguous():
		c.fail(name, ts, "want contiguous operands")
	case first < 0:
		c.fail(name, ts, "element %d: want at least 0", first)
	}
	a := ints(int(c.pos), first)
	a.key, a.flag = c.nextKey("stochastic_round"), c.flag()
	c.launchAttrs(backend.OpStochasticRound, &a, dst, src)
}

// AdamMoments updates Adam's moments in place from the gradient g, m = β₁m+(1−β₁)g and v
// = β₂v+(1−β₂)g², and overwrites u with the direction (m/(1−β₁ᵗ))/(√(v/(1−β₂ᵗ))+ε) of
// step t ≥ 1 (Kingma & Ba 2015). All are contiguous.
func AdamMoments(c *Ctx, m, v, u, g *Tensor, beta1, beta2, eps float64, correction1, correction2 float64) {
	for _, t := range []*Tensor{m, v, u} {
		c.wantWritable("AdamMoments", t, g)
	}
	ts := []*Tensor{m, v, u, g}
	c.sameDType("AdamMoments", ts...)
	for _, t := range ts {
		if !t.IsContiguous() {
			c.fail("AdamMoments", ts, "want contiguous operands")
		}
	}
	a := floats(beta1, beta2, eps, correction1, correction2)
	a.flag = c.flag()
	c.launchMulti(backend.OpAdamMoments, &a, []*Tensor{m, v, u}, g)
}

// AdamWStep is the numbers of one step t ≥ 1 of AdamW.
type AdamWStep struct {
	Beta1, Beta2, Eps        float64
	Correction1, Correction2 float64 // 1−β₁ᵗ and 1−β₂ᵗ
	LR, WeightDecay          float64
	GradScale                float64 // multiplies the gradient; 1 for none

	// Scale is GradScale on the device, one element of float64, and Numbers are Correction1, Correction2, LR and
	// WeightDecay there, four: the fields of those names are not used then. Both or neither; see Device.StepsAlone.
	Scale, Numbers *Tensor
}

// AdamW updates the parameter p and Adam's moments m and v in place from the gradient GradScale·g, in one pass: m and v
// as in [AdamMoments], then p ← (1 − LR·WeightDecay)·p − LR·u with its direction u (Loshchilov & Hutter 2019). In
// float32 and float64 the bits are those of the single operations. All are contiguous.
func AdamW(c *Ctx, p, m, v, g *Tensor, s AdamWStep) {
	a, ins := c.adamW("AdamW", &AdamWUpdate{P: p, M: m, V: v, Grad: g, Step: s})
	c.launchMulti(backend.OpAdamW, &a, []*Tensor{p, m, v}, ins...)
}
