// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"log/slog"
	"math"
	"sync/atomic"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// lacking is what a device's backend has no kernel for although an op needs it: kernels that are composed of others.
type lacking struct {
	dtypes  [backend.NumOps]uint32       // bit i: not for the dtype of number i
	counts  [backend.NumOps]atomic.Int64 // launches that were composed
	kernels bool                         // whether there is such a kernel
	softCap bool                         // whether attention lacks soft caps
}

// lackingOf asks a backend which of the kernels with composites it lacks; nil: none.
func lackingOf(be backend.Backend, traits backend.Traits) *lacking {
	l := lacking{softCap: traits.NoSoftCap}
	for op := range composites {
		for dt := Invalid; dt < 32; dt++ {
			if dt.IsFloat() && !be.Supports(op, dt) {
				l.dtypes[op] |= 1 << dt
				l.kernels = true
			}
		}
	}
	if !l.kernels && !l.softCap {
		return nil
	}
	return &l
}

// Composed tells how often each kernel that the device's backend lacks was replaced by several others, by the kernel's
// name. It is empty for a backend that has all kernels.
func (d *Device) Composed() map[string]int64 {
	all := map[string]int64{}
	if d.lacking != nil {
		for op := range d.lacking.counts {
			if n := d.lacking.counts[op].Load(); n > 0 {
				all[backend.Op(op).String()] = n
			}
		}
	}
	return all
}

// compose runs other kernels in place of k if the backend lacks its kernel.
func (c *Ctx) compose(l *lacking, k *backend.Call) bool {
	dt := k.DType()
	if l.dtypes[k.Op]>>dt&1 == 0 && !(l.softCap && softCapped(k)) {
		return false
	}
	if l.counts[k.Op].Add(1) == 1 {
		slog.Info("tensor: the device has no kernel: it is composed of others", "device", c.eng.dev.Name(), "kernel",
			k.Op.String(), "dtype", dt)
	}
	call := *k // the scratch is used again
	inner := *c.NoGrad()
	inner.counts = nil
	inner.Scope(func(c *Ctx) []*Tensor {
		m := &composer{c: c, dt: dt}
		if call.HasHalf() { // the first operand is not where a norm is mixed
			m.widened(call)
			return nil
		}
		composites[call.Op](m, &call)
		return nil
	})
	return true
}

// softCapped reports whether a call is one of attention with a soft cap.
func softCapped(k *backend.Call) bool {
	return (k.Op == backend.OpAttention || k.Op == backend.OpAttentionGrad) && k.Floats[2] > 0
}

// composer launches the kernels of a composite. Its results are views of memory that ends with the composite.
type composer struct {
	c  *Ctx
	dt DType
}

// widened runs the composite in float32 and rounds what it gives once.
func (m *composer) widened(k backend.Call) {
	outs := k.Out
	for i := range k.NIn {
		k.In[i] = m.wide(k.In[i], true)
	}
	for i := range k.NOut {
		k.Out[i] = m.wide(k.Out[i], k.Op == backend.OpAdamW)
	}
	m.dt = Float32
	composites[k.Op](m, &k)
	for i := range k.NOut {
		if outs[i].DType.IsHalf() {
			m.to(outs[i], backend.OpCopy, nil, k.Out[i])
		}
	}
}

// wide is a float32 copy of a view of a half type, or memory for one.
func (m *composer) wide(v backend.View, filled bool) backend.View {
	if !v.DType.IsHalf() {
		return v
	}
	w := m.memory(Float32, v.Shape[:v.NDim])
	if filled {
		m.to(w, backend.OpCopy, nil, v)
	}
	return w
}

func (m *composer) memory(dt DType, shape []int) backend.View {
	t := m.c.empty("composite", dt, shape...)
	return t.view()
}

// to launches a kernel with the output out.
func (m *composer) to(out backend.View, op backend.Op, a []float64, ins ...backend.View) {
	k := &m.c.eng.call
	k.Op, k.NOut, k.NIn, k.Key, k.If = op, 1, len(ins), 0, backend.Flag{}
	k.Ints, k.Floats = [8]int{}, [8]float64{}
	copy(k.Floats[:], a)
	k.Out[0] = out
	copy(k.In[:], ins)
	m.c.submit(k)
}

// ints launches a kernel with one integer attribute.
func (m *composer) ints(out backend.View, op backend.Op, a int, ins ...backend.View) {
	k := &m.c.eng.call
	k.Op, k.NOut, k.NIn, k.Key, k.If = op, 1, len(ins), 0, backend.Flag{}
	k.Ints, k.Floats = [8]int{a}, [8]float64{}
	k.Out[0] = out
	copy(k.In[:], ins)
	m.c.submit(k)
}

