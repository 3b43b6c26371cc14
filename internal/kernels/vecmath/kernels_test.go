// SPDX-License-Identifier: Apache-2.0

package vecmath

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
)

// arrays are operands of one length, filled at random; a kernel may write to any of them.
type arrays struct {
	a, b, c, d, e, f []float32
	v, w             []float64
	h                []dtype.BF16
	sum, inner       float64
	most             float32
}

func newArrays(n int, seed uint64) *arrays {
	r := rand.New(rand.NewPCG(seed, 1))
	fill := func(lo, hi float32) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = lo + (hi-lo)*r.Float32()
		}
		return x
	}
	x := &arrays{a: fill(-3, 3), b: fill(-3, 3), c: fill(-3, 3), d: fill(0, 3), e: fill(-3, 3), f: fill(-1e-3, 1e3),
		v: make([]float64, n), w: make([]float64, n), h: make([]dtype.BF16, n)}
	for i := range n {
		x.v[i], x.w[i], x.h[i] = r.Float64(), r.Float64(), dtype.BF16(r.Uint32())
	}
	return x
}

// bits is everything there is to compare.
func (x *arrays) bits() []uint64 {
	var all []uint64
	for _, s := range [][]float32{x.a, x.b, x.c, x.d, x.e, x.f} {
		for _, v := range s {
			all = append(all, uint64(math.Float32bits(v)))
		}
	}
	for i := range x.v {
		all = append(all, math.Float64bits(x.v[i]), math.Float64bits(x.w[i]), uint64(x.h[i]))
	}
	return append(all, math.Float64bits(x.sum), math.Float64bits(x.inner), uint64(math.Float32bits(x.most)))
}

// specials puts what is not an ordinary number in some places of a.
func (x *arrays) specials() *arrays {
	for i := range x.a {
		switch i % 23 {
		case 3:
			x.a[i] = float32(math.NaN())
		case 7:
			x.a[i] = float32(math.Copysign(0, -1))
		case 11:
			x.a[i] = float32(math.Inf(1))
		case 13:
			x.a[i] = float32(math.Inf(-1))
		case 17:
			x.a[i] = 1e-42
		}
	}
	return x
}

