// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

var stepOps = map[backend.Op]launcher{backend.OpClipFactor: clipFactor}

// lists are the ops whose calls of a list run in one kernel.
var lists = map[backend.Op]func(s *stream, calls []backend.Call){
	backend.OpAdamW: adamWMany, backend.OpSumSq: sumSqMany,
}

// LaunchMany checks the calls' operands and queues one kernel for all of them, where there is one.
func (s *stream) LaunchMany(calls []backend.Call) {
	if len(calls) == 0 {
		return
	}
	many := lists[calls[0].Op]
	one := func(c backend.Call) bool {
		return c.Op == calls[0].Op && c.NOut > 0 && c.NIn > 0 && c.In[0].DType == calls[0].In[0].DType
	}
	if many == nil || !one(calls[0]) || slices.ContainsFunc(calls[1:], func(c backend.Call) bool { return !one(c) }) {
		for i := range calls {
			s.Launch(&calls[i])
		}
		return
	}
	defer s.done()
	for i := range calls {
		s.call = &calls[i]
		s.check(s.call)
	}
	many(s, calls)
}

// table collects what the kernels of step.cu find in device memory: a row for each tensor.
type table struct {
	rows   []byte
	count  int
	blocks int
}

func (t *table) u64(v uint64)   { t.rows = binary.LittleEndian.AppendUint64(t.rows, v) }
func (t *table) f64(v float64)  { t.u64(math.Float64bits(v)) }
func (t *table) ptr(p cuda.Ptr) { t.u64(uint64(p)) }

// end ends a row of a tensor that so many blocks work on, whose addresses are, or are not, aligned for wide loads.
func (t *table) end(blocks int, wide bool) {
	flags := uint64(t.blocks)
	if wide {
		flags |= 1 << 32
	}
	t.u64(flags)
	t.count++
	t.blocks += blocks
}

// over queues a kernel for the tensors of a table.
func (s *stream) over(name string, t *table) {
	if t.blocks == 0 {
		return
	}
	if t.blocks > math.MaxInt32 {
		s.fault(s.call, "%d blocks", t.blocks)
	}
	at := s.scratch(len(t.rows))
	s.upload(at, t.rows)
	var a args
	a.ptr(at)
	a.i32(t.count)
	s.kernel(name, [3]uint32{uint32(t.blocks), 1, 1}, block256, 0, &a)
}

// updateBlock is the number of elements that a block of adamw_many takes.
const updateBlock = 4096

var adamWManyKernels = namesOf("adamw_many", "", floats)

func adamWMany(s *stream, calls []backend.Call) {
	var t table
	for i := range calls {
		c := &calls[i]
		s.call = c
		n := s.flat(c, 1)
		var by, numbers, flag cuda.Ptr
		switch c.NIn {
		case 1:
		case 3:
			by, numbers = s.numbers(c, 1, 1), s.numbers(c, 2, 4)
		default:
			s.fault(c, "%d inputs, want 1 or 3", c.NIn)
		}
		if c.If.Buf != nil {
			flag = s.flag(c)
		}
		if n == 0 {
			continue
		}
		all := cuda.Ptr(0)
		for _, v := range []*backend.View{&c.Out[0], &c.Out[1], &c.Out[2], &c.In[0]} {
			t.ptr(s.addr(v))
			all |= s.addr(v)
		}
		t.u64(uint64(n))
		t.ptr(by)
		t.ptr(numbers)
		t.ptr(flag)
		for _, x := range c.Floats {
			t.f64(x)
		}
		width := 4 * c.Out[0].DType.Size()
		t.end((n+updateBlock-1)/updateBlock, all%cuda.Ptr(min(16, width)) == 0)
	}
	s.over(adamWManyKernels[calls[0].In[0].DType], &t)
}

// numbers is the address of an input of n numbers in float64.
func (s *stream) numbers(c *backend.Call, i, n int) cuda.Ptr {
	s.wantFlat(c, &c.In[i], dtype.Float64, n, "input", i)
	return s.addr(&c.In[i])
}

// flag is the address of a call's flag.
func (s *stream) flag(c *backend.Call) cuda.Ptr {
	v := backend.View{Buf: c.If.Buf, DType: dtype.Float64, Offset: c.If.Offset}
	s.checkView(c, &v, "flag", 0)
	return s.addr(&v)
}

var sumSqManyKernels = namesOf("sum_sq_many", "", floats)

