// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	variants "github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
)

// converted is a contiguous copy of a view in another dtype.
func converted(t testing.TB, s backend.Stream, d *Device, to dtype.DType, from backend.View) backend.View {
	v := view(t, d, zero, from.Shape[:from.NDim]...)
	v.DType = to
	s.Launch(call(backend.OpCopy, []backend.View{v}, []backend.View{from}))
	return v
}

// halfBits are the elements of a contiguous view of a half type.
func halfBits(v backend.View) []uint16 { return slice[uint16](&v) }

// turned exchanges the last two dims.
func turned(v backend.View) backend.View {
	i, j := v.NDim-2, v.NDim-1
	v.Shape[i], v.Shape[j] = v.Shape[j], v.Shape[i]
	v.Stride[i], v.Stride[j] = v.Stride[j], v.Stride[i]
	return v
}

// requireRoundsOnce runs a call on half operands, and on float32 copies of them whose outputs are rounded afterwards:
// the bits must be the same.
func requireRoundsOnce(t *testing.T, d *Device, half backend.Call, what string) {
	s := d.NewStream()
	wide, want := half, half
	for i := range half.NIn {
		wide.In[i] = converted(t, s, d, dtype.Float32, half.In[i])
	}
	for i := range half.NOut {
		wide.Out[i] = converted(t, s, d, dtype.Float32, half.Out[i])
		if repeats(&half.Out[i]) {
			wide.Out[i].Stride[0] = 0
		}
	}
	s.Launch(&wide)
	s.Launch(&half)
	for i := range half.NOut {
		want.Out[i] = converted(t, s, d, half.Out[i].DType, wide.Out[i])
		got := converted(t, s, d, half.Out[i].DType, half.Out[i])
		require.Equal(t, halfBits(want.Out[i]), halfBits(got), "output %d of %s", i, what)
	}
}

// eachHalf runs a test for both half types, under each variant, on one and three workers.
func eachHalf(t *testing.T, test func(t *testing.T, d *Device, operand func(shape ...int) backend.View)) {
	kernelstest.Each(t, func(t *testing.T, _ variants.Variant) {
		for _, of := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
			for _, workers := range []int{1, 3} {
				d := New(workers)
				s := d.NewStream()
				test(t, d, func(shape ...int) backend.View {
					return converted(t, s, d, of, view(t, d, wave, shape...))
				})
				require.NoError(t, d.Close())
			}
		}
	})
}

func TestHalfMatMulRoundsOnce(t *testing.T) {
	eachHalf(t, func(t *testing.T, d *Device, operand func(shape ...int) backend.View) {
		for i, c := range [][4]int{{1, 3, 4, 5}, {5, 9, 17, 8}, {1, 130, 70, 150}, {2, 170, 300, 170}, {3, 1, 300, 70},
			{1, 700, 3, 1}, {2, 3, 0, 4}, {0, 3, 4, 5}, {2, 0, 3, 4}} {
			batch, m, k, n := c[0], c[1], c[2], c[3]
			for trans := range 4 {
				a, b := operand(batch, m, k), operand(batch, k, n)
				if trans&1 > 0 {
					a = turned(operand(batch, k, m))
				}
				if trans&2 > 0 {
					b = turned(operand(batch, n, k))
				}
				if i%2 == 1 { // all with the same B
					b.Stride[0] = 0
				}
				for accumulate := range 2 {
					x := call(backend.OpMatMul, []backend.View{operand(batch, m, n)}, []backend.View{a, b})
					x.Ints[0] = accumulate
					requireRoundsOnce(t, d, *x, fmt.Sprintf("%v, transposed %d, accumulate %d", c, trans, accumulate))
				}
			}
		}
		if d.Workers() == 1 { // an output that repeats is added to by one product after the other
			out := operand(4, 9, 8)
			out.Stride[0] = 0
			x := call(backend.OpMatMul, []backend.View{out}, []backend.View{operand(4, 9, 17), operand(4, 17, 8)})
			x.Ints[0] = 1
			requireRoundsOnce(t, d, *x, "an output that repeats")
		}
	})
}