// exact are the kernels whose bits all variants share.
var exact = map[string]func(x *arrays){
	"Add":            func(x *arrays) { Add(x.b, x.a, x.c) },
	"Sub":            func(x *arrays) { Sub(x.b, x.a, x.c) },
	"Mul":            func(x *arrays) { Mul(x.b, x.a, x.c) },
	"Div":            func(x *arrays) { Div(x.b, x.a, x.c) },
	"Axpby":          func(x *arrays) { Axpby(x.b, 0.3, x.a, -1.7, x.c) },
	"Affine":         func(x *arrays) { Affine(x.b, x.a, 0.3, -1.7) },
	"Scale":          func(x *arrays) { Scale(x.a, x.a, 0.3, true) },
	"Rotate":         func(x *arrays) { Rotate(x.a, x.b, x.a, x.b, x.c, x.d, -1) },
	"ReLU":           func(x *arrays) { ReLU(x.b, x.a) },
	"ReLUGrad":       func(x *arrays) { ReLUGrad(x.b, x.a, x.c) },
	"SoftmaxGrad":    func(x *arrays) { SoftmaxGrad(x.b, x.a, x.c, 0.7, true) },
	"SoftmaxGradDot": func(x *arrays) { x.sum = SoftmaxGradDot(x.b, x.a, x.c, x.d, x.e, 0.7, true) },
	"SubWide":        func(x *arrays) { SubWide(x.b, x.a, 0.123456789, true) },
	"Sum":            func(x *arrays) { x.sum = Sum(x.b) },
	"Dot":            func(x *arrays) { x.sum = Dot(x.b, x.c) },
	"Deviations":     func(x *arrays) { x.sum = Deviations(x.b, 0.123456789) },
	"RowDot":         func(x *arrays) { x.sum = RowDot(x.b, x.c) },
	"RowSquares":     func(x *arrays) { x.sum = RowSquares(x.b) },
	"Variance":       func(x *arrays) { x.sum, x.inner = MeanAndVariance(x.b) },
	"Max":            func(x *arrays) { x.most = Max(x.a) },
	"AddWide":        func(x *arrays) { AddWide(x.v, x.a) },
	"AddWideRows":    func(x *arrays) { n := len(x.a) / 11; AddWideRows(x.v[:n], x.a, min(n, 1)*7, n+n/2) },
	"Normalize":      func(x *arrays) { Normalize(x.b, x.a, nil, nil, 0.1, 1.3, true) },
	"NormalizeScale": func(x *arrays) { Normalize(x.b, x.a, x.c, nil, 0.1, 1.3, true) },
	"NormalizeBoth":  func(x *arrays) { Normalize(x.b, x.a, x.c, x.d, 0.1, 1.3, true) },
	"NormalizeMoments": func(x *arrays) {
		x.sum, x.inner = NormalizeMoments(x.b, x.a, x.c, x.d, x.e, 0.1, 1.3, true)
	},
	"NormSums":       func(x *arrays) { x.sum, x.inner = NormSums(nil, nil, x.b, x.c, x.d, 0.1, 1.3) },
	"NormSumsScale":  func(x *arrays) { x.sum, x.inner = NormSums(x.e, nil, x.b, x.c, x.d, 0.1, 1.3) },
	"NormSumsAffine": func(x *arrays) { x.sum, x.inner = NormSums(x.e, x.f, x.b, x.c, x.d, 0.1, 1.3) },
	"NormGrad":       func(x *arrays) { NormGrad(x.b, x.a, x.c, x.d, 0.1, 1.3, 0.2, 0.7, 1.1, true) },
	"NormGradSums": func(x *arrays) {
		x.sum, x.inner = NormGradSums(x.b, x.a, x.c, x.d, x.e, x.f, x.c, x.a, 0.1, 1.3, 0.2, 0.7, 1.1, 0.3, 1.2, true)
	},
	"NormParamGrad": func(x *arrays) { NormParamGrad(x.e, x.f, x.a, x.b, 0.1, 1.3) },
	"NormScaleGrad": func(x *arrays) { NormParamGrad(x.e, nil, x.a, x.b, 0.1, 1.3) },
	"AdamMoments":   func(x *arrays) { NewAdam(0.9, 0.999, 1e-8, 0.3, 0.01).Moments(x.c, x.d, x.a, x.a) },
	"AdamStep": func(x *arrays) {
		NewAdam(0.9, 0.999, 1e-8, 0.3, 0.01).Step(x.b, x.c, x.d, x.a, 0.7, 0.999, -0.01)
	},
	"Keep":      func(x *arrays) { Keep(x.b, x.a, randomBits(x.f), 1<<23, 1.7) },
	"Hide":      func(x *arrays) { Hide(x.a, someBytes(x.f), -1.7) },
	"WidenBF16": func(x *arrays) { WidenBF16(x.b, x.h) },
	"WidenF16":  func(x *arrays) { WidenF16(x.b, asF16(x.h)) },
	"RoundF16":  func(x *arrays) { RoundF16(asF16(x.h), x.f); RoundF16(asF16(x.h[:len(x.h)/2]), x.a[:len(x.h)/2]) },
	"RoundBF16": func(x *arrays) { RoundBF16(x.h, x.f); RoundBF16(x.h[:len(x.h)/2], x.a[:len(x.h)/2]) },
}

// randomBits are the bits of a slice, mixed.
func randomBits(x []float32) []uint32 {
	bits := unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
	for i := range bits {
		bits[i] *= 0x9E3779B1
	}
	return bits
}

