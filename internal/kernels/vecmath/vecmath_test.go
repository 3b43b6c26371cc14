// SPDX-License-Identifier: Apache-2.0

package vecmath

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
)

// function is one of the package's functions with its float64 oracle.
type function struct {
	name   string
	run    func(dst, src []float32)
	oracle func(float64) float64
	bound  float64 // units in the last place
}

var functions = []function{
	{"Exp", func(dst, src []float32) { Exp(dst, src, 0) }, math.Exp, 2},
	{"Tanh", Tanh, math.Tanh, 3},
}

// each runs a test for each function under each variant.
func each(t *testing.T, test func(t *testing.T, f function)) {
	for _, f := range functions {
		t.Run(f.name, func(t *testing.T) {
			kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) { test(t, f) })
		})
	}
}

// ulps returns the distance of got from the exact result in units of the float32 below it; the unit of subnormal
// results is 2^-149.
func ulps(got float32, exact float64) float64 {
	_, exponent := math.Frexp(exact)
	return math.Abs(float64(got)-exact) / math.Ldexp(1, max(exponent-24, -149))
}

// TestAccuracy samples all float32 numbers evenly by their bits, and the range where results are neither 0 nor infinite
// more closely.
func TestAccuracy(t *testing.T) {
	var src []float32
	for pattern := uint64(0); pattern < 1<<32; pattern += 50_021 {
		if x := math.Float32frombits(uint32(pattern)); x-x == 0 {
			src = append(src, x)
		}
	}
	for i := range 200_000 {
		src = append(src, -104+193*float32(i)/200_000)
	}
	each(t, func(t *testing.T, f function) {
		dst := make([]float32, len(src))
		f.run(dst, src)
		worst, at := 0.0, float32(0)
		for i, x := range src {
			exact := f.oracle(float64(x))
			if float32(exact) == dst[i] {
				continue
			}
			if u := ulps(dst[i], exact); !(u <= worst) {
				worst, at = u, x
			}
		}
		require.LessOrEqual(t, worst, f.bound, "at x = %v", at)
		t.Logf("largest error %.3f ulp at %v", worst, at)
	})
}

func TestSpecialValues(t *testing.T) {
	inf, nan, negZero := float32(math.Inf(1)), float32(math.NaN()), float32(math.Copysign(0, -1))
	cases := map[string][][2]float32{
		"Exp": {{0, 1}, {negZero, 1}, {inf, inf}, {-inf, 0}, {88.8, inf}, {1e30, inf}, {-105, 0}, {-1e30, 0},
			{nan, nan}, {-103.2, math.SmallestNonzeroFloat32}},
		"Tanh": {{0, 0}, {negZero, negZero}, {inf, 1}, {-inf, -1}, {50, 1}, {-50, -1}, {1e30, 1}, {nan, nan},
			{math.SmallestNonzeroFloat32, math.SmallestNonzeroFloat32}},
	}
	each(t, func(t *testing.T, f function) {
		for _, c := range cases[f.name] {
			src := make([]float32, 19) // one place in a whole vector, one in the rest
			src[3], src[18] = c[0], c[0]
			dst := make([]float32, len(src))
			f.run(dst, src)
			for _, at := range []int{3, 18} {
				if c[1] != c[1] {
					require.True(t, dst[at] != dst[at], "%s(%v) = %v: want NaN", f.name, c[0], dst[at])
					continue
				}
				require.Equal(t, math.Float32bits(c[1]), math.Float32bits(dst[at]), "%s(%v) = %v: want %v", f.name,
					c[0], dst[at], c[1])
			}
			require.Equal(t, dst[0], dst[17], "neighbours are not disturbed")
		}
	})
}

// TestPlaceDoesNotMatter compares slices with single elements, in place and not, and watches the memory around dst.
func TestPlaceDoesNotMatter(t *testing.T) {
	each(t, func(t *testing.T, f function) {
		rapid.Check(t, func(t *rapid.T) {
			src := rapid.SliceOfN(rapid.Float32Range(-20, 20), 0, 70).Draw(t, "src")
			buffer := make([]float32, len(src)+40)
			for i := range buffer {
				buffer[i] = 777
			}
			f.run(buffer[20:20+len(src)], src)
			inPlace := append([]float32(nil), src...)
			f.run(inPlace, inPlace)
			for i, v := range buffer {
				at := i - 20
				if at < 0 || at >= len(src) {
					require.Equal(t, float32(777), v, "outside of dst was written")
					continue
				}
				single := []float32{src[at]}
				f.run(single, single)
				require.Equal(t, math.Float32bits(single[0]), math.Float32bits(v))
				require.Equal(t, math.Float32bits(single[0]), math.Float32bits(inPlace[at]))
			}
		})
	})
}

func TestShift(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		rapid.Check(t, func(t *rapid.T) {
			src := rapid.SliceOfN(rapid.Float32Range(-50, 50), 0, 40).Draw(t, "src")
			shift := rapid.Float32Range(-30, 30).Draw(t, "shift")
			got, want := make([]float32, len(src)), make([]float32, len(src))
			Exp(got, src, shift)
			for i := range src {
				want[i] = src[i] - shift
			}
			Exp(want, want, 0)
			require.Equal(t, want, got)
		})
	})
}

// TestVectorVariantsAgree compares the assembly variants bit by bit, over more than one stretch.
func TestVectorVariantsAgree(t *testing.T) {
	src := make([]float32, 20_011)
	for i := range src {
		src[i] = (float32(i) - 10_000) / 90
	}
	for _, f := range functions {
		var want []float32
		for i, v := range kernels.Available()[1:] {
			restore, err := kernels.Force(v)
			require.NoError(t, err)
			got := make([]float32, len(src))
			f.run(got, src)
			restore()
			if i > 0 {
				require.Equal(t, want, got, f.name)
			}
			want = got
		}
	}
}

func TestMisuseAndGarbage(t *testing.T) {
	require.PanicsWithValue(t, "vecmath: operands have 2 and 3 elements: want equally many", func() {
		Exp(make([]float32, 2), make([]float32, 3), 0)
	})
	require.PanicsWithValue(t, "vecmath: operands have 4 and 3 elements: want equally many", func() {
		Tanh(make([]float32, 4), make([]float32, 3))
	})
	x := make([]float32, 100)
	each(t, func(t *testing.T, f function) {
		require.Zero(t, testing.AllocsPerRun(10, func() { f.run(x, x) }))
	})
}

func BenchmarkFunctions(b *testing.B) {
	src, dst := make([]float32, 4096), make([]float32, 4096)
	for i := range src {
		src[i] = float32(i%200)/20 - 5
	}
	for _, f := range functions {
		for _, v := range kernels.Available() {
			b.Run(f.name+"/"+v.String(), func(b *testing.B) {
				restore, err := kernels.Force(v)
				require.NoError(b, err)
				defer restore()
				b.SetBytes(int64(4 * len(src)))
				for b.Loop() {
					f.run(dst, src)
				}
			})
		}
	}
}
