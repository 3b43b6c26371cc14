// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// asked is a library of products that notes what it is asked for.
type asked struct {
	cuda.Device
	cuda.Blas
	list []cuda.Product
}

func (a *asked) MatMul(s cuda.Stream, p cuda.Product, o cuda.Operands, workspace cuda.Ptr) error {
	a.list = append(a.list, p)
	return a.Blas.MatMul(s, p, o, workspace)
}

// listen notes what a device asks its library for.
func listen(t *testing.T, d *Device) *asked {
	lib, err := d.dev.Blas()
	require.NoError(t, err)
	a := &asked{Blas: lib}
	d.blas.lib, d.blas.spaces = a, map[cuda.Product]*planned{}
	d.SetGraphs(Graphs{Off: true}) // products are asked for at once
	return a
}

func (a *asked) Close() error { return a.Blas.Close() }

// matrices is a view of memory that holds ones.
func matrices(t *testing.T, s *stream, dt dtype.DType, stride, shape []int) backend.View {
	v := backend.View{DType: dt, NDim: len(shape)}
	copy(v.Shape[:], shape)
	copy(v.Stride[:], stride)
	n := 1
	for d := range shape {
		n += (shape[d] - 1) * stride[d]
	}
	v.Buf = get(t, s, n*dt.Size())
	all := backend.View{Buf: v.Buf, DType: dt, NDim: 1, Shape: [6]int{n}, Stride: [6]int{1}}
	s.Launch(&backend.Call{Op: backend.OpFill, NOut: 1, Out: [4]backend.View{all}, Floats: [8]float64{1}})
	return v
}

// Products are asked for in as few calls as their layouts allow, and nothing is copied that the library can read.
func TestProductsInFewCalls(t *testing.T) {
	for name, k := range map[string]struct {
		a, b, out [2][]int // strides and shape
		calls     int
		kernels   int64 // that copy
		batch     int
		trans     [2]bool // of the library's A, which is b, and B
		beta      float64
	}{
		"rows": {a: [2][]int{{4, 1}, {3, 4}}, b: [2][]int{{5, 1}, {4, 5}}, out: [2][]int{{5, 1}, {3, 5}}, calls: 1,
			batch: 1},
		"columns": {a: [2][]int{{1, 3}, {3, 4}}, b: [2][]int{{1, 4}, {4, 5}}, out: [2][]int{{5, 1}, {3, 5}}, calls: 1,
			batch: 1, trans: [2]bool{true, true}},
		"one right-hand side": {a: [2][]int{{12, 4, 1}, {7, 3, 4}}, b: [2][]int{{0, 5, 1}, {7, 4, 5}},
			out: [2][]int{{15, 5, 1}, {7, 3, 5}}, calls: 1, batch: 1},
		"heads": {a: [2][]int{{96, 8, 32, 1}, {2, 4, 3, 8}}, b: [2][]int{{96, 8, 1, 32}, {2, 4, 8, 3}},
			out: [2][]int{{36, 9, 3, 1}, {2, 4, 3, 3}}, calls: 2, batch: 4, trans: [2]bool{true, false}},
		"a batch of two dims": {a: [2][]int{{36, 12, 4, 1}, {2, 3, 3, 4}}, b: [2][]int{{60, 20, 5, 1}, {2, 3, 4, 5}},
			out: [2][]int{{45, 15, 5, 1}, {2, 3, 3, 5}}, calls: 1, batch: 6},
		"gaps": {a: [2][]int{{8, 2}, {3, 4}}, b: [2][]int{{5, 1}, {4, 5}}, out: [2][]int{{5, 1}, {3, 5}}, calls: 1,
			kernels: 1, batch: 1},
		"a sum of products": {a: [2][]int{{12, 4, 1}, {2, 3, 4}}, b: [2][]int{{20, 5, 1}, {2, 4, 5}},
			out: [2][]int{{0, 5, 1}, {2, 3, 5}}, calls: 2, batch: 1, beta: 1},
	} {
		t.Run(name, func(t *testing.T) {
			d := fakeDevice(t, fake.Options{})
			lib := listen(t, d)
			s := newStream(d)
			a, b := matrices(t, s, dtype.Float32, k.a[0], k.a[1]), matrices(t, s, dtype.Float32, k.b[0], k.b[1])
			out := matrices(t, s, dtype.Float32, k.out[0], k.out[1])
			before := d.Launches()
			s.Launch(&backend.Call{Op: backend.OpMatMul, NOut: 1, NIn: 2, Out: [4]backend.View{out},
				In: [8]backend.View{a, b}, Ints: [8]int{int(k.beta)}})
			require.Len(t, lib.list, k.calls)
			require.Equal(t, int64(k.calls)+k.kernels, d.Launches()-before)
			for _, p := range lib.list {
				require.Equal(t, k.batch, p.D.Batch)
				require.Equal(t, k.trans, [2]bool{p.TransA, p.TransB})
				require.InDelta(t, k.beta, p.Beta, 0)
				require.Equal(t, cuda.Compute32F, p.Compute)
			}
			s.Sync()
		})
	}
}