// someBytes are as many bytes as x has elements, a third of them 0.
func someBytes(x []float32) []uint8 {
	mask := unsafe.Slice((*uint8)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
	for i := range mask {
		mask[i] = uint8(i % 3 * 100)
	}
	return mask
}

// fused are the kernels with an exponential, whose generic version rounds differently.
var fused = map[string]func(x *arrays){
	"ExpScaled":      func(x *arrays) { ExpScaled(x.b, x.a, 0.5, 0.3, true) },
	"ExpSum":         func(x *arrays) { x.sum = ExpSum(x.b, x.a, 3) },
	"ScaleExpSum":    func(x *arrays) { x.sum, x.most = ScaleExpSum(x.b, x.c, x.a, x.d, 0.3, 3, true) },
	"SumExp":         func(x *arrays) { x.sum = SumExp(x.a, 3) },
	"LogSoftmaxGrad": func(x *arrays) { LogSoftmaxGrad(x.b, x.a, x.c, 0.4, true) },
	"Sigmoid":        func(x *arrays) { Sigmoid(x.b, x.a) },
	"SiLU":           func(x *arrays) { SiLU(x.b, x.a) },
	"SiLUGrad":       func(x *arrays) { SiLUGrad(x.b, x.a, x.c) },
	"SwiGLU":         func(x *arrays) { SwiGLU(x.b, x.a, x.c) },
	"SwiGLUGrad":     func(x *arrays) { SwiGLUGrad(x.b, x.c, x.a, x.c, x.c) },
	"GELUTanh":       func(x *arrays) { GELUTanh(x.b, x.a) },
	"GELUTanhGrad":   func(x *arrays) { GELUTanhGrad(x.b, x.a, x.c) },
	"GELUTanhBoth":   func(x *arrays) { GELUTanhBoth(x.b, x.a, x.a, x.c) },
	"GELU":           func(x *arrays) { GELU(x.b, x.a) },
	"GELUGrad":       func(x *arrays) { GELUGrad(x.b, x.a, x.c) },
}

// inPieces are those that AVX-512 computes another way than AVX2.
var inPieces = map[string]bool{"GELU": true, "GELUGrad": true}

// under runs f on equal operands under a variant and returns all bits.
func under(t *testing.T, v kernels.Variant, n int, special bool, f func(x *arrays)) []uint64 {
	restore, err := kernels.Force(v)
	require.NoError(t, err)
	defer restore()
	x := newArrays(n, uint64(n))
	if special {
		x.specials()
	}
	f(x)
	return x.bits()
}

// lengths have empty, partial, whole and several blocks, and more than one stretch.
func lengths() []int {
	list := []int{0, 1, 2, 15, 16, 17, 31, 48, 63, 100}
	if !testing.Short() { // which is the race detector's run: slow, and blind to assembly
		list = append(list, stretch+lanes+5)
	}
	return list
}

func TestVariantsAgreeBitByBit(t *testing.T) {
	for name, f := range exact {
		for _, v := range kernels.Available() {
			for _, n := range lengths() {
				for _, special := range []bool{false, true} {
					require.Equal(t, under(t, kernels.Generic, n, special, f), under(t, v, n, special, f),
						"%s %s of %d", name, v, n)
				}
			}
		}
	}
	for name, f := range fused {
		vectors := kernels.Available()[1:]
		if inPieces[name] {
			vectors = vectors[:min(1, len(vectors))]
		}
		for _, v := range vectors {
			for _, n := range lengths() {
				require.Equal(t, under(t, vectors[0], n, true, f), under(t, v, n, true, f), "%s %s of %d", name, v, n)
			}
		}
	}
}

// TestNonTemporalStores: a result that is long enough for them has the bits of the same in pieces, wherever it begins.
func TestNonTemporalStores(t *testing.T) {
	unary := func(f func(dst, x []float32)) func(dst, x, y []float32) {
		return func(dst, x, _ []float32) { f(dst, x) }
	}
	table := map[string]func(dst, x, y []float32){
		"Add": Add, "Sub": Sub, "Mul": Mul, "Div": Div, "ReLU": unary(ReLU), "ReLUGrad": ReLUGrad, "SwiGLU": SwiGLU,
		"Sigmoid": unary(Sigmoid), "SiLU": unary(SiLU), "SiLUGrad": SiLUGrad, "Tanh": unary(Tanh),
		"GELU": unary(GELU), "GELUGrad": GELUGrad, "GELUTanh": unary(GELUTanh), "GELUTanhGrad": GELUTanhGrad,
		"Exp":    func(dst, x, _ []float32) { Exp(dst, x, 0.5) },
		"Axpby":  func(dst, x, y []float32) { Axpby(dst, 0.3, x, -1.7, y) },
		"Affine": func(dst, x, _ []float32) { Affine(dst, x, 0.3, -1.7) },
	}
	const n, piece = NonTemporalLength + 37, 10000
	x := newArrays(n+1, 3)
	for _, v := range kernels.Available()[1:] {
		restore, err := kernels.Force(v)
		require.NoError(t, err)
		for name, f := range table {
			for from := range 2 { // aligned and not
				got, want := make([]float32, n+1)[from:], make([]float32, n+1)[from:]
				f(got, x.a[from:], x.c[from:])
				for i := 0; i < len(want); i += piece {
					j := min(i+piece, len(want))
					f(want[i:j], x.a[from+i:from+j], x.c[from+i:from+j])
				}
				require.True(t, slices.Equal(want, got), "%s under %s from %d", name, v, from)
			}
		}
		restore()
	}
}

func sigmoid64(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// pointwise are the definitions of the fused kernels that work on single elements: b from a and c.
var pointwise = map[string]func(a, c float64) float64{
	"ExpScaled":      func(a, _ float64) float64 { return 0.3 * math.Exp(a-0.5) },
	"ExpSum":         func(a, _ float64) float64 { return math.Exp(a - 3) },
	"LogSoftmaxGrad": func(a, c float64) float64 { return c - 0.4*math.Exp(a) },
	"Sigmoid":        func(a, _ float64) float64 { return sigmoid64(a) },
	"SiLU":           func(a, _ float64) float64 { return a * sigmoid64(a) },
	"SiLUGrad":       func(a, c float64) float64 { s := sigmoid64(a); return c * s * (1 + a*(1-s)) },
	"SwiGLU":         func(a, c float64) float64 { return a * sigmoid64(a) * c },
	"SwiGLUGrad":     func(a, c float64) float64 { s := sigmoid64(a); return c * c * s * (1 + a*(1-s)) },
	"GELUTanh":       func(a, _ float64) float64 { return a * sigmoid64(a*(geluA+geluB*a*a)) },
	"GELUTanhGrad": func(a, c float64) float64 {
		s := sigmoid64(a * (geluA + geluB*a*a))
		return c * (s + a*s*(1-s)*(geluA+3*geluB*a*a))
	},
	"GELU": func(a, _ float64) float64 { return a * math.Erfc(-a/math.Sqrt2) / 2 },
	"GELUGrad": func(a, c float64) float64 {
		return c * (math.Erfc(-a/math.Sqrt2)/2 + a*math.Exp(-a*a/2)/math.Sqrt(2*math.Pi))
	},
}

// TestFusedKernels compares with float64 over a wide range, and with the kernel's own results for single elements.
func TestFusedKernels(t *testing.T) {
	n := 4000 + 7
	if testing.Short() {
		n = 200 + 7
	}
	for name, f := range fused {
		want, elementwise := pointwise[name]
		kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
			x := newArrays(n, 5)
			for i := range x.a {
				x.a[i] *= 5 // -15 … 15
			}
			a, c := append([]float32(nil), x.a...), append([]float32(nil), x.c...)
			f(x)
			var sum float64
			for i := range a {
				if !elementwise {
					continue
				}
				exact := want(float64(a[i]), float64(c[i]))
				require.InDelta(t, exact, x.b[i], 1.5e-6*max(1, math.Abs(exact)), "%s(%v, %v)", name, a[i], c[i])
				sum += float64(x.b[i])
				one := &arrays{a: a[i : i+1], b: make([]float32, 1), c: c[i : i+1]}
				f(one)
				require.Equal(t, math.Float32bits(one.b[0]), math.Float32bits(x.b[i]),
					"%s: element %d depends on its place", name, i)
			}
			if x.sum != 0 && elementwise {
				require.InEpsilon(t, sum, x.sum, 1e-7, name)
			}
		})
	}
}

