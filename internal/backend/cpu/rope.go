// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

func ropeKernel(d *Device, c *backend.Call) {
	x, out := &c.In[0], &c.Out[0]
	if x.NDim != 4 || !backend.SameShape(x, out) {
		d.fault(c, "x and output of shapes %v and %v: want four dims, the same", x.Shape[:x.NDim], out.Shape[:out.NDim])
	}
	for i := 1; i < 3; i++ {
		if v := &c.In[i]; v.NDim != 3 || v.Shape[0] != x.Shape[0] || v.Shape[1] != x.Shape[2] ||
			v.Shape[2] != c.In[1].Shape[2] || 2*v.Shape[2] > x.Shape[3] {
			d.fault(c, "table %d of shape %v for x of shape %v", i, v.Shape[:v.NDim], x.Shape[:4])
		}
	}
	for i, v := range []*backend.View{out, x, &c.In[1], &c.In[2]} {
		if last := v.NDim - 1; v.DType != x.DType || v.Shape[last] > 1 && v.Stride[last] != 1 {
			d.fault(c, "operand %d: %s with stride %d in the last dim: want %s with 1", i, v.DType, v.Stride[last],
				x.DType)
		}
	}
	t := d.begin(c)
	defer t.end()
	tokens, grain := x.Shape[0]*x.Shape[2], max(1, elementGrain/max(1, x.Shape[1]*x.Shape[3]))
	switch x.DType {
	case dtype.Float32:
		t.do(tokens, grain, ropeTokens[float32])
	case dtype.Float64:
		t.do(tokens, grain, ropeTokens[float64])
	default:
		d.fault(c, "no kernel for %s", x.DType)
	}
}

// ropeTokens turns all heads of tokens lo to hi.
func ropeTokens[T float](t *task, _ *workspace, lo, hi int) {
	c := t.c
	x, out := &c.In[0], &c.Out[0]
	heads, length, width, pairs := x.Shape[1], x.Shape[2], x.Shape[3], c.In[1].Shape[2]
	if heads == 0 || width == 0 {
		return
	}
	sign := T(1)
	if c.Ints[0] == 1 {
		sign = -1
	}
	for u := lo; u < hi; u++ {
		b, i := u/length, u%length
		var cos, sin []T
		if pairs > 0 {
			cos, sin = tableRow[T](&c.In[1], b, i), tableRow[T](&c.In[2], b, i)
		}
		for h := range heads {
			from, _ := head[T](x, b, h, i)
			to, _ := head[T](out, b, h, i)
			rotateRow(to[:pairs], to[pairs:2*pairs], from[:pairs], from[pairs:2*pairs], cos, sin, sign)
			copy(to[2*pairs:width], from[2*pairs:width])
		}
	}
}

// tableRow is the row of a table [B,T,R].
func tableRow[T float](v *backend.View, b, i int) []T {
	return from[T](v, v.Offset+b*v.Stride[0]+i*v.Stride[1])[:v.Shape[2]]
}
