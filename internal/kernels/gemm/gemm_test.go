// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
	"github.com/lockstep-ml/lockstep/internal/parallel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// guard is what surrounds C in a test: a kernel that writes outside of its matrix changes it.
const guard = -12345.5

// function is Float32 or Float64.
type function[T element] func(p *parallel.Pool, m, n, k int, a, b Matrix[T], c Rows[T], accumulate bool)

// example is one product with its operands.
type example[T element] struct {
	m, n, k            int
	a, b, c            []T
	ars, acs, brs, bcs int
	ldc                int
	accumulate         bool
}

func (x *example[T]) String() string {
	return fmt.Sprintf("m=%d n=%d k=%d A strides %d,%d B strides %d,%d ldc=%d accumulate=%v", x.m, x.n, x.k, x.ars,
		x.acs, x.brs, x.bcs, x.ldc, x.accumulate)
}

// run returns C after the product, checking that nothing around C has changed.
func (x *example[T]) run(t require.TestingT, f function[T], p *parallel.Pool) []T {
	const margin = 64
	buffer := make([]T, margin+len(x.c)+margin)
	for i := range buffer {
		buffer[i] = guard
	}
	copy(buffer[margin:], x.c)
	c := buffer[margin : margin+len(x.c)]
	f(p, x.m, x.n, x.k, Strided(x.a, x.ars, x.acs), Strided(x.b, x.brs, x.bcs), InRows(c, x.ldc), x.accumulate)
	for i, v := range buffer {
		at := i - margin
		inside := at >= 0 && at < len(x.c) && at%x.ldc < x.n
		if !inside && v != guard {
			require.FailNowf(t, "outside of C was written", "offset %d, %s", at, x)
		}
	}
	return c
}

// oracle holds a result in float64, and for each element the sum of absolute products, which bounds its rounding error.
type oracle struct{ want, magnitude []float64 }

// oracle multiplies in the plainest way.
func (x *example[T]) oracle() oracle {
	want, magnitude := make([]float64, len(x.c)), make([]float64, len(x.c))
	for i := range x.m {
		for j := range x.n {
			var sum, abs float64
			if x.accumulate {
				sum = float64(x.c[i*x.ldc+j])
				abs = math.Abs(sum)
			}
			for p := range x.k {
				v := float64(x.a[i*x.ars+p*x.acs]) * float64(x.b[p*x.brs+j*x.bcs])
				sum += v
				abs += math.Abs(v)
			}
			want[i*x.ldc+j], magnitude[i*x.ldc+j] = sum, abs
		}
	}
	return oracle{want, magnitude}
}

// epsilon returns the unit of rounding of T.
func epsilon[T element]() float64 {
	if T(1)+T(1e-10) == 1 {
		return 0x1p-24
	}
	return 0x1p-53
}

// requireClose compares with the float64 product: |error| ≤ (k+2)·ε·Σ|a·b|, Higham's bound for a sum in any order.
func (x *example[T]) requireClose(t require.TestingT, o oracle, got []T) {
	x.requireWithin(t, o, got, x.k+2)
}

// requireWithin is requireClose with so many ε.
func (x *example[T]) requireWithin(t require.TestingT, o oracle, got []T, units int) {
	for i := range x.m {
		for j := range x.n {
			at := i*x.ldc + j
			bound := float64(units) * epsilon[T]() * o.magnitude[at] * 1.01
			if diff := math.Abs(float64(got[at]) - o.want[at]); !(diff <= bound) {
				require.FailNowf(t, "wrong element", "(%d,%d): got %v, want %v, bound %v; %s", i, j, got[at],
					o.want[at], bound, x)
			}
		}
	}
}

