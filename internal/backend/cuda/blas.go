// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"sync"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// blas is the device's library of products, opened when there is a first one.
type blas struct {
	mu     sync.Mutex
	lib    cuda.Blas
	spaces map[cuda.Product]*planned
}

// planned is a product that was asked for before; there is one of each.
type planned struct {
	cuda.Product
	space int // bytes of workspace
}

// multiplied is what makes a product the same call.
type multiplied struct {
	p     *planned
	o     cuda.Operands
	space cuda.Ptr
}

// workspace is memory of a stream that its products use one after the other.
type workspace struct {
	at cuda.Ptr
	n  int
	b  *block
}

// open opens the library.
func (b *blas) open(d *Device) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.opened(d)
}

// opened opens the library if it is not open. b.mu is held.
func (b *blas) opened(d *Device) error {
	if b.lib != nil {
		return nil
	}
	lib, err := d.dev.Blas()
	if err != nil {
		return err
	}
	b.lib, b.spaces = lib, map[cuda.Product]*planned{}
	return nil
}

// need says how much workspace a product needs.
func (b *blas) need(d *Device, p cuda.Product) (cuda.Blas, *planned, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.opened(d); err != nil {
		return nil, nil, err
	}
	known := b.spaces[p]
	if known == nil {
		n, err := b.lib.Workspace(p)
		if err != nil {
			return nil, nil, err
		}
		known = &planned{p, n}
		b.spaces[p] = known
	}
	return b.lib, known, nil
}

func (b *blas) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lib == nil {
		return nil
	}
	err := b.lib.Close()
	b.lib = nil
	return err
}

// alignment is what libraries are told of addresses: the bytes that all are multiples of, at most 16, the widest load.
// More would make one product or convolution several, and bits depend on where a gradient lies, which the number of
// ranks decides.
func alignment(addresses ...cuda.Ptr) int {
	align := 16
	for _, at := range addresses {
		for at%cuda.Ptr(align) != 0 {
			align /= 2
		}
	}
	return align
}

// multiply queues a product.
func (s *stream) multiply(p cuda.Product, o cuda.Operands) {
	p.Align = alignment(o.A, o.B, o.C, o.D, o.Bias, o.Aux)
	lib, known, err := s.d.blas.need(s.d, p)
	s.must(err)
	if known.space > s.space.n {
		if s.space.b != nil { // for later work of the stream
			s.d.mem.release(&s.pool, s.space.b)
		}
		b, err := s.d.mem.scratch(&s.pool, known.space)
		s.must(err)
		s.space = workspace{b.ptr(), b.n, b}
	}
	s.d.counters.products.Add(1)
	m := multiplied{known, o, s.space.at}
	s.must(s.q.library(m, func(q cuda.Stream) error { return lib.MatMul(q, m.p.Product, m.o, m.space) }))
}

var dataTypes = map[dtype.DType]cuda.DataType{dtype.Float32: cuda.R32F, dtype.Float64: cuda.R64F,
	dtype.Float16: cuda.R16F, dtype.BFloat16: cuda.R16BF}

// compute is what products of a dtype are added in.
func (d *Device) compute(dt dtype.DType) cuda.Compute {
	switch {
	case dt == dtype.Float64:
		return cuda.Compute64F
	case dt == dtype.Float32 && d.tf32.Load():
		return cuda.Compute32FTF32
	}
	return cuda.Compute32F
}

// temporary is a contiguous view of scratch.
func (s *stream) temporary(dt dtype.DType, shape ...int) backend.View {
	v := backend.View{DType: dt, NDim: len(shape)}
	n := 1
	for k := len(shape) - 1; k >= 0; k-- {
		v.Shape[k], v.Stride[k] = shape[k], n
		n *= shape[k]
	}
	size := n * dt.Size()
	v.Buf = &buffer{s: s, at: s.scratch(size), n: size}
	return v
}

// run queues another op as part of a launch.
func (s *stream) run(op backend.Op, ints int, out *backend.View, ins ...*backend.View) {
	c := backend.Call{Op: op, NOut: 1, NIn: len(ins)}
	c.Ints[0] = ints
	c.Out[0] = *out
	for i, v := range ins {
		c.In[i] = *v
	}
	table[op].launch(s, &c)
}
