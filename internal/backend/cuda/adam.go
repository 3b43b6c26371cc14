// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

var optimizerOps = map[backend.Op]row{
	backend.OpAdamMoments: {adamMoments, floats}, backend.OpAdamW: {adamW, floats},
	backend.OpClipFactor: {clipFactor, []dtype.DType{dtype.Float64}},
}

var (
	momentsKernels = namesOf("adam_moments", "", floats)
	adamWKernels   = namesOf("adamw_many", "", floats)
)

// adamWidth is how many elements the kernels take at a time, and adamChunk those that a block takes.
func adamWidth(dt dtype.DType) int {
	if dt == dtype.Float64 {
		return 2
	}
	return 4
}

const adamChunk = 8192

// step packs Numbers of kernels/adam.cu.
func (a *args) step(n *step, flag cuda.Ptr) {
	for _, v := range n.floats { // β₁, β₂, ε, c₁, c₂, lr, decay, factor
		a.f64(v)
	}
	a.ptr(n.factor)
	a.ptr(n.others)
	a.ptr(flag)
}

func adamMoments(s *stream, c *backend.Call) {
	n, dt := s.flat(c, 1), c.Out[0].DType
	if n == 0 {
		return
	}
	var a args
	a.step(&step{floats: c.Floats}, s.flag(c))
	all := cuda.Ptr(0)
	for _, v := range []*backend.View{&c.Out[2], &c.Out[0], &c.Out[1], &c.In[0]} {
		a.ptr(s.addr(v))
		all |= s.addr(v)
	}
	a.i64(n)
	a.aligned(all, adamWidth(dt)*dt.Size())
	s.kernel(momentsKernels[dt], s.gridFor((n+adamWidth(dt)-1)/adamWidth(dt)), block256, 0, &a)
}

func adamW(s *stream, c *backend.Call) {
	m := s.listAdamW(c)
	s.launchListed(&m)
}

// listAdamW is a step of one tensor, as part of that of several.
func (s *stream) listAdamW(c *backend.Call) (m listed) {
	if m.n = s.flat(c, 1); m.n == 0 {
		return m
	}
	dt := c.Out[0].DType
	m.listKey = listKey{kernel: adamWKernels[dt], operands: 4, chunk: adamChunk, bytes: adamWidth(dt) * dt.Size(),
		ending: endsWithStep, step: step{floats: c.Floats}, flag: s.flag(c)}
	if c.NIn > 1 {
		if c.NIn != 3 {
			s.fault(c, "%d inputs: want 1 or 3", c.NIn)
		}
		s.wantFlat(c, &c.In[1], dtype.Float64, 1, "input", 1)
		s.wantFlat(c, &c.In[2], dtype.Float64, 4, "input", 2)
		m.step.factor, m.step.others = s.addr(&c.In[1]), s.addr(&c.In[2])
	}
	for i, v := range []*backend.View{&c.Out[0], &c.Out[1], &c.Out[2], &c.In[0]} {
		m.at[i] = s.addr(v)
	}
	return m
}

func clipFactor(s *stream, c *backend.Call) {
	s.wantFlat(c, &c.Out[0], dtype.Float64, 4, "output", 0)
	var a args
	a.ptr(s.addr(&c.Out[0]))
	for i := range 2 {
		if i >= c.NIn {
			a.ptr(0)
			a.i64(0)
			continue
		}
		s.wantFlat(c, &c.In[i], dtype.Float64, c.In[i].Numel(), "input", i)
		a.ptr(s.addr(&c.In[i]))
		a.i64(c.In[i].Numel())
	}
	a.f64(c.Floats[0])
	a.f64(c.Floats[1])
	s.kernel("clip_factor", [3]uint32{1, 1, 1}, block256, 0, &a)
}
