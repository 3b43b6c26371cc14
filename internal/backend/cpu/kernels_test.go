// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// view makes a contiguous float32 view of new memory filled by f.
func view(t testing.TB, d *Device, f func(i int) float32, shape ...int) backend.View {
	n := 1
	for _, s := range shape {
		n *= s
	}
	b, err := d.Alloc(4 * n)
	require.NoError(t, err)
	v := backend.View{Buf: b, DType: dtype.Float32, NDim: len(shape)}
	stride := 1
	for k := len(shape) - 1; k >= 0; k-- {
		v.Shape[k], v.Stride[k] = shape[k], stride
		stride *= shape[k]
	}
	x := unsafe.Slice((*float32)(b.(*buffer).ptr), n)
	for i := range x {
		x[i] = f(i)
	}
	return v
}

func zero(int) float32 { return 0 }

func wave(i int) float32 { return float32(math.Sin(float64(i))) }
func call(op backend.Op, out []backend.View, in []backend.View) *backend.Call {
	c := &backend.Call{Op: op, NOut: len(out), NIn: len(in)}
	copy(c.Out[:], out)
	copy(c.In[:], in)
	return c
}

func hot(t testing.TB, d *Device) map[string]*backend.Call {
	x := view(t, d, wave, 1024, 1024)
	y := view(t, d, zero, 1024, 1024)
	tiny := view(t, d, wave, 16)
	turned := x
	turned.Stride[0], turned.Stride[1] = 1, 1024
	heads := x // [B,T,H,D] as [B,H,T,D]
	heads.NDim = 4
	heads.Shape, heads.Stride = [6]int{8, 8, 512, 32}, [6]int{512 * 256, 32, 256, 1}
	byHead := y
	byHead.NDim = 4
	byHead.Shape, byHead.Stride = [6]int{8, 8, 512, 32}, [6]int{512 * 256, 512 * 32, 32, 1}
	bias := view(t, d, wave, 1024, 1024)
	bias.Stride[0] = 0
	column := bias
	column.Stride[0], column.Stride[1] = 1, 0
	half := x
	half.DType = dtype.BFloat16
	dy := view(t, d, wave, 1024, 1024)
	l, lo := view(t, d, wave, 1024, 2048), view(t, d, zero, 1024, 2048)
	n, no := view(t, d, wave, 1024, 256), view(t, d, zero, 1024, 256)
	w, b := view(t, d, wave, 256), view(t, d, wave, 256)
	dw, db := view(t, d, wave, 256), view(t, d, wave, 256)
	mean, rstd := view(t, d, zero, 1024), view(t, d, func(int) float32 { return 1 }, 1024)
	v := func(v ...backend.View) []backend.View { return v }
	m := map[string]*backend.Call{
		"add_tiny":   call(backend.OpAdd, v(tiny), v(tiny, tiny)),
		"add_bias":   call(backend.OpAdd, v(y), v(x, bias)),
		"mul_column": call(backend.OpMul, v(y), v(x, column)),
		"transpose":  call(backend.OpCopy, v(y), v(turned)),
		"permute":    call(backend.OpCopy, v(byHead), v(heads)),
		"widen":      call(backend.OpCopy, v(y), v(half)),
		"add":        call(backend.OpAdd, v(y), v(x, dy)),
		"gelu_tanh":  call(backend.OpGELUTanh, v(y), v(x)),
		"gelu_grad":  call(backend.OpGELUTanhGrad, v(y), v(x, dy)),
		"gelu_erf":   call(backend.OpGELU, v(y), v(x)),
		"exp":        call(backend.OpExp, v(y), v(x)),
		"tanh":       call(backend.OpTanh, v(y), v(x)),
		"sum":        call(backend.OpSum, v(view(t, d, zero, 1024, 1)), v(x)),
		"sum_cols":   call(backend.OpSum, v(view(t, d, zero, 1, 1024)), v(x)),
		"softmax":    call(backend.OpSoftmax, v(lo), v(l)),
		"softmax_g":  call(backend.OpSoftmaxGrad, v(lo), v(l, l)),
		"layernorm":  call(backend.OpLayerNorm, v(no, mean, rstd), v(n, w, b)),
		"ln_grad":    call(backend.OpLayerNormGrad, v(no), v(n, mean, rstd, n, w)),
		"ln_param":   call(backend.OpLayerNormParamGrad, v(dw, db), v(n, mean, rstd, n)),
		"dropout":    call(backend.OpDropout, v(y), v(x)),
		"adam": call(backend.OpAdamMoments,
			v(view(t, d, zero, 1<<20), view(t, d, zero, 1<<20), view(t, d, zero, 1<<20)), v(view(t, d, wave, 1<<20))),
	}
	m["dropout"].Floats[0] = 0.1
	m["adam"].Floats = [8]float64{0.9, 0.999, 1e-8, 0.1, 0.001}
	q, k, vv := view(t, d, wave, 8, 8, 128, 32), view(t, d, wave, 8, 8, 128, 32), view(t, d, wave, 8, 8, 128, 32)
	out, lse := view(t, d, zero, 8, 8, 128, 32), view(t, d, zero, 8, 8, 128)
	at := call(backend.OpAttention, v(out, lse), v(q, k, vv))
	at.Floats[0], at.Ints[0] = 0.17, 1
	m["attention"] = at
	atg := call(backend.OpAttentionGrad, v(view(t, d, zero, 8, 8, 128, 32), view(t, d, zero, 8, 8, 128, 32),
		view(t, d, zero, 8, 8, 128, 32)), v(q, k, vv, lse, q, lse))
	atg.Floats[0], atg.Ints[0] = 0.17, 1
	m["attention_grad"] = atg
	ids := view(t, d, zero, 1024)
	ids.DType = dtype.Int32
	x32 := unsafe.Slice((*int32)(ids.Buf.(*buffer).ptr), 1024)
	for i := range x32 {
		x32[i] = int32(i * 7 % 2048)
	}
	m["xent"] = call(backend.OpCrossEntropy, v(mean, rstd), v(l, ids))
	m["xent"].Ints[0] = -100
	m["xent_grad"] = call(backend.OpCrossEntropyGrad, v(lo), v(l, ids, rstd, mean))
	m["xent_grad"].Ints[0] = -100
	m["embedding_grad"] = call(backend.OpEmbeddingGrad, v(view(t, d, zero, 2048, 256)), v(ids, n))
	m["linear"] = call(backend.OpLinear, v(no, view(t, d, zero, 1024, 256)), v(x, view(t, d, wave, 1024, 256), b))
	m["linear"].Ints[0] = int(backend.OpGELUTanh)
	m["matmul"] = call(backend.OpMatMul, v(no), v(x, view(t, d, wave, 1024, 256)))
	return m
}