func TestSums(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for _, n := range lengths() {
			x := newArrays(n, 3)
			var sum, dot, deviations, exps float64
			most := negInf
			for i, a := range x.a {
				sum += float64(a)
				dot += float64(a) * float64(x.b[i])
				deviations += (float64(a) - 0.25) * (float64(a) - 0.25)
				exps += math.Exp(float64(a) - 1)
				most = max(most, a)
			}
			require.InDelta(t, sum, Sum(x.a), 1e-9)
			require.InDelta(t, dot, Dot(x.a, x.b), 1e-9)
			require.InDelta(t, deviations, Deviations(x.a, 0.25), 1e-9)
			require.InDelta(t, dot, RowDot(x.a, x.b), 1e-6*float64(n))
			require.InDelta(t, exps, SumExp(x.a, 1), 1e-6*exps)
			require.Equal(t, most, Max(x.a))
			var pieces [lanes]float64
			cut := n / 2 / lanes * lanes
			SumLanes(&pieces, x.a[:cut])
			SumLanes(&pieces, x.a[cut:])
			total := accumulators(pieces)
			require.Equal(t, Sum(x.a), total.total(), "a sum in pieces")
		}
		sums, rows := []float64{1, 2}, []float32{1, 2, 9, 3, 4, 9, 5, 6, 9, 7, 8, 9, 9, 10}
		AddWideRows(sums, rows, 5, 3)
		require.Equal(t, []float64{1 + 25, 2 + 30}, sums)
		sums, rows = make([]float64, 35), make([]float32, 4*35)
		for i := range rows {
			rows[i] = float32(i)
		}
		AddWideRows(sums, rows, 4, 35)
		for i, sum := range sums {
			require.Equal(t, float64(4*i+35*(1+2+3)), sum)
		}
		nan := float32(math.NaN())
		require.Equal(t, float32(2), Max([]float32{nan, 2, nan}))
		require.Equal(t, negInf, Max([]float32{nan}))
		require.Equal(t, negInf, Max(nil))
	})
}