// of is an elementwise kernel's result, of the first input's shape; the others are repeated to it.
func (m *composer) of(op backend.Op, a []float64, ins ...backend.View) backend.View {
	shape := ins[0].Shape[:ins[0].NDim]
	dt := m.dt
	switch op {
	case backend.OpLt, backend.OpLe:
		dt = Bool
	}
	out := m.memory(dt, shape)
	for i := range ins {
		ins[i] = repeated(ins[i], shape)
	}
	m.to(out, op, a, ins...)
	return out
}

func (m *composer) mul(x, y backend.View) backend.View { return m.of(backend.OpMul, nil, x, y) }
func (m *composer) sub(x, y backend.View) backend.View { return m.of(backend.OpSub, nil, x, y) }
func (m *composer) add(x, y backend.View) backend.View { return m.of(backend.OpAdd, nil, x, y) }

// affine is a·x + b.
func (m *composer) affine(x backend.View, a, b float64) backend.View {
	return m.of(backend.OpAffine, []float64{a, b}, x)
}

// along reduces dim d, which stays with size 1.
func (m *composer) along(op backend.Op, x backend.View, d int) backend.View {
	shape := append([]int(nil), x.Shape[:x.NDim]...)
	shape[d] = 1
	out := m.memory(x.DType, shape)
	switch {
	case x.Numel() > 0 || op == backend.OpSum:
		m.to(out, op, nil, x)
	default: // the largest of nothing
		m.to(out, backend.OpFill, []float64{math.Inf(-1)})
	}
	return out
}

// rows reduces the last dim.
func (m *composer) rows(op backend.Op, x backend.View) backend.View { return m.along(op, x, x.NDim-1) }

// mean is that of the last dim.
func (m *composer) mean(x backend.View) backend.View {
	return m.affine(m.rows(backend.OpSum, x), 1/float64(max(1, x.Shape[x.NDim-1])), 0)
}

// repeated shows v in a shape whose last dims are v's, or where v has size 1.
func repeated(v backend.View, shape []int) backend.View {
	r := v
	r.NDim = len(shape)
	skip := len(shape) - v.NDim
	for d := range shape {
		r.Shape[d], r.Stride[d] = shape[d], 0
		if d >= skip && (v.Shape[d-skip] != 1 || shape[d] == 1) {
			r.Stride[d] = v.Stride[d-skip]
		}
	}
	return r
}

// column shows the vector v as [N,1].
func column(v backend.View) backend.View {
	v.NDim, v.Shape[1], v.Stride[1] = 2, 1, 1
	return v
}

// copyTo copies a result to an output of as many elements, of which one may have a dim of size 1 more.
func (m *composer) copyTo(out, v backend.View) {
	if out.NDim == 1 && v.NDim == 2 && v.Shape[1] == 1 {
		out = column(out)
	}
	m.to(out, backend.OpCopy, nil, repeated(v, out.Shape[:out.NDim]))
}

// composites make the kernels that a backend need not have out of those that it must have. They compute in float32 or
// float64, and write their outputs last, since those may be inputs.
var composites map[backend.Op]func(m *composer, k *backend.Call)

