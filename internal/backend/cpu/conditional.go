// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// conditional are the ops that may have a flag.
var conditional = [backend.NumOps]bool{
	backend.OpCopy: true, backend.OpFill: true, backend.OpAdd: true, backend.OpAffine: true, backend.OpAxpby: true,
	backend.OpStochasticRound: true, backend.OpAdamMoments: true, backend.OpAdamW: true,
}

// holds reads a call's flag.
func (d *Device) holds(c *backend.Call) bool {
	if !conditional[c.Op] {
		d.fault(c, "a flag: this op has none")
	}
	v := backend.View{Buf: c.If.Buf, DType: dtype.Float64, Offset: c.If.Offset}
	d.checkView(c, &v, "flag", 0)
	return slice[float64](&v)[0] != 0
}

// numbers are n of a call's Floats, from at on, that an input may hold in their place.
type numbers struct{ input, at, n int }

// withNumbers is a kernel that takes numbers from memory where the call has those inputs.
func withNumbers(k kernel, list ...numbers) kernel {
	run := k.run
	k.run = func(d *Device, c *backend.Call) {
		if c.NIn <= k.ins {
			run(d, c)
			return
		}
		if want := k.ins + len(list); c.NIn != want {
			d.fault(c, "%d inputs: want %d or %d", c.NIn, k.ins, want)
		}
		w := d.widened()
		defer d.putWidened(w)
		w.call = *c
		w.call.NIn = k.ins
		for _, l := range list {
			d.wantVector(c, &c.In[l.input], dtype.Float64, l.n, "numbers")
			copy(w.call.Floats[l.at:], slice[float64](&c.In[l.input]))
		}
		run(d, &w.call)
	}
	return k
}

// clipFactorKernel measures gradients by the sums of their squares.
func clipFactorKernel(d *Device, c *backend.Call) {
	d.wantVector(c, &c.Out[0], dtype.Float64, 4, "output")
	var sums [2]float64
	for i := range c.NIn {
		d.wantVector(c, &c.In[i], dtype.Float64, c.In[i].Numel(), "input")
		for _, x := range slice[float64](&c.In[i]) {
			sums[i] += x
		}
	}
	limit, scale := c.Floats[0], c.Floats[1]
	norm := math.Sqrt(sums[0]) / scale
	finite := !math.IsNaN(norm) && !math.IsInf(norm, 0)
	clip := 1.0
	if f := limit / (norm + 1e-6); limit > 0 && finite && f < 1 {
		clip = f
	}
	out := slice[float64](&c.Out[0])
	out[0], out[1], out[2], out[3] = norm, clip/scale, 0, 0
	if finite && !math.IsNaN(sums[1]) && !math.IsInf(sums[1], 0) {
		out[2] = 1
	}
	if out[1] != 1 {
		out[3] = 1
	}
}
