// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// widened is a launch whose half operands are replaced by float32 copies.
type widened struct {
	call  backend.Call // as the kernel sees it
	inner backend.Call // conversions
	bufs  [11]*buffer
	n     int
}

// launchWidened runs the float32 kernel of a call with half operands: inputs are widened, outputs rounded once at the
// end. Elementwise ops do that piece by piece, others with copies of whole operands.
func (d *Device) launchWidened(k *kernel, c *backend.Call) {
	if d.launchFlat(k, c) {
		return
	}
	w := d.widened()
	defer d.putWidened(w)
	w.call = *c
	for i := range c.NIn {
		if c.In[i].DType.IsHalf() {
			d.widen(w, &w.call.In[i], &c.In[i], true)
		}
	}
	for i := range c.NOut {
		if c.Out[i].DType.IsHalf() {
			d.widen(w, &w.call.Out[i], &c.Out[i],
				k.updates || (c.Op == backend.OpMatMul || c.Op == backend.OpEmbeddingGrad) && c.Ints[0] == 1)
		}
	}
	k.run(d, &w.call)
	for i := range c.NOut {
		if c.Out[i].DType.IsHalf() {
			d.convert(w, &c.Out[i], &w.call.Out[i])
		}
	}
}

// widen makes a float32 view of the same shape in a temporary buffer. Dims that repeat (stride 0) are stored once and
// repeat again.
func (d *Device) widen(w *widened, to, from *backend.View, load bool) {
	to.DType, to.Offset = dtype.Float32, 0
	once := *from
	n := 1
	for k := from.NDim - 1; k >= 0; k-- {
		if from.Stride[k] == 0 && from.Shape[k] > 1 {
			to.Stride[k], once.Shape[k] = 0, 1
			continue
		}
		to.Stride[k] = n
		n *= from.Shape[k]
	}
	b := d.scratch(4 * n)
	w.bufs[w.n] = b
	w.n++
	to.Buf = b
	if load {
		dst := *to
		dst.Shape = once.Shape
		d.convert(w, &dst, &once)
	}
}

func (d *Device) convert(w *widened, to, from *backend.View) {
	w.inner.Op, w.inner.NOut, w.inner.NIn = backend.OpCopy, 1, 1
	w.inner.Out[0], w.inner.In[0] = *to, *from
	copyKernel(d, &w.inner)
}

func (d *Device) widened() *widened {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.calls); n > 0 {
		w := d.calls[n-1]
		d.calls = d.calls[:n-1]
		return w
	}
	return &widened{}
}

func (d *Device) putWidened(w *widened) {
	for i := range w.n {
		d.mem.release(w.bufs[i])
		w.bufs[i] = nil
	}
	w.n = 0
	d.mu.Lock()
	d.calls = append(d.calls, w)
	d.mu.Unlock()
}
