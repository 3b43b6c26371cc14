// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

var optimizerOps = map[backend.Op]launcher{backend.OpAdamMoments: adamMoments, backend.OpAdamW: adamW}

var (
	momentsKernels = namesOf("adam_moments", "", floats)
	adamWKernels   = namesOf("adamw", "", floats)
)

// adam packs Adam of kernels/adam.cu, in the type that the step computes in.
func (a *args) adam(c *backend.Call, dt dtype.DType) {
	f := &c.Floats
	each := a.f32
	if dt == dtype.Float64 {
		each = a.f64
	}
	for _, v := range []float64{f[0], 1 - f[0], f[1], 1 - f[1], 1 / f[3], 1 / f[4], f[2], f[7], 1 - f[5]*f[6], -f[5]} {
		each(v)
	}
}

func adamMoments(s *stream, c *backend.Call) {
	s.adam(c, &momentsKernels, &c.Out[2], &c.Out[0], &c.Out[1], &c.In[0])
}

func adamW(s *stream, c *backend.Call) {
	if c.NIn > 1 { // numbers on the device
		adamWMany(s, []backend.Call{*c})
		return
	}
	s.adam(c, &adamWKernels, &c.Out[0], &c.Out[1], &c.Out[2], &c.In[0])
}

func (s *stream) adam(c *backend.Call, kernels *names, views ...*backend.View) {
	n, dt := s.flat(c, 1), c.Out[0].DType
	if n == 0 {
		return
	}
	var a args
	a.adam(c, dt)
	all := cuda.Ptr(0)
	for _, v := range views {
		a.ptr(s.addr(v))
		all |= s.addr(v)
	}
	a.i64(n)
	width := 4
	if dt == dtype.Float64 {
		width = 2
	}
	a.aligned(all, width*dt.Size())
	s.kernel(kernels[dt], s.gridFor((n+width-1)/width), block256, 0, &a)
}