// newExample fills operands of the given shape; the strides are those of stored matrices with pad unused elements per
// row, transposed if asked.
func newExample[T element](seed uint64, m, n, k int, transA, transB bool, pad int, accumulate bool) *example[T] {
	rng := rand.New(rand.NewPCG(seed, 1))
	fill := func(n int) []T {
		s := make([]T, n)
		for i := range s {
			s[i] = T(rng.NormFloat64())
		}
		return s
	}
	x := &example[T]{m: m, n: n, k: k, accumulate: accumulate, ldc: n + pad}
	x.ars, x.acs = k+pad, 1
	if transA {
		x.ars, x.acs = 1, m+pad
	}
	x.brs, x.bcs = n+pad, 1
	if transB {
		x.brs, x.bcs = 1, k+pad
	}
	extent := func(rows, cols, rs, cs int) int {
		if rows == 0 || cols == 0 {
			return 0
		}
		return (rows-1)*rs + (cols-1)*cs + 1
	}
	x.a, x.b, x.c = fill(extent(m, k, x.ars, x.acs)), fill(extent(k, n, x.brs, x.bcs)), fill(extent(m, n, x.ldc, 1))
	for i := range x.c {
		if i%x.ldc >= n {
			x.c[i] = guard
		}
	}
	return x
}

// requireSameBits compares exactly, NaNs included.
func requireSameBits[T element](t require.TestingT, want, got []T, what string) {
	require.Len(t, got, len(want))
	for i := range want {
		if math.Float64bits(float64(want[i])) != math.Float64bits(float64(got[i])) {
			require.FailNowf(t, "bits differ", "element %d: %v and %v; %s", i, want[i], got[i], what)
		}
	}
}

// drawExample draws a shape that favours the kernels' edges, and any strides, the repeating stride 0 among them.
func drawExample[T element](t *rapid.T) *example[T] {
	size := func(name string) int {
		return rapid.OneOf(rapid.IntRange(0, 9), rapid.IntRange(10, 70),
			rapid.SampledFrom([]int{12, 24, 32, 64, 96, 97, 128, 130})).Draw(t, name)
	}
	m, n := size("m"), size("n")
	k := rapid.OneOf(rapid.IntRange(0, 40), rapid.SampledFrom([]int{255, 256, 257, 300, 512, 530})).Draw(t, "k")
	x := newExample[T](rapid.Uint64().Draw(t, "seed"), m, n, k, rapid.Bool().Draw(t, "transA"),
		rapid.Bool().Draw(t, "transB"),
		rapid.IntRange(0, 5).Draw(t, "pad"), rapid.Bool().Draw(t, "accumulate"))
	switch rapid.IntRange(0, 5).Draw(t, "special") {
	case 0: // neither stride is 1
		if m > 0 && n > 0 && k > 0 {
			y := newExample[T](1, 3*m, 3*n, 2*k, false, false, 0, x.accumulate)
			x.a, x.ars, x.acs = y.a, 3*y.ars, 2
			x.b, x.brs, x.bcs = y.b, 2*y.brs, 3
		}
	case 1: // a repeated row of A, a repeated column of B
		x.ars, x.bcs = 0, 0
		x.acs, x.brs = 1, 1
		x.a, x.b = append(x.a, make([]T, k)...), append(x.b, make([]T, k)...)
	}
	return x
}

func TestAgainstFloat64(t *testing.T) {
	pool := parallel.New(2)
	defer pool.Close()
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		rapid.Check(t, func(t *rapid.T) {
			x := drawExample[float32](t)
			x.requireClose(t, x.oracle(), x.run(t, Float32, pool))
		})
		rapid.Check(t, func(t *rapid.T) {
			x := drawExample[float64](t)
			x.requireClose(t, x.oracle(), x.run(t, Float64, pool))
		})
	})
}

// TestEveryTileShape goes through all sizes around the kernels' tiles, where each has its own code.
func TestEveryTileShape(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		requireEveryTileShape(t, Float32)
		requireEveryTileShape(t, Float64)
	})
}