// TestNormSumsAddWhatTheParametersGet holds that the one pass has the bits of the passes that it replaces.
func TestNormSumsAddWhatTheParametersGet(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for _, withBias := range []bool{false, true} {
			x, y := newArrays(101, 9), newArrays(101, 9)
			if !withBias {
				x.f, y.f = nil, nil
			}
			x.sum, x.inner = NormSums(x.e, x.f, x.b, x.c, x.d, 0.1, 1.3)
			y.sum, y.inner = NormSums(nil, nil, y.b, y.c, y.d, 0.1, 1.3)
			NormParamGrad(y.e, y.f, y.b, y.c, 0.1, 1.3)
			require.Equal(t, y, x)
		}
	})
}

// TestMeanAndVariance: rows that a single pass in float32 would lose are computed in float64.
func TestMeanAndVariance(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	row := func(n int, f func(i int) float64) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(f(i))
		}
		return x
	}
	rows := map[string][]float32{
		"normal":         row(1031, func(int) float64 { return r.NormFloat64() }),
		"one element":    row(1, func(int) float64 { return 3 }),
		"constant":       row(300, func(int) float64 { return 3 }),
		"far from 0":     row(1031, func(int) float64 { return 1000 + r.NormFloat64() }),
		"outlier first":  row(1031, func(i int) float64 { return r.NormFloat64() + float64(1e4*max(0, 1-i)) }),
		"large":          row(100, func(int) float64 { return 1e25 * r.NormFloat64() }),
		"small":          row(100, func(int) float64 { return 1e-25 * r.NormFloat64() }),
		"large and even": row(100, func(i int) float64 { return 1e38 * float64(i%2) }),
	}
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for name, x := range rows {
			var mean, variance, squares float64
			for _, v := range x {
				mean += float64(v) / float64(len(x))
				squares += float64(v) * float64(v)
			}
			for _, v := range x {
				variance += (float64(v) - mean) * (float64(v) - mean) / float64(len(x))
			}
			m, v := MeanAndVariance(x)
			require.InDelta(t, mean, m, 1e-7*math.Sqrt(variance)+1e-13*math.Abs(mean), name)
			require.InDelta(t, variance, v, 3e-7*variance+1e-24, name)
			require.InDelta(t, squares, RowSquares(x), 3e-7*squares, name)
		}
	})
}