// steadyAllocs is the number of allocations of f once it has none, or after some tries: scratch memory is made when a
// worker first takes part, which on a busy machine may be late.
func steadyAllocs(f func()) float64 {
	f()
	allocs := testing.AllocsPerRun(3, f)
	for tries := 0; allocs > 0 && tries < 20; tries++ {
		allocs = testing.AllocsPerRun(3, f)
	}
	return allocs
}

func TestLaunchMakesNoGarbage(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's or an emulator's
	}
	d := New(2)
	defer d.Close()
	s := d.NewStream()
	for name, c := range hot(t, d) {
		require.Zero(t, steadyAllocs(func() { s.Launch(c) }), name)
	}
}

// Strided operands and half types go through scratch that is kept.
func TestIndirectLaunchMakesNoGarbage(t *testing.T) {
	d := New(2)
	defer d.Close()
	s := d.NewStream()
	x, y := view(t, d, wave, 300, 300), view(t, d, zero, 300, 300)
	x.Stride[0], x.Stride[1] = 1, 300
	strided := call(backend.OpAdd, []backend.View{y}, []backend.View{x, x})
	x.DType, y.DType = dtype.BFloat16, dtype.BFloat16
	half := call(backend.OpAdd, []backend.View{y}, []backend.View{x, x})
	for _, c := range []*backend.Call{strided, half} {
		require.Zero(t, steadyAllocs(func() { s.Launch(c) }))
	}
}

func BenchmarkKernels(b *testing.B) {
	d := New(1)
	defer d.Close()
	s := d.NewStream()
	for name, c := range hot(b, d) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s.Launch(c)
			}
		})
	}
}