func requireEveryTileShape[T element](t *testing.T, f function[T]) {
	for m := 1; m <= 26; m++ {
		for _, n := range []int{1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 48, 49, 64, 65} {
			for _, k := range []int{1, 2, 3, 4, 5, 8, 9, 31} {
				x := newExample[T](uint64(m*n*k), m, n, k, (m+n)%2 == 0, (n+k)%2 == 0, m%3, k%2 == 0)
				x.requireClose(t, x.oracle(), x.run(t, f, nil))
			}
		}
	}
}

// TestLargeShapes crosses the blocks of every level.
func TestLargeShapes(t *testing.T) {
	pool := parallel.New(2)
	defer pool.Close()
	for i, s := range [][3]int{{1100, 20, 300}, {20, 1100, 300}, {13, 50, 2100}, {13, 50, 2100}, {300, 1, 2100},
		{1, 1500, 700},
		{1, 1500, 700}, {1060, 13, 1030}, {13, 1060, 1030}, {1060, 1030, 3}, {100, 30, 1030}} {
		transB := i%2 == 0
		x := newExample[float32](7, s[0], s[1], s[2], !transB, transB, 1, transB)
		y := newExample[float64](7, s[0], s[1], s[2], !transB, transB, 1, transB)
		t.Run(x.String(), func(t *testing.T) {
			o, o64 := x.oracle(), y.oracle()
			kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
				x.requireClose(t, o, x.run(t, Float32, pool))
				y.requireClose(t, o64, y.run(t, Float64, pool))
			})
		})
	}
}

func TestSameBitsForAnyNumberOfWorkers(t *testing.T) {
	shapes := [][3]int{{130, 200, 600}, {1, 900, 700}, {5, 900, 700}, {700, 3, 500}, {300, 70, 100}, {64, 64, 64},
		{1200, 500, 1}}
	var pools []*parallel.Pool
	for _, workers := range []int{1, 2, 3, 8} {
		p := parallel.New(workers)
		defer p.Close()
		pools = append(pools, p)
	}
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for _, s := range shapes {
			x := newExample[float32](3, s[0], s[1], s[2], false, true, 0, true)
			y := newExample[float64](3, s[0], s[1], s[2], true, false, 0, false)
			want32, want64 := x.run(t, Float32, nil), y.run(t, Float64, nil)
			for _, p := range pools {
				requireSameBits(t, want32, x.run(t, Float32, p), x.String())
				requireSameBits(t, want64, y.run(t, Float64, p), y.String())
			}
		}
	})
}

// TestElementsDependOnTheirOperandsAlone is the promise of the package doc: a row computed alone, in a batch, or as a
// column of the transposed product has the same bits. A product made of tiles has those of others that are.
func TestElementsDependOnTheirOperandsAlone(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		rapid.Check(t, func(t *rapid.T) {
			requireElementsDependOnTheirOperandsAlone(t, Float32, engine32().tiles.take)
		})
		rapid.Check(t, func(t *rapid.T) {
			requireElementsDependOnTheirOperandsAlone(t, Float64, engine64().tiles.take)
		})
	})
}