// requireSteps compares an OpLinear with the product alone, rounded, and then the op.
func requireSteps(t *testing.T, d *Device, fused backend.Call, what string) {
	s := d.NewStream()
	first := fused
	first.NOut, first.Ints[0] = 1, int(backend.OpInvalid)
	first.Out[0] = converted(t, s, d, fused.Out[0].DType, fused.Out[0])
	s.Launch(&first)
	y := converted(t, s, d, fused.Out[0].DType, fused.Out[0])
	s.Launch(call(backend.Op(fused.Ints[0]), []backend.View{y}, []backend.View{first.Out[0]}))
	s.Launch(&fused)
	require.Equal(t, halfBits(y), halfBits(fused.Out[0]), "%s", what)
	if fused.NOut > 1 {
		require.Equal(t, halfBits(first.Out[0]), halfBits(fused.Out[1]), "what %s is applied to", what)
	}
}

// A linear layer with an activation has the bits of the two ops, so that its output can be computed again from what was
// saved.
func TestHalfLinear(t *testing.T) {
	eachHalf(t, func(t *testing.T, d *Device, operand func(shape ...int) backend.View) {
		for _, c := range [][3]int{{3, 4, 5}, {1, 300, 170}, {140, 300, 65}, {130, 1100, 40}, {7, 64, 1500}, {3, 0, 5},
			{0, 4, 5}, {3, 4, 0}} {
			m, k, n := c[0], c[1], c[2]
			strided := operand(n, 2)
			strided.NDim = 1
			for i, in := range [][]backend.View{{operand(m, k), operand(k, n)},
				{operand(m, k), turned(operand(n, k)), operand(n)}, {turned(operand(k, m)), operand(k, n), strided}} {
				for _, op := range []backend.Op{backend.OpInvalid, backend.OpReLU, backend.OpGELUTanh} {
					out := []backend.View{operand(m, n)}
					if op != backend.OpInvalid && i > 0 {
						out = append(out, operand(m, n))
					}
					x := call(backend.OpLinear, out, in)
					x.Ints[0] = int(op)
					if op == backend.OpInvalid {
						requireRoundsOnce(t, d, *x, fmt.Sprintf("%v, case %d", c, i))
					} else {
						requireSteps(t, d, *x, fmt.Sprintf("%v, case %d, %s", c, i, op))
					}
				}
			}
		}
	})
}

func TestHalfProductsMakeNoGarbage(t *testing.T) {
	d := New(2)
	defer d.Close()
	s := d.NewStream()
	half := func(shape ...int) backend.View {
		return converted(t, s, d, dtype.BFloat16, view(t, d, wave, shape...))
	}
	v := func(v ...backend.View) []backend.View { return v }
	large := call(backend.OpMatMul, v(half(300, 400)), v(half(300, 100), half(100, 400)))
	added := call(backend.OpMatMul, v(half(300, 400)), v(half(300, 100), half(100, 400)))
	added.Ints[0] = 1
	batch := call(backend.OpMatMul, v(half(40, 30, 20)), v(half(40, 30, 10), half(40, 10, 20)))
	linear := call(backend.OpLinear, v(half(300, 400), half(300, 400)), v(half(300, 100), half(100, 400), half(400)))
	linear.Ints[0] = int(backend.OpGELUTanh)
	for _, c := range []*backend.Call{large, added, batch, linear} {
		require.Zero(t, steadyAllocs(func() { s.Launch(c) }))
	}
}

// BenchmarkHalf is GPT-2's first projection of the feed-forward part, in float32 and bfloat16.
func BenchmarkHalf(b *testing.B) {
	d := New(1)
	defer d.Close()
	s := d.NewStream()
	for _, tokens := range []int{1, 8, 1024} {
		x, w, bias, y := view(b, d, wave, tokens, 768), view(b, d, wave, 768, 3072), view(b, d, wave, 3072),
			view(b, d, zero, tokens, 3072)
		for _, of := range []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float16} {
			c := call(backend.OpLinear, []backend.View{converted(b, s, d, of, y)},
				[]backend.View{converted(b, s, d, of, x), converted(b, s, d, of, w), converted(b, s, d, of, bias)})
			b.Run(fmt.Sprintf("%d/%s", tokens, of), func(b *testing.B) {
				for b.Loop() {
					s.Launch(c)
				}
			})
			widened := kernel{run: linearKernel}
			if of.IsHalf() {
				b.Run(fmt.Sprintf("%d/%s_before", tokens, of), func(b *testing.B) {
					for b.Loop() {
						d.launchWidened(&widened, c)
					}
				})
			}
		}
	}
}
