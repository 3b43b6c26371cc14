// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// flatBlock computes n elements of an elementwise op in float32: p has the outputs, then the inputs, all contiguous.
type flatBlock func(c *backend.Call, p *[flatOperands]unsafe.Pointer, n int)

const (
	flatOperands = 5
	// flatLength is the number of elements that are widened at a time: with all operands they stay in the first-level
	// cache. The vector kernels take it whole.
	flatLength = 1024
)

// flatBuffers are float32 copies of a piece of the operands.
type flatBuffers [flatOperands][flatLength]float32

// flat is kernel.flat of the ops with one output: of the type of the inputs, or bool.
func (b blocks) flat(truth bool) func(*backend.Call) flatBlock {
	f := b.f32
	if f == nil {
		return nil
	}
	run := func(c *backend.Call, p *[flatOperands]unsafe.Pointer, n int) { f(c, (*[4]unsafe.Pointer)(p[:4]), n) }
	return func(c *backend.Call) flatBlock {
		if (c.Out[0].DType == dtype.Bool) != truth {
			return nil
		}
		return run
	}
}

// launchFlat runs an elementwise op of half operands a piece at a time, which is widened, computed and rounded in the
// first-level cache. It reports whether the op and its operands are such.
func (d *Device) launchFlat(k *kernel, c *backend.Call) bool {
	if k.flat == nil || c.NOut+c.NIn > flatOperands {
		return false
	}
	f := k.flat(c)
	if f == nil {
		return false
	}
	shape := &c.Out[0]
	for i := range c.NOut {
		v := &c.Out[i]
		if !v.Contiguous() || !backend.SameShape(v, shape) || !flatType(v.DType) && v.DType != dtype.Bool {
			return false
		}
	}
	for i := range c.NIn {
		if v := &c.In[i]; !v.Contiguous() || !backend.SameShape(v, shape) || !flatType(v.DType) {
			return false
		}
	}
	t := d.begin(c)
	t.flat = f
	t.do(shape.Numel(), elementGrain, flatPieces)
	t.end()
	return true
}

func flatType(t dtype.DType) bool { return t == dtype.Float32 || t.IsHalf() }

// flatPieces computes elements [lo, hi).
func flatPieces(t *task, ws *workspace, lo, hi int) {
	if ws.wide == nil {
		ws.wide = new(flatBuffers)
	}
	c, p := t.c, &ws.flat
	for n := 0; lo < hi; lo += n {
		n = min(flatLength, hi-lo)
		for i := range c.NOut {
			p[i] = t.flatOperand(ws, &c.Out[i], i, lo)
		}
		for i := range c.NIn {
			v, at := &c.In[i], c.NOut+i
			p[at] = t.flatOperand(ws, v, at, lo)
			t.flatConvert(ws, dtype.Float32, v.DType, p[at], v, lo, n)
		}
		t.flat(c, p, n)
		for i := range c.NOut {
			v := &c.Out[i]
			t.flatConvert(ws, v.DType, dtype.Float32, p[i], v, lo, n)
		}
	}
	*p = [flatOperands]unsafe.Pointer{}
}

// flatOperand is where the block finds element lo of operand i: in the view, or in the buffer for it.
func (t *task) flatOperand(ws *workspace, v *backend.View, i, lo int) unsafe.Pointer {
	if v.DType.IsHalf() {
		return unsafe.Pointer(&ws.wide[i])
	}
	return at(v, v.Offset+lo)
}

// flatConvert widens n elements of a half view from lo on to a buffer, or rounds the buffer to them.
func (t *task) flatConvert(ws *workspace, to, from dtype.DType, buffer unsafe.Pointer, v *backend.View, lo, n int) {
	if !v.DType.IsHalf() {
		return
	}
	ws.p[0], ws.p[1] = buffer, at(v, v.Offset+lo)
	if to.IsHalf() {
		ws.p[0], ws.p[1] = ws.p[1], ws.p[0]
	}
	casts[to][from](t.c, &ws.p, n)
}