func requireElementsDependOnTheirOperandsAlone[T element](t *rapid.T, f function[T], tiles func(m, n, k int) bool) {
	x := drawExample[T](t)
	if x.m == 0 || x.n == 0 {
		return
	}
	whole := x.run(t, f, nil)
	i, j := rapid.IntRange(0, x.m-1).Draw(t, "row"), rapid.IntRange(0, x.n-1).Draw(t, "col")
	rows, cols := rapid.IntRange(1, x.m-i).Draw(t, "rows"), rapid.IntRange(1, x.n-j).Draw(t, "cols")
	part := append([]T(nil), x.c...)
	a, b := x.a, x.b
	if x.k > 0 {
		a, b = x.a[i*x.ars:], x.b[j*x.bcs:]
	}
	f(nil, rows, cols, x.k, Strided(a, x.ars, x.acs), Strided(b, x.brs, x.bcs), InRows(part[i*x.ldc+j:], x.ldc),
		x.accumulate)
	flipped := make([]T, x.m*x.n)
	for r := range x.m {
		for q := range x.n {
			flipped[q*x.m+r] = x.c[r*x.ldc+q]
		}
	}
	f(nil, x.n, x.m, x.k, Strided(x.b, x.bcs, x.brs), Strided(x.a, x.acs, x.ars), InRows(flipped, x.m), x.accumulate)
	tiled := tiles(x.m, x.n, x.k)
	for r := range x.m {
		for q := range x.n {
			at := r*x.ldc + q
			if !tiled {
				requireSameBits(t, whole[at:at+1], flipped[q*x.m+r:q*x.m+r+1],
					fmt.Sprintf("transposed (%d,%d) %s", r, q, x))
			}
			if r >= i && r < i+rows && q >= j && q < j+cols && tiled == tiles(rows, cols, x.k) {
				requireSameBits(t, whole[at:at+1], part[at:at+1], fmt.Sprintf("part (%d,%d) %s", r, q, x))
			}
		}
	}
}

// TestVectorVariantsAgree compares the variants of vector instructions bit by bit.
func TestVectorVariantsAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		requireVectorVariantsAgree(t, drawExample[float32](t), Float32)
		requireVectorVariantsAgree(t, drawExample[float64](t), Float64)
	})
}

func requireVectorVariantsAgree[T element](t *rapid.T, x *example[T], f function[T]) {
	var want []T
	for i, v := range kernels.Available()[1:] {
		if v > kernels.AVX512 {
			break
		}
		restore, err := kernels.Force(v)
		require.NoError(t, err)
		got := x.run(t, f, nil)
		restore()
		if i > 0 {
			requireSameBits(t, want, got, x.String())
		}
		want = got
	}
}

func TestEmpty(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		c := []float32{1, 2, 3, 4, 5, 6}
		Float32(nil, 2, 2, 0, Matrix[float32]{}, Matrix[float32]{}, InRows(c, 3), true)
		require.Equal(t, []float32{1, 2, 3, 4, 5, 6}, c)
		Float32(nil, 2, 2, 0, Matrix[float32]{}, Matrix[float32]{}, InRows(c, 3), false)
		require.Equal(t, []float32{0, 0, 3, 0, 0, 6}, c)
		Float32(nil, 0, 2, 5, Matrix[float32]{}, Strided(make([]float32, 10), 2, 1), Rows[float32]{}, false)
		Float32(nil, 2, 0, 5, Strided(make([]float32, 10), 5, 1), Matrix[float32]{}, Rows[float32]{}, false)
	})
}

// TestNonFinite puts a NaN or an infinity into each place in turn: what it must reach is NaN or infinite, all else is
// untouched by it.
func TestNonFinite(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for _, s := range [][3]int{{3, 5, 4}, {13, 37, 9}, {7, 70, 3}, {20, 3, 5}} {
			m, n, k := s[0], s[1], s[2]
			clean := newExample[float32](1, m, n, k, false, false, 0, false).run(t, Float32, nil)
			for _, bad := range []float32{nan, inf, -inf} {
				for at := range m * k {
					x := newExample[float32](1, m, n, k, false, false, 0, false)
					x.a[at] = bad
					got := x.run(t, Float32, nil)
					for i := range got {
						if reached := i/n == at/k; reached == (got[i]-got[i] == 0) || !reached && got[i] != clean[i] {
							require.Failf(t, "wrong element", "A[%d]=%v: C[%d] is %v, %v without it", at,
								bad, i, got[i], clean[i])
						}
					}
				}
				for at := range k * n {
					x := newExample[float32](1, m, n, k, false, false, 0, false)
					x.b[at] = bad
					got := x.run(t, Float32, nil)
					for i := range got {
						if reached := i%n == at%n; reached == (got[i]-got[i] == 0) || !reached && got[i] != clean[i] {
							require.Failf(t, "wrong element", "B[%d]=%v: C[%d] is %v, %v without it", at,
								bad, i, got[i], clean[i])
						}
					}
				}
			}
		}
		// What C held before must not matter when it is overwritten, and must when it is added to.
		x := newExample[float32](1, 13, 37, 9, false, false, 0, false)
		for i := range x.c {
			x.c[i] = nan
		}
		for _, v := range x.run(t, Float32, nil) {
			require.False(t, v != v)
		}
		x.accumulate = true
		for _, v := range x.run(t, Float32, nil) {
			require.True(t, v != v)
		}
	})
}

