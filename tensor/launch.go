// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"runtime"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// attrs are the scalar attributes of a kernel; what they mean stands at the backend's op.
type attrs struct {
	ints   [8]int
	floats [8]float64
	key    uint64
	flag   backend.Flag // of a write in place: Ctx.If
}

func ints(v ...int) (a attrs)       { copy(a.ints[:], v); return a }
func floats(v ...float64) (a attrs) { copy(a.floats[:], v); return a }

// launch runs a kernel with one output and no attributes.
func (c *Ctx) launch(op backend.Op, out *Tensor, ins ...*Tensor) {
	c.launchAttrs(op, &attrs{}, out, ins...)
}

// launchAttrs runs a kernel with one output.
func (c *Ctx) launchAttrs(op backend.Op, a *attrs, out *Tensor, ins ...*Tensor) {
	outs := [1]*Tensor{out}
	c.launchMulti(op, a, outs[:], ins...)
}

// launchMulti runs a kernel. A nil last input is left out.
func (c *Ctx) launchMulti(op backend.Op, a *attrs, outs []*Tensor, ins ...*Tensor) {
	k := &c.eng.call
	k.Op, k.Ints, k.Floats, k.Key, k.If = op, a.ints, a.floats, a.key, a.flag
	k.NOut, k.NIn = 0, 0
	for _, t := range outs {
		k.Out[k.NOut] = t.view()
		k.NOut++
	}
	for _, t := range ins {
		if t != nil {
			k.In[k.NIn] = t.view()
			k.NIn++
		}
	}
	c.submit(k)
	keepAlive(outs)
	keepAlive(ins)
}

// keepAlive holds off the garbage collector from the memory of ts until here: the
// backend sees buffers, and a launch may be the last use of the tensors that own them.
func keepAlive(ts []*Tensor) {
	for _, t := range ts {
		runtime.KeepAlive(t)
	}
}

// elementwise runs a kernel whose inputs are broadcast to the shape of out.
func (c *Ctx) elementwise(op backend.Op, a *attrs, out *Tensor, ins ...*Tensor) {
	k := &c.eng.call
	k.Op, k.Ints, k.Floats, k.Key, k.If = op, a.ints, a.floats, a.key, a.flag
	k.NOut, k.NIn = 1, len(ins)
	k.Out[0] = out.view()
	for i, t := range ins {
		k.In[i] = t.broadcastView(out.Shape())
	}
	c.submit(k)
	runtime.KeepAlive(out)
	keepAlive(ins)
}

// broadcastView shows t in the given shape, which it must broadcast to.
func (t *Tensor) broadcastView(shape []int) backend.View {
	v := t.view()
	if slices.Equal(t.Shape(), shape) {
		return v
	}
	b := backend.View{Buf: v.Buf, DType: v.DType, Offset: v.Offset, NDim: len(shape)}
	copy(b.Shape[:], shape)
	skip := len(shape) - t.ndim
	for d := range t.ndim {
		if t.shape[d] != 1 || shape[skip+d] == 1 {
			b.Stride[skip+d] = t.stride[d]
		}
	}
	return b
}

// broadcast returns the common shape of the operands by NumPy's rule, and panics if
// there is none.
func (c *Ctx) broadcast(op string, ins ...*Tensor) []int {
	n := 0
	for _, t := range ins {
		n = max(n, t.ndim)
	}
	shape := make([]int, n)
	for d := range shape {
		shape[d] = 1
		for _, t := range ins {
			i := d - (n - t.ndim)
			if i < 0 || t.shape[i] == 1 {
				continue
			}
			if shape[d] != 1 && shape[d] != t.shape[i] {
				c.fail(op, ins, "shapes do not broadcast: dim %d from the right is %d in one and %d in another", n-d,
					shape[d], t.shape[i])
			}
			shape[d] = t.shape[i]
		}
	}
	return shape
}

// sumTo reduces g to the shape that was broadcast to g's, the gradient of broadcasting.
func (c *Ctx) sumTo(g *Tensor, shape []int) *Tensor {
	if slices.Equal(g.Shape(), shape) {
		return g
	}
	lead := g.ndim - len(shape)
	var dims []int
	for d := range g.ndim {
		if d < lead || shape[d-lead] == 1 && g.shape[d] != 1 {
			dims = append(dims, d)
		}
	}
	if len(dims) > 0 {
		g = c.reduce(backend.OpSum, "sum", g, dims, g.dtype)
	}
	return g.reshaped(shape)
}

// sameDType panics unless all operands have one dtype.
func (c *Ctx) sameDType(op string, ins ...*Tensor) {
	for _, t := range ins[1:] {
		if t.dtype != ins[0].dtype {
			c.fail(op, ins, "operands must have one dtype: convert with Cast")
		}
	}
}

// wantFloat panics unless t has a floating-point dtype.
func (c *Ctx) wantFloat(op string, ins ...*Tensor) {
	for _, t := range ins {
		t.check(c, op)
		if !t.dtype.IsFloat() {
			c.fail(op, ins, "want a floating-point dtype, have %v", t.dtype)
		}
	}
}