// TestAdamStepIsItsPasses holds that the one pass has the bits of the passes that it replaces.
func TestAdamStepIsItsPasses(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		x, y := newArrays(101, 9), newArrays(101, 9)
		a := NewAdam(0.9, 0.999, 1e-8, 0.3, 0.01)
		a.Step(x.b, x.c, x.d, x.a, 0.7, 0.999, -0.01)
		Affine(y.a, y.a, 0.7, 0)
		a.Moments(y.c, y.d, y.e, y.a)
		Affine(y.b, y.b, 0.999, 0)
		Axpby(y.b, 1, y.b, -0.01, y.e)
		require.Equal(t, y.b, x.b)
		require.Equal(t, y.c, x.c)
		require.Equal(t, y.d, x.d)
	})
}

// TestExtremeActivations: what is far out has the limits of the function, not a NaN.
func TestExtremeActivations(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for _, big := range []float32{20, 100, 1e10, 1e30, math.MaxFloat32} {
			for name, f := range map[string]func(dst, x []float32){"SiLU": SiLU, "GELU": GELU, "GELUTanh": GELUTanh} {
				x := []float32{big, -big}
				f(x, x)
				require.Equal(t, big, x[0], "%s(%v)", name, big)
				require.InDelta(t, 0, x[1], 5e-8, "%s(%v)", name, -big)
			}
			for name, f := range map[string]func(dst, x, dy []float32){"SiLUGrad": SiLUGrad, "GELUGrad": GELUGrad,
				"GELUTanhGrad": GELUTanhGrad} {
				x := []float32{big, -big}
				f(x, x, []float32{1, 1})
				require.InDelta(t, 1, x[0], 1e-7, "%s(%v)", name, big)
				require.InDelta(t, 0, x[1], 5e-8, "%s(%v)", name, -big)
			}
		}
	})
}

// TestGELUTanhBoth: both results are those of the single functions, in bits except for the slope far out on the left.
func TestGELUTanhBoth(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for _, n := range lengths() {
			x := make([]float32, n)
			for i := range x {
				x[i] = float32(i%401)/20 - 10 // -10 … 10
			}
			for i, v := range []float32{0, 1e10, 1e30, math.MaxFloat32, float32(math.Inf(1)), float32(math.NaN()), -100,
				-1e30, -math.MaxFloat32} {
				if i < n {
					x[i] = v
				}
			}
			y, dx, dy, wantY, want := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n),
				make([]float32, n)
			for i := range dy {
				dy[i] = float32(i%7) - 3
			}
			GELUTanh(wantY, x)
			GELUTanhGrad(want, x, dy)
			GELUTanhBoth(y, dx, x, dy)
			for i, v := range x {
				require.Equal(t, math.Float32bits(wantY[i]), math.Float32bits(y[i]), "GELU at %v", v)
				if v < -geluFlat {
					require.InDelta(t, want[i], dx[i], 1e-28, "slope at %v", v)
					continue
				}
				require.Equal(t, math.Float32bits(want[i]), math.Float32bits(dx[i]), "slope at %v", v)
			}
		}
	})
}