func init() {
	composites = map[backend.Op]func(m *composer, k *backend.Call){
		backend.OpGELU: func(m *composer, k *backend.Call) { m.copyTo(k.Out[0], m.mul(m.phi(k.In[0]), k.In[0])) },
		backend.OpGELUGrad: func(m *composer, k *backend.Call) { // Φ(x) + x·φ(x)
			x := k.In[0]
			density := m.of(backend.OpExp, nil, m.affine(m.mul(x, x), -0.5, 0))
			slope := m.add(m.phi(x), m.affine(m.mul(x, density), 1/math.Sqrt(2*math.Pi), 0))
			m.copyTo(k.Out[0], m.mul(slope, k.In[1]))
		},
		backend.OpGELUTanh: func(m *composer, k *backend.Call) {
			m.copyTo(k.Out[0], m.mul(m.gate(k.In[0]), k.In[0]))
		},
		backend.OpGELUTanhGrad: func(m *composer, k *backend.Call) { // σ(2u) + x·2u'·σ(2u)·(1−σ(2u))
			x := k.In[0]
			s := m.gate(x)
			inner := m.affine(m.mul(x, x), 2*math.Sqrt(2/math.Pi)*3*0.044715, 2*math.Sqrt(2/math.Pi))
			slope := m.add(s, m.mul(m.mul(x, inner), m.mul(s, m.affine(s, -1, 1))))
			y := m.mul(x, s)
			m.copyTo(k.Out[0], m.mul(slope, k.In[1]))
			if k.NOut > 1 {
				m.copyTo(k.Out[1], y)
			}
		},
		backend.OpSiLU: func(m *composer, k *backend.Call) {
			m.copyTo(k.Out[0], m.mul(k.In[0], m.of(backend.OpSigmoid, nil, k.In[0])))
		},
		backend.OpSiLUGrad: func(m *composer, k *backend.Call) {
			m.copyTo(k.Out[0], m.mul(m.siluSlope(k.In[0]), k.In[1]))
		},
		backend.OpSwiGLU: func(m *composer, k *backend.Call) {
			m.copyTo(k.Out[0], m.mul(m.mul(k.In[0], m.of(backend.OpSigmoid, nil, k.In[0])), k.In[1]))
		},
		backend.OpSwiGLUGrad: func(m *composer, k *backend.Call) {
			gate, up, dy := k.In[0], k.In[1], k.In[2]
			dgate := m.mul(m.mul(m.siluSlope(gate), up), dy)
			m.copyTo(k.Out[1], m.mul(m.mul(gate, m.of(backend.OpSigmoid, nil, gate)), dy))
			m.copyTo(k.Out[0], dgate)
		},
		backend.OpSoftmax: func(m *composer, k *backend.Call) { m.copyTo(k.Out[0], m.softmax(k.In[0])) },
		backend.OpLogSoftmax: func(m *composer, k *backend.Call) {
			m.copyTo(k.Out[0], m.sub(k.In[0], m.logSumExp(k.In[0])))
		},
		backend.OpSoftmaxGrad: func(m *composer, k *backend.Call) {
			y, dy := k.In[0], k.In[1]
			m.copyTo(k.Out[0], m.mul(y, m.sub(dy, m.rows(backend.OpSum, m.mul(y, dy)))))
		},
		backend.OpLogSoftmaxGrad: func(m *composer, k *backend.Call) {
			m.copyTo(k.Out[0], m.sub(k.In[1], m.mul(m.of(backend.OpExp, nil, k.In[0]), m.rows(backend.OpSum, k.In[1]))))
		},
		backend.OpLayerNorm: withSums(func(m *composer, k *backend.Call) {
			mean := m.mean(k.In[0])
			x := m.sub(k.In[0], mean)
			rstd := m.of(backend.OpRsqrt, nil, m.affine(m.mean(m.mul(x, x)), 1, k.Floats[0]))
			m.copyTo(k.Out[1], mean)
			m.copyTo(k.Out[2], rstd)
			m.copyTo(k.Out[0], m.weighted(m.mul(x, rstd), k.In[1:k.NIn]))
		}),
		backend.OpLayerNormGrad: withSums(func(m *composer, k *backend.Call) {
			rstd := column(k.In[2])
			x := m.mul(m.sub(k.In[0], column(k.In[1])), rstd)
			m.normGrad(k, x, rstd, k.In[3], k.In[4:max(4, k.NIn)], true)
		}),
		backend.OpLayerNormParamGrad: withSums(func(m *composer, k *backend.Call) {
			x := m.mul(m.sub(k.In[0], column(k.In[1])), column(k.In[2]))
			m.paramGrad(k.Out[:k.NOut], x, k.In[3])
		}),
		backend.OpRMSNorm: func(m *composer, k *backend.Call) {
			x := k.In[0]
			r := m.of(backend.OpRsqrt, nil, m.affine(m.mean(m.mul(x, x)), 1, k.Floats[0]))
			m.copyTo(k.Out[1], r)
			m.copyTo(k.Out[0], m.weighted(m.mul(x, r), k.In[1:k.NIn]))
		},
		backend.OpRMSNormGrad: withSums(func(m *composer, k *backend.Call) {
			r := column(k.In[1])
			m.normGrad(k, m.mul(k.In[0], r), r, k.In[2], k.In[3:max(3, k.NIn)], false)
		}),
		backend.OpRMSNormParamGrad: func(m *composer, k *backend.Call) {
			m.paramGrad(k.Out[:k.NOut], m.mul(k.In[0], column(k.In[1])), k.In[2])
		},
		backend.OpLinear: func(m *composer, k *backend.Call) {
			z := m.memory(m.dt, k.Out[0].Shape[:2])
			if k.NIn > 2 {
				m.copyTo(z, k.In[2])
			}
			m.ints(z, backend.OpMatMul, k.NIn-2, k.In[0], k.In[1])
			if k.NOut > 1 {
				m.copyTo(k.Out[1], z)
			}
			if op := backend.Op(k.Ints[0]); op != backend.OpInvalid {
				z = m.of(op, nil, z)
			}
			m.copyTo(k.Out[0], z)
		},
		backend.OpAttention:     (*composer).attention,
		backend.OpAttentionGrad: (*composer).attentionGrad,
		backend.OpAdamW: func(m *composer, k *backend.Call) {
			f := k.Floats
			g := m.affine(k.In[0], f[7], 0)
			u := m.memory(m.dt, g.Shape[:g.NDim])
			p := k.Out[0]
			call := &m.c.eng.call
			*call = backend.Call{Op: backend.OpAdamMoments, NOut: 3, NIn: 1,
				Out: [4]backend.View{k.Out[1], k.Out[2], u}, In: [8]backend.View{g}}
			copy(call.Floats[:], f[:5])
			m.c.submit(call)
			m.to(p, backend.OpAffine, []float64{1 - f[5]*f[6], 0}, p)
			m.to(p, backend.OpAxpby, []float64{1, -f[5]}, p, u)
		},
	}
}