// The library does what it can of a linear layer: the rest takes a kernel.
func TestEpilogues(t *testing.T) {
	for _, k := range []struct {
		dt       dtype.DType
		op       backend.Op
		n, outs  int
		biased   bool
		epilogue cuda.Epilogue
		kernels  int64
	}{
		{dtype.Float32, backend.OpInvalid, 8, 1, false, cuda.EpilogueNone, 0},
		{dtype.Float32, backend.OpInvalid, 8, 1, true, cuda.EpilogueBias, 0},
		{dtype.Float32, backend.OpReLU, 8, 1, true, cuda.EpilogueReLUBias, 0},
		{dtype.Float32, backend.OpReLU, 8, 2, true, cuda.EpilogueBias, 1},
		{dtype.Float32, backend.OpGELUTanh, 8, 1, true, cuda.EpilogueBias, 1}, // with the bits of the op
		{dtype.BFloat16, backend.OpGELUTanh, 8, 1, true, cuda.EpilogueGELUBias, 0},
		{dtype.BFloat16, backend.OpGELUTanh, 8, 2, true, cuda.EpilogueGELUAuxBias, 0},
		{dtype.Float16, backend.OpGELUTanh, 8, 2, false, cuda.EpilogueGELUAux, 0},
		{dtype.Float16, backend.OpGELUTanh, 9, 2, false, cuda.EpilogueNone, 1}, // no multiple of 8
		{dtype.BFloat16, backend.OpSiLU, 8, 2, true, cuda.EpilogueBias, 1},
		{dtype.Float64, backend.OpReLU, 8, 1, true, cuda.EpilogueNone, 2},
	} {
		d := fakeDevice(t, fake.Options{})
		lib := listen(t, d)
		s := newStream(d)
		c := backend.Call{Op: backend.OpLinear, NOut: k.outs, NIn: 2, Ints: [8]int{int(k.op)}}
		c.In[0] = matrices(t, s, k.dt, []int{4, 1}, []int{3, 4})
		c.In[1] = matrices(t, s, k.dt, []int{k.n, 1}, []int{4, k.n})
		if k.biased {
			c.NIn, c.In[2] = 3, matrices(t, s, k.dt, []int{1}, []int{k.n})
		}
		for i := range k.outs {
			c.Out[i] = matrices(t, s, k.dt, []int{k.n, 1}, []int{3, k.n})
		}
		before := d.Launches()
		s.Launch(&c)
		require.Len(t, lib.list, 1)
		require.Equal(t, k.epilogue, lib.list[0].Epilogue, "%+v", k)
		require.Equal(t, 1+k.kernels, d.Launches()-before, "%+v", k)
		s.Sync()
	}
}

// Float32 is rounded to TF32 only where that was asked for.
func TestTF32(t *testing.T) {
	fakeAlone(t, "a library need not round products of one number")
	d := fakeDevice(t, fake.Options{})
	s := newStream(d)
	x, one, y := get(t, s, 4), get(t, s, 4), get(t, s, 4)
	s.Write(x, 0, binary.LittleEndian.AppendUint32(nil, math.Float32bits(1+0x1p-20)))
	s.Write(one, 0, one32)
	for _, on := range []bool{false, true} {
		d.SetTF32(on)
		double(s, y, x, one)
		require.Equal(t, on, string(read(s, y)) == string(one32))
	}
}
