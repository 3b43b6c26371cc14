// SPDX-License-Identifier: Apache-2.0

package tensor

import "github.com/lockstep-ml/lockstep/internal/backend"

// What an optimizer's step needs so that the host need not wait for the device in the middle of it: writes that the
// device decides about, numbers in its memory, and lists of tensors.

// StepsAlone reports whether the device can read the numbers of an optimizer's step from its memory and skip a step
// without the host: [ClipFactor], [ScaleByInto], Ctx.If and AdamWStep.Numbers. Without it the host must wait for the
// norm of the gradients.
func (d *Device) StepsAlone() bool {
	lacks := d.lacking != nil && d.lacking.dtypes[backend.OpAdamW] != 0
	return !lacks && d.be.Supports(backend.OpClipFactor, Float64)
}

func (c *Ctx) wantAlone(op string) {
	if !c.eng.dev.StepsAlone() {
		c.fail(op, nil, "device %s cannot: see Device.StepsAlone", c.eng.dev.Name())
	}
}

// If returns a context whose writes in place happen only if flag, one element of float64 on the device, is not 0 when
// the device comes to them: CopyInto, FillInto, AddInto, AxpbyInto, ScaleInto, ScaleByInto, StochasticRoundInto,
// AdamMoments and AdamW. All other ops run as usual. A nil flag ends it. See Device.StepsAlone.
func (c *Ctx) If(flag *Tensor) *Ctx {
	if flag != nil {
		c.wantNumbers("If", flag, 1)
	}
	d := *c
	d.onlyIf = flag
	return &d
}

// flag is what a kernel that writes in place is told of If.
func (c *Ctx) flag() backend.Flag {
	if c.onlyIf == nil {
		return backend.Flag{}
	}
	c.onlyIf.check(c, "If")
	v := c.onlyIf.view()
	return backend.Flag{Buf: v.Buf, Offset: v.Offset}
}

// Elements of what ClipFactor writes.
const (
	ClipNorm   = iota // the norm, without the scale
	ClipScale         // what gradients are multiplied by
	ClipFinite        // 1 if norm and losses are finite, else 0
	ClipScales        // 1 if ClipScale is not 1, else 0
	ClipLen
)

// ClipFactor measures gradients on the device by the sums of their squares, a vector of float64 partials as
// [SumSquaresAll] gives them, which it adds in order. It writes ClipLen float64 elements to dst: with norm = √Σ/scale,
// the norm; maxNorm/(norm+1e-6) if maxNorm is above 0, that is below 1 and the norm is finite, else 1, divided by scale
// (Pascanu et al. 2013); and two flags, see ClipFinite and ClipScales. losses, of float64, may be nil.
func ClipFactor(c *Ctx, dst, squares, losses *Tensor, maxNorm, scale float64) {
	const name = "ClipFactor"
	c.wantWritable(name, dst)
	c.wantNumbers(name, dst, ClipLen)
	c.wantNumbers(name, squares, squares.Numel())
	if losses != nil {
		c.wantNumbers(name, losses, losses.Numel())
	}
	a := floats(maxNorm, scale)
	c.launchMulti(backend.OpClipFactor, &a, []*Tensor{dst}, squares, losses)
}

// SumSquaresAll is [SumSquares] of several tensors of any shapes, one after the other in a vector.
func SumSquaresAll(c *Ctx, xs []*Tensor) *Tensor {
	const name = "SumSquaresAll"
	const block = 4096
	n := 0
	for _, x := range xs {
		x.check(c, name)
		c.wantFloat(name, x)
		n += (x.Numel() + block - 1) / block
	}
	y := c.empty(name, Float64, n)
	l, at := c.list(), 0
	held := make([]*Tensor, len(xs))
	for i, x := range xs {
		x = c.materialize(name, x)
		held[i] = x
		k := (x.Numel() + block - 1) / block
		l.add(backend.OpSumSq, &attrs{}, []*Tensor{y.narrow(0, at, k)}, x)
		at += k
	}
	l.launch()
	keepAlive(held)
	return y
}

// AdamWUpdate is the part of one parameter in AdamWAll: the operands of AdamW.
type AdamWUpdate struct {
	P, M, V, Grad *Tensor
	Step          AdamWStep
}

// AdamWAll is [AdamW] of several parameters, with the same bits; a device may take them all at once. No tensor may be
// written to twice.
func AdamWAll(c *Ctx, updates []AdamWUpdate) {
	l := c.list()
	for i := range updates {
		u := &updates[i]
		a, ins := c.adamW("AdamWAll", u)
		l.add(backend.OpAdamW, &a, []*Tensor{u.P, u.M, u.V}, ins...)
	}
	l.launch()
	for i := range updates {
		u := &updates[i]
		keepAlive([]*Tensor{u.P, u.M, u.V, u.Grad, u.Step.Scale, u.Step.Numbers})
	}
}

// adamW checks the operands of an update and gives the kernel's attributes and inputs.
func (c *Ctx) adamW(op string, u *AdamWUpdate) (attrs, []*Tensor) {
	s := &u.Step
	ts := []*Tensor{u.P, u.M, u.V, u.Grad}
	for _, t := range ts[:3] {
		c.wantWritable(op, t, u.Grad)
	}
	c.sameDType(op, ts...)
	for _, t := range ts {
		if !t.IsContiguous() {
			c.fail(op, ts, "want contiguous operands")
		}
	}
	a := floats(s.Beta1, s.Beta2, s.Eps, s.Correction1, s.Correction2, s.LR, s.WeightDecay, s.GradScale)
	a.flag = c.flag()
	if s.Scale == nil && s.Numbers == nil {
		return a, ts[3:]
	}
	if s.Scale == nil || s.Numbers == nil {
		c.fail(op, nil, "want Scale and Numbers, or neither")
	}
	c.wantNumbers(op, s.Scale, 1)
	c.wantNumbers(op, s.Numbers, 4)
	a.floats[3], a.floats[4], a.floats[5], a.floats[6], a.floats[7] = 0, 0, 0, 0, 0
	return a, []*Tensor{u.Grad, s.Scale, s.Numbers}
}

// lacksKernels reports whether kernels are composed of others whatever their attributes are.
func (d *Device) lacksKernels() bool { return d.lacking != nil && d.lacking.kernels }

// list collects calls of one op. On a stream that takes no lists, or under the eyes of a tracer, each is launched when
// it is added.
type list struct {
	c     *Ctx
	calls []backend.Call
	whole bool
}

func (c *Ctx) list() *list {
	l := &list{c: c}
	_, many := c.eng.stream.(backend.ManyLauncher)
	l.whole = many && len(c.eng.tracers) == 0 && !c.eng.dev.lacksKernels() && c.counts == nil
	if l.whole {
		l.calls = c.eng.calls[:0]
	}
	return l
}

func (l *list) add(op backend.Op, a *attrs, outs []*Tensor, ins ...*Tensor) {
	if !l.whole {
		l.c.launchMulti(op, a, outs, ins...)
		return
	}
	l.calls = append(l.calls, backend.Call{Op: op, NOut: len(outs), NIn: len(ins), Ints: a.ints, Floats: a.floats,
		Key: a.key, If: a.flag})
	k := &l.calls[len(l.calls)-1]
	for i, t := range outs {
		k.Out[i] = t.view()
	}
	for i, t := range ins {
		k.In[i] = t.view()
	}
}

func (l *list) launch() {
	if len(l.calls) == 0 {
		return
	}
	l.c.eng.stream.(backend.ManyLauncher).LaunchMany(l.calls)
	clear(l.calls) // holds no buffer
	l.c.eng.calls = l.calls[:0]
}