// TestGELUKeepsItsTail: relative to the result, or the terms of a sum that may cancel, errors grow only as x², which
// the exponential's argument loses; and at 0 they stay as small.
func TestGELUKeepsItsTail(t *testing.T) {
	tail := func(x float64) float64 { return math.Erfc(math.Abs(x)/math.Sqrt2) / 2 }
	density := func(x float64) float64 { return math.Exp(-x*x/2) / math.Sqrt(2*math.Pi) }
	var xs []float32
	for i := range 20001 {
		xs = append(xs, (float32(i)-10000.5)/800) // -12.5 … 12.5
	}
	for e := float32(1); e > 1e-37; e /= 7 {
		xs = append(xs, e, -e)
	}
	ones, got := make([]float32, len(xs)), make([]float32, len(xs))
	for i := range ones {
		ones[i] = 1
	}
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		check := func(name string, want, scale func(x float64) float64) {
			worst := 0.0
			for i, v := range xs {
				x := float64(v)
				wrong := math.Abs(float64(got[i])-want(x)) / scale(x) / (1 + x*x/4)
				require.LessOrEqual(t, wrong, 6e-7, "%s(%v) = %v: want %v", name, v, got[i], want(x))
				worst = max(worst, wrong)
			}
			t.Logf("%s: %.2g", name, worst)
		}
		GELU(got, xs)
		gelu := func(x float64) float64 { return pointwise["GELU"](x, 1) }
		check("GELU", gelu, func(x float64) float64 { return math.Abs(gelu(x)) })
		GELUGrad(got, xs, ones)
		check("GELUGrad", func(x float64) float64 { return pointwise["GELUGrad"](x, 1) }, func(x float64) float64 {
			if x > 0 {
				return 1
			}
			return tail(x) - x*density(x)
		})
	})
}

func TestGELUOfSpecialValues(t *testing.T) {
	inf, nan, negZero := float32(math.Inf(1)), float32(math.NaN()), float32(math.Copysign(0, -1))
	cases := []struct{ x, y, slope float32 }{
		{0, 0, 0.5}, {negZero, negZero, 0.5}, {inf, inf, nan}, {-inf, nan, nan}, {nan, nan, nan}, {-nan, nan, nan},
		{1e-42, 5e-43, 0.5}, {-1e-42, -5e-43, 0.5},
		{30, 30, 1}, {-30, negZero, 0}, {math.MaxFloat32, math.MaxFloat32, 1},
	}
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for _, c := range cases {
			for _, n := range []int{1, 19, 70} { // alone, and among others in all places of a turn
				for at := 0; at < n; at += 3 {
					x, y, slope, ones := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
					for i := range x {
						x[i], ones[i] = 1, 1
					}
					x[at] = c.x
					GELU(y, x)
					GELUGrad(slope, x, ones)
					require.True(t, y[at] == c.y && math.Signbit(float64(y[at])) == math.Signbit(float64(c.y)) ||
						y[at] != y[at] && c.y != c.y, "GELU(%v) = %v", c.x, y[at])
					require.True(t, slope[at] == c.slope || slope[at] != slope[at] && c.slope != c.slope ||
						c.x == inf && slope[at] == 1, "GELU'(%v) = %v", c.x, slope[at])
				}
			}
		}
	})
}

func TestKernelsMakeNoGarbage(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		x := newArrays(100, 1)
		for _, table := range []map[string]func(x *arrays){exact, fused} {
			for name, f := range table {
				require.Zero(t, testing.AllocsPerRun(3, func() { f(x) }), name)
			}
		}
	})
}

func BenchmarkKernels(b *testing.B) {
	for _, table := range []map[string]func(x *arrays){exact, fused} {
		for name, f := range table {
			for _, v := range kernels.Available() {
				b.Run(fmt.Sprint(name, "/", v), func(b *testing.B) {
					restore, err := kernels.Force(v)
					require.NoError(b, err)
					defer restore()
					x := newArrays(4096, 1)
					b.SetBytes(4 * 4096)
					for b.Loop() {
						f(x)
					}
				})
			}
		}
	}
}