func TestMisusePanics(t *testing.T) {
	s := make([]float32, 6)
	call := func(m, n, k int, a []float32, ars int, b []float32, c []float32, ldc int) func() {
		return func() { Float32(nil, m, n, k, Strided(a, ars, 1), Strided(b, n, 1), InRows(c, ldc), false) }
	}
	require.PanicsWithValue(t, "gemm: sizes m=-1 n=2 k=3: want none negative", call(-1, 2, 3, s, 3, s, s, 2))
	require.PanicsWithValue(t, "gemm: row stride of C is 1: want at least n=2", call(2, 2, 3, s, 3, s, s, 1))
	require.PanicsWithValue(t, "gemm: strides of A are -3 and 1: want none negative", call(2, 2, 3, s, -3, s, s, 2))
	require.PanicsWithValue(t, "gemm: A has 5 elements: want at least 6 for 2×3 with strides 3 and 1",
		call(2, 2, 3, s[:5], 3, s, s, 2))
	require.PanicsWithValue(t, "gemm: B has 5 elements: want at least 6 for 3×2 with strides 2 and 1",
		call(2, 2, 3, s, 3, s[:5], s, 2))
	require.PanicsWithValue(t, "gemm: C has 3 elements: want at least 4 for 2×2 with strides 2 and 1",
		call(2, 2, 3, s, 3, s, s[:3], 2))
}

func TestNoGarbagePerCall(t *testing.T) {
	pool := parallel.New(2)
	defer pool.Close()
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for _, s := range [][3]int{{100, 130, 300}, {3, 500, 500}, {500, 3, 500}, {800, 900, 1}} {
			x := newExample[float32](1, s[0], s[1], s[2], false, true, 0, false)
			require.Zero(t, testing.AllocsPerRun(5, func() {
				Float32(pool, x.m, x.n, x.k, Strided(x.a, x.ars, x.acs), Strided(x.b, x.brs, x.bcs), InRows(x.c, x.ldc),
					false)
			}))
			y := newExample[float64](1, s[0], s[1], s[2], false, true, 0, false)
			require.Zero(t, testing.AllocsPerRun(5, func() {
				Float64(pool, y.m, y.n, y.k, Strided(y.a, y.ars, y.acs), Strided(y.b, y.brs, y.bcs), InRows(y.c, y.ldc),
					false)
			}))
		}
	})
}

func BenchmarkFloat32(b *testing.B) {
	for _, s := range [][3]int{{64, 64, 64}, {128, 64, 128}, {256, 256, 256}, {1024, 1024, 1024}, {1, 1024, 1024},
		{8, 1024, 1024}, {1024, 8, 1024}} {
		for _, trans := range []bool{false, true} {
			name := fmt.Sprintf("%dx%dx%d/%s", s[0], s[1], s[2], map[bool]string{false: "NN", true: "NT"}[trans])
			b.Run(name, func(b *testing.B) {
				x := newExample[float32](1, s[0], s[1], s[2], false, trans, 0, false)
				for b.Loop() {
					Float32(nil, x.m, x.n, x.k, Strided(x.a, x.ars, x.acs), Strided(x.b, x.brs, x.bcs),
						InRows(x.c, x.ldc), false)
				}
				flops := 2 * float64(x.m) * float64(x.n) * float64(x.k)
				b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}
