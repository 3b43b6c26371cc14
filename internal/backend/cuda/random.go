// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/rng"
)

var randomOps = map[backend.Op]row{
	backend.OpDropout: {dropout, floats}, backend.OpUniform: {uniform, floats}, backend.OpNormal: {normal, floats},
	backend.OpStochasticRound: {stochasticRound, []dtype.DType{dtype.Float32}},
}

var (
	dropoutKernels = namesOf("dropout", "", floats)
	uniformKernels = namesOf("uniform", "", floats)
	normalKernels  = namesOf("normal", "", floats)
	roundKernels   = namesOf("stochastic_round", "", halfTypes)
)

func dropout(s *stream, c *backend.Call) {
	p := c.Floats[0]
	if !(p >= 0 && p <= 1) {
		s.fault(c, "probability %v: want 0 to 1", p)
	}
	n := s.flat(c, 1)
	if n == 0 {
		return
	}
	out, samples := &c.Out[0], 1
	if out.NDim > 0 {
		samples = out.Shape[0]
	}
	per, scale := n/samples, 0.
	if p < 1 {
		scale = 1 / (1 - p)
	}
	var a args
	a.ptr(s.addr(out))
	a.ptr(s.addr(&c.In[0]))
	a.i64(samples)
	a.i64(per)
	a.number(c.Key)
	a.number(uint64(c.Ints[0]))
	a.f64(scale)
	a.u32(rng.KeepThreshold(p))
	if per%4 != 0 {
		a.u32(0)
	} else {
		a.aligned(s.addr(out)|s.addr(&c.In[0]), 4*out.DType.Size())
	}
	s.kernel(dropoutKernels[out.DType], s.gridFor(samples*((per+3)/4)), block256, 0, &a)
}

// drawn queues a kernel that sets Out0 to first + factor·z for random numbers z.
func (s *stream) drawn(c *backend.Call, kernels *names, first, factor float64) {
	n := s.flat(c, 0)
	if n == 0 {
		return
	}
	var a args
	a.ptr(s.addr(&c.Out[0]))
	a.i64(n)
	a.number(c.Key)
	a.number(uint64(c.Ints[0]))
	a.f64(first)
	a.f64(factor)
	each := 4
	if c.Out[0].DType == dtype.Float64 {
		each = 2
	}
	s.kernel(kernels[c.Out[0].DType], s.gridFor((n+each-1)/each), block256, 0, &a)
}

func uniform(s *stream, c *backend.Call) {
	s.drawn(c, &uniformKernels, c.Floats[0], c.Floats[1]-c.Floats[0])
}

func normal(s *stream, c *backend.Call) { s.drawn(c, &normalKernels, c.Floats[0], c.Floats[1]) }

func stochasticRound(s *stream, c *backend.Call) {
	out := c.Out[0].DType
	if !out.IsHalf() {
		s.fault(c, "no kernel for %s", out)
	}
	n := c.Out[0].Numel()
	s.wantFlat(c, &c.In[0], dtype.Float32, n, "input", 0)
	s.wantFlat(c, &c.Out[0], out, n, "output", 0)
	if n == 0 {
		return
	}
	var a args
	a.ptr(s.addr(&c.Out[0]))
	a.ptr(s.addr(&c.In[0]))
	a.i64(n)
	a.number(c.Key)
	a.number(uint64(c.Ints[0]))
	a.number(uint64(c.Ints[1]))
	a.ptr(s.flag(c))
	s.kernel(roundKernels[out], s.gridFor((n+3)/4+1), block256, 0, &a)
}