func sumSqMany(s *stream, calls []backend.Call) {
	var t table
	for i := range calls {
		c := &calls[i]
		s.call = c
		if c.If.Buf != nil {
			s.fault(c, "a flag: this op has none")
		}
		n, blocks := s.squares(c)
		if n == 0 {
			continue
		}
		t.ptr(s.addr(&c.Out[0]))
		t.ptr(s.addr(&c.In[0]))
		t.u64(uint64(n))
		wide := cuda.Ptr(min(16, 4*c.In[0].DType.Size()))
		t.end(blocks, s.addr(&c.In[0])%wide == 0)
	}
	s.over(sumSqManyKernels[calls[0].In[0].DType], &t)
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
		n := c.In[i].Numel()
		a.ptr(s.numbers(c, i, n))
		a.i64(n)
	}
	a.f64(c.Floats[0])
	a.f64(c.Floats[1])
	s.kernel("clip_factor", [3]uint32{1, 1, 1}, block256, 0, &a)
}

// conditional are the ops that may have a flag, and whether they read their outputs.
var conditional = map[backend.Op]bool{
	backend.OpCopy: false, backend.OpFill: false, backend.OpAdd: false, backend.OpAffine: false,
	backend.OpAxpby: false, backend.OpStochasticRound: false, backend.OpAdamMoments: true, backend.OpAdamW: true,
}

// launchIf queues an op whose outputs are written only if its flag is not 0. AdamW looks at the flag itself. The others
// write to memory of their own, from which the outputs are taken: they are not what most optimizers' steps are made of.
func (s *stream) launchIf(c *backend.Call) {
	reads, ok := conditional[c.Op]
	if !ok {
		s.fault(c, "a flag: this op has none")
	}
	if c.Op == backend.OpAdamW {
		adamWMany(s, []backend.Call{*c})
		return
	}
	at := s.flag(c)
	from := backend.View{Buf: &buffer{s: s, at: at, n: 8}, DType: dtype.Float64}
	flag := s.temporary(dtype.Bool)
	s.run(backend.OpCopy, 0, &flag, &from)
	apart := *c
	apart.If = backend.Flag{}
	for i := range c.NOut {
		out := &c.Out[i]
		apart.Out[i] = s.temporary(out.DType, out.Shape[:out.NDim]...)
		if reads {
			s.run(backend.OpCopy, 0, &apart.Out[i], out)
		}
	}
	launchers[c.Op](s, &apart)
	for i := range c.NOut {
		out := &c.Out[i]
		each := flag
		each.NDim, each.Shape = out.NDim, out.Shape
		s.run(backend.OpWhere, 0, out, &each, &apart.Out[i], out)
	}
}

// affineBy wraps OpAffine, whose factor may be in memory: then it is a product, and an addition.
func affineBy(affine launcher) launcher {
	return func(s *stream, c *backend.Call) {
		dt := c.In[0].DType
		if c.NIn == 1 || !dt.IsFloat() {
			affine(s, c)
			return
		}
		if c.NIn != 2 {
			s.fault(c, "%d inputs, want 1 or 2", c.NIn)
		}
		s.numbers(c, 1, 1)
		x, out := &c.In[0], &c.Out[0]
		if out.DType != dt || out.NDim != x.NDim || out.Shape != x.Shape {
			s.fault(c, "input %s %v, output %s %v", dt, x.Shape[:x.NDim], out.DType, out.Shape[:out.NDim])
		}
		if dt.IsHalf() { // rounded once
			dt = dtype.Float32
			wide := s.temporary(dt, x.Shape[:x.NDim]...)
			s.run(backend.OpCopy, 0, &wide, x)
			x = &wide
		}
		factor := s.temporary(dt, 1)
		s.run(backend.OpCopy, 0, &factor, &c.In[1])
		factor.NDim, factor.Shape, factor.Stride = x.NDim, x.Shape, [backend.MaxDims]int{}
		y := s.temporary(dt, x.Shape[:x.NDim]...)
		s.run(backend.OpMul, 0, &y, x, &factor)
		plus := backend.Call{Op: backend.OpAffine, NOut: 1, NIn: 1, Floats: [8]float64{1, c.Floats[1]}}
		plus.In[0], plus.Out[0] = y, y
		if out.DType == dt {
			plus.Out[0] = *out
			affine(s, &plus)
			return
		}
		affine(s, &plus)
		s.run(backend.OpCopy, 0, out, &y)
	}
}