// withSums is a norm, or a gradient of one, that also adds part to the rows and dx to more, and copies the result,
// where a call has them.
func withSums(f func(m *composer, k *backend.Call)) func(m *composer, k *backend.Call) {
	return func(m *composer, k *backend.Call) {
		o := k.NormOperands()
		call := *k
		call.NIn, call.NOut, call.Ints = o.Ins, o.Outs, [8]int{}
		if o.Part != nil {
			call.In[0] = m.add(k.In[0], *o.Part)
		}
		if o.More != nil {
			call.Out[0] = m.memory(m.dt, k.Out[0].Shape[:k.Out[0].NDim])
		}
		f(m, &call)
		if o.More != nil {
			m.to(k.Out[0], backend.OpAdd, nil, *o.More, call.Out[0])
		}
		if o.Rounded != nil {
			m.to(*o.Rounded, backend.OpCopy, nil, k.Out[0])
		}
	}
}

// phi is Φ(x), of the normal distribution.
func (m *composer) phi(x backend.View) backend.View {
	return m.affine(m.of(backend.OpErf, nil, m.affine(x, math.Sqrt2/2, 0)), 0.5, 0.5)
}

// gate is ½(1 + tanh(u)) = σ(2u) of GELU's approximation.
func (m *composer) gate(x backend.View) backend.View {
	u := m.mul(x, m.affine(m.mul(x, x), 2*math.Sqrt(2/math.Pi)*0.044715, 2*math.Sqrt(2/math.Pi)))
	return m.of(backend.OpSigmoid, nil, u)
}

// siluSlope is σ(x)·(1 + x·(1−σ(x))).
func (m *composer) siluSlope(x backend.View) backend.View {
	s := m.of(backend.OpSigmoid, nil, x)
	return m.mul(s, m.affine(m.mul(x, m.affine(s, -1, 1)), 1, 1))
}

// softmax is that of the rows.
func (m *composer) softmax(x backend.View) backend.View {
	e := m.of(backend.OpExp, nil, m.sub(x, m.rows(backend.OpMax, x)))
	return m.of(backend.OpDiv, nil, e, m.rows(backend.OpSum, e))
}

// logSumExp is that of the rows.
func (m *composer) logSumExp(x backend.View) backend.View {
	most := m.rows(backend.OpMax, x)
	e := m.of(backend.OpExp, nil, m.sub(x, most))
	return m.add(m.of(backend.OpLog, nil, m.rows(backend.OpSum, e)), most)
}

// weighted is x·weight + bias, of which there may be none.
func (m *composer) weighted(x backend.View, params []backend.View) backend.View {
	if len(params) > 0 {
		x = m.mul(x, params[0])
	}
	if len(params) > 1 {
		x = m.add(x, params[1])
	}
	return x
}

// normGrad is the gradient of a norm whose normalised rows are x.
func (m *composer) normGrad(k *backend.Call, x, scale, dy backend.View, weight []backend.View, centred bool) {
	g := m.weighted(dy, weight)
	dx := m.sub(g, m.mul(x, m.mean(m.mul(g, x))))
	if centred {
		dx = m.sub(dx, m.mean(g))
	}
	dx = m.mul(dx, scale)
	m.paramGrad(k.Out[1:max(1, k.NOut)], x, dy)
	m.copyTo(k.Out[0], dx)
}

// paramGrad is the gradient of a norm's weight and bias.
func (m *composer) paramGrad(outs []backend.View, x, dy backend.View) {
	if len(outs) > 0 {
		m.copyRow(outs[0], m.along(backend.OpSum, m.mul(x, dy), 0))
	}
	if len(outs) > 1 {
		m.copyRow(outs[1], m.along(backend.OpSum, dy, 0))
	}
}

// copyRow copies [1,C] to [C].
func (m *composer) copyRow(out, row backend.View) {
	row.NDim, row.Shape[0], row.Stride[0] = 1, row.Shape[1], row.Stride[1]
	m.to(out, backend.OpCopy, nil, row)
}
