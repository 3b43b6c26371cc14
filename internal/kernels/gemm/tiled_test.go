// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/pprof"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// flushed is x, or zero where a matrix unit takes it for that.
func flushed(x float32) float32 {
	if math.Abs(float64(x)) < 0x1p-126 {
		return float32(math.Copysign(0, float64(x)))
	}
	return x
}

// piecesOf are the three bfloat16 that x is the sum of, in the upper halves.
func piecesOf(x float32) (pieces [3]uint32) {
	for i := range 2 {
		pieces[i] = (math.Float32bits(x) + 0x8000) & 0xffff0000
		x = flushed(flushed(x) - flushed(math.Float32frombits(pieces[i])))
	}
	pieces[2] = math.Float32bits(x) & 0xffff0000
	return pieces
}

// splitGeneric splits 16 lanes of 32·steps products to dst[n·pieceSize + at(lane, pair)], in the next step pitch
// further.
func splitGeneric[S any](split func(S) []uint32, steps int, src []S, laneStride, kStride int, dst []float32,
	at func(lane, pair int) int, pitch int) (bad uint32) {
	for step := range steps {
		for lane := range tileLanes {
			for pair := range tileStep / 2 {
				p := step*tileStep + pair
				low, high := split(src[lane*laneStride+p*kStride]), split(src[lane*laneStride+(p+tileStep/2)*kStride])
				for n := range low {
					dst[step*pitch+n*pieceSize+at(lane, pair)] = math.Float32frombits(high[n] | low[n]>>16)
				}
				for _, last := range []uint32{low[len(low)-1], high[len(high)-1]} {
					if last&0x7f800000 == 0x7f800000 {
						bad = 1
					}
				}
			}
		}
	}
	return bad
}

// genericPieces are the kernels for tiles in portable Go, and the oracle of others.
func genericPieces[S any](split func(S) []uint32, passes [][2]int) pieces[float32, S] {
	count := len(split(*new(S)))
	stepSize := count * pieceSize
	return pieces[float32, S]{
		count: count, columns: 64, products: kc,
		micro: func(rows, steps int, a, b, c *float32, cstride int, d *float32, dstride, cols int, _ *float32) {
			panelA, panelsB := unsafe.Slice((*uint32)(unsafe.Pointer(a)), steps*stepSize),
				unsafe.Slice((*uint32)(unsafe.Pointer(b)), ceilDiv(cols, tileSide)*steps*stepSize)
			to := unsafe.Slice(c, (rows-1)*cstride+cols)
			part := func(word uint32, high int) float32 {
				if high == 0 {
					word <<= 16
				}
				return flushed(math.Float32frombits(word & 0xffff0000))
			}
			for at := range rows * cols {
				block, i, j := at%cols/tileSide, at/cols, at%cols%tileSide
				sum := float32(0)
				for step := range steps {
					x := panelA[step*stepSize+i/tileLanes*tileSize+i%tileLanes*16:]
					y := panelsB[(block*steps+step)*stepSize+j/tileLanes*tileSize+j%tileLanes:]
					for _, pass := range passes {
						var parts [2]float32
						for pair := range tileStep / 2 {
							for high := range parts { // products of two bfloat16 are exact
								product := float32(part(x[pass[0]*pieceSize+pair], high) *
									part(y[pass[1]*pieceSize+pair*16], high))
								parts[high] = flushed(parts[high] + product)
							}
						}
						sum = flushed(sum + flushed(parts[0]+parts[1]))
					}
				}
				if d != nil {
					sum += unsafe.Slice(d, (rows-1)*dstride+cols)[i*dstride+at%cols]
				}
				to[i*cstride+at%cols] = sum
			}
		},
		rows: func(steps int, src *S, stride int, dst *float32, pitch int) uint32 {
			return splitGeneric(split, steps, unsafe.Slice(src, 15*stride+steps*tileStep), stride, 1,
				unsafe.Slice(dst, (steps-1)*pitch+stepSize-tileSize),
				func(lane, pair int) int { return lane*16 + pair }, pitch)
		},
		lanes: func(steps, panels int, src *S, stride int, dst *float32, pitch int) (bad uint32) {
			all := unsafe.Slice(src, (steps*tileStep-1)*stride+panels*tileSide)
			to := unsafe.Slice(dst, (panels-1)*pitch+steps*stepSize)
			for half := range 2 * panels {
				bad |= splitGeneric(split, steps, all[half*tileLanes:], 1, stride, to[half/2*pitch+half%2*tileSize:],
					func(lane, pair int) int { return pair*16 + lane }, stepSize)
			}
			return bad
		},
		pack: packGeneric[S],
	}
}

// genericTiles does in portable Go what a matrix unit does. It takes products of any shape.
var genericTiles = tiles[float32]{
	rows: 1 - tileSide, cols: 1 - tileSide, products: 1,
	floats: genericPieces(func(x float32) []uint32 {
		p := piecesOf(x)
		return p[:]
	}, [][2]int{{2, 0}, {0, 0}, {0, 2}, {0, 1}, {1, 1}, {1, 0}}),
	bfloat16s: genericPieces(func(x uint16) []uint32 { return []uint32{uint32(x) << 16} }, [][2]int{{0, 0}}),
}

// withTiles is the portable engine with such tiles: with kernels for as many columns as a tile has.
func withTiles(t tiles[float32]) *engine[float32] {
	e := generic32
	e.nr, e.nb, e.tiles = tileSide, tileSide, t
	e.micro = func(rows, k int, a, b *float32, bstride int, c *float32, cstride int, d *float32, dstride, blocks int) {
		at := func(x *float32, i int) *float32 {
			if x == nil {
				return nil
			}
			return (*float32)(unsafe.Add(unsafe.Pointer(x), 4*i))
		}
		for col := 0; col < blocks*tileSide; col += 4 {
			microGeneric(rows, k, a, at(b, col/tileSide*k*bstride+col%tileSide), bstride, at(c, col), cstride,
				at(d, col), dstride, 1)
		}
	}
	return &e
}

// matrixUnit forces the variant that has one until the test ends, or skips the test.
func matrixUnit(t *testing.T) *tiles[float32] {
	kernelstest.Want(t, kernels.AMX)
	restore, err := kernels.Force(kernels.AMX)
	require.NoError(t, err)
	t.Cleanup(restore)
	return &engine32().tiles
}

// values are normal floats, some of which are zero, tiny, huge or denormal.
func values(seed uint64, n int) []float32 {
	rng := rand.New(rand.NewPCG(seed, 5))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
		switch rng.IntN(20) {
		case 0:
			x[i] = 0
		case 1:
			x[i] *= float32(math.Ldexp(1, rng.IntN(270)-150))
		}
	}
	return x
}

func bitsOf(x []float32) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
}

// TestSplittingIsExact: three pieces are what they were split from, if its last bits are not too small for a float, and
// each is half a unit of the one before at most.
func TestSplittingIsExact(t *testing.T) {
	for _, x := range append(values(1, 10000), 1, 1.5, 0x1p-100, 3.3e38, float32(math.Copysign(0, -1)), 0x1.fffffep-100,
		0x1.fefffep0) {
		p := piecesOf(x)
		var parts [3]float64
		for i := range p {
			parts[i] = float64(math.Float32frombits(p[i]))
		}
		if math.Abs(float64(x)) >= 0x1p-100 {
			require.Equal(t, float64(x), parts[0]+parts[1]+parts[2], "%x", x)
			require.LessOrEqual(t, math.Abs(parts[1]), math.Abs(float64(x))*0x1p-8)
			require.LessOrEqual(t, math.Abs(parts[2]), math.Abs(float64(x))*0x1p-16)
		}
	}
}

// TestSplittersAgree compares the assembly that splits with portable Go, bit by bit, and what both say of values that
// are not finite or become that.
func TestSplittersAgree(t *testing.T) {
	unit := matrixUnit(t)
	requireSplittersAgree(t, &genericTiles.floats, &unit.floats, func(x float32) float32 { return x })
	requireSplittersAgree(t, &genericTiles.bfloat16s, &unit.bfloat16s, func(x float32) uint16 {
		return uint16(dtype.ToBF16(x))
	})
}

func requireSplittersAgree[S any](t *testing.T, generic, unit *pieces[float32, S], of func(float32) S) {
	for seed := range uint64(40) {
		steps, panels, stride := 1+int(seed%5), 1+int(seed%3), 32+32*int(seed%3)+int(seed%7)
		stepSize := generic.count * pieceSize
		pitch := steps*stepSize + 64*int(seed%2)
		wide, lanes := panels*tileSide+stride, values(seed, tileLanes*(steps*tileStep+stride))
		rows := values(seed, steps*tileStep*wide)
		odd := []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.MaxFloat32, -3.3970e38,
			math.Float32frombits(0x7fffffff), math.Float32frombits(0xff800001)}
		if seed < uint64(len(odd)) {
			lanes[int(seed)*(steps*tileStep+stride+5)], rows[int(seed)*(wide+4)] = odd[seed], odd[seed]
		} else if seed == 20 {
			lanes[3], rows[3] = 3.38e38, -3.38e38
		}
		as := func(x []float32) (y []S) {
			for _, v := range x {
				y = append(y, of(v))
			}
			return y
		}
		got, want := slices.Repeat([]float32{guard}, steps*stepSize), slices.Repeat([]float32{guard}, steps*stepSize)
		bad := unit.rows(steps, &as(lanes)[0], steps*tileStep+stride, &got[0], stepSize)
		require.Equal(t, generic.rows(steps, &as(lanes)[0], steps*tileStep+stride, &want[0], stepSize) == 0, bad == 0,
			"rows, seed %d", seed)
		require.Equal(t, seed >= 7, bad == 0)
		if bad == 0 {
			require.Equal(t, bitsOf(want), bitsOf(got), "rows, seed %d", seed)
		}
		got, want = slices.Repeat([]float32{guard}, panels*pitch), slices.Repeat([]float32{guard}, panels*pitch)
		bad = unit.lanes(steps, panels, &as(rows)[0], wide, &got[0], pitch)
		require.Equal(t, generic.lanes(steps, panels, &as(rows)[0], wide, &want[0], pitch) == 0, bad == 0,
			"lanes, seed %d", seed)
		require.Equal(t, seed >= 7, bad == 0)
		if bad == 0 {
			require.Equal(t, bitsOf(want), bitsOf(got), "lanes, seed %d", seed)
		}
	}
}

// TestMatrixUnitAgrees compares whole products by the matrix unit with those by portable Go of the same tiles, bit by
// bit: it sums in the order that its manual says.
func TestMatrixUnitAgrees(t *testing.T) {
	unit := *matrixUnit(t)
	unit.rows, unit.cols, unit.products = genericTiles.rows, genericTiles.cols, genericTiles.products
	rapid.Check(t, func(t *rapid.T) {
		x := drawExample[float32](t)
		copy(x.a, values(rapid.Uint64().Draw(t, "a"), len(x.a)))
		copy(x.b, values(rapid.Uint64().Draw(t, "b"), len(x.b)))
		for _, s := range [][]float32{x.a, x.b} {
			for i := range s { // whose products do not overflow
				s[i] = max(-0x1p60, min(s[i], 0x1p60))
			}
		}
		requireSameBits(t, x.run(t, with(withTiles(genericTiles)), nil), x.run(t, with(withTiles(unit)), nil),
			x.String())
		requireHalvesAsWidened(t, newHalfCase(x), withTiles(unit))
	})
}

// requireHalvesAsWidened compares products of bfloat16, and of one such operand and one of float32, with those of
// widened ones.
func requireHalvesAsWidened(t require.TestingT, h *halfCase, e *engine[float32]) {
	bf16 := func(x []dtype.BF16) half[float32] { return half[float32]{asBits(x), &genericBF16} }
	product := func(halfA, halfB half[float32]) function[float32] {
		return func(p *parallel.Pool, m, n, k int, a, b Matrix[float32], c Rows[float32], accumulate bool) {
			q := newProblem(m, n, k, a, b, c, accumulate)
			q.halfA, q.halfB = halfA, halfB
			multiply(p, e, q)
		}
	}
	want := h.run(t, with(e), nil)
	requireSameBits(t, want, h.run(t, product(bf16(h.a16), bf16(h.b16)), nil), h.String())
	requireSameBits(t, want, h.run(t, product(half[float32]{}, bf16(h.b16)), nil), h.String())
	requireSameBits(t, want, h.run(t, product(bf16(h.a16), half[float32]{}), nil), h.String())
}

// TestTiledHalves holds on all machines.
func TestTiledHalves(t *testing.T) {
	for i, s := range [][3]int{{33, 40, 70}, {64, 32, kc + 5}, {5, 70, 64}, {40, 3, 33}} {
		for _, option := range some(0, 1, 3, 2, 5, 4, 6, 7) {
			x := newExample[float32](uint64(i), s[0], s[1], s[2], option&1 > 0, option&2 > 0, i, option&4 > 0)
			requireHalvesAsWidened(t, newHalfCase(x), withTiles(genericTiles))
		}
	}
}

// TestTiledAgainstFloat64 holds on all machines: products of any shape, cut in any way, of which no bit depends on the
// number of workers.
func TestTiledAgainstFloat64(t *testing.T) {
	pool := parallel.New(3)
	defer pool.Close()
	rapid.Check(t, func(t *rapid.T) {
		x, other := drawExample[float32](t), genericTiles
		got := x.run(t, with(withTiles(genericTiles)), nil)
		x.requireWithin(t, x.oracle(), got, x.k+8) // the six products of pieces are rounded one by one
		other.floats.columns, other.floats.products = tileSide*rapid.IntRange(1, 5).Draw(t, "columns"),
			kc*rapid.IntRange(1, 3).Draw(t, "products")
		requireSameBits(t, got, x.run(t, with(withTiles(other)), pool), x.String())
	})
}

func TestTiledFused(t *testing.T) {
	pool := parallel.New(3)
	defer pool.Close()
	e := withTiles(genericTiles)
	rapid.Check(t, func(t *rapid.T) {
		requireFusedEqualToSteps(t, pool, drawExample[float32](t), with(e),
			func(p *parallel.Pool, m, n, k int, a, b Matrix[float32], c Rows[float32], f *Fused[float32]) {
				multiply(p, e, f.problem(m, n, k, a, b, c))
			})
	})
}

// TestTiledIsAsPrecise: sums of products of pieces are nearer to those in float64 than sums of products of floats are.
func TestTiledIsAsPrecise(t *testing.T) {
	for _, k := range some(96, 3000, 1024) {
		x := newExample[float32](1, 64, 96, k, false, true, 0, false)
		o := x.oracle()
		deviation := func(e *engine[float32]) float64 {
			sum := 0.0
			for i, v := range x.run(t, with(e), nil) {
				sum += (float64(v) - o.want[i]) * (float64(v) - o.want[i])
			}
			return math.Sqrt(sum / float64(len(o.want)))
		}
		require.Less(t, deviation(withTiles(genericTiles)), 0.8*deviation(&generic32), "%d products", k)
	}
}

// TestTiledNonFinite: what is not finite makes of tiles what it makes of other products, infinities too, and numbers
// that only their pieces cannot hold remain numbers.
func TestTiledNonFinite(t *testing.T) {
	e, vectors := withTiles(genericTiles), withTiles(tiles[float32]{})
	inf := float32(math.Inf(1))
	for n, odd := range []float32{float32(math.NaN()), inf, -inf, math.MaxFloat32} {
		for _, option := range some(0, 1, 3, 2) {
			x := newExample[float32](uint64(n), 70, 70, kc+40, option&1 > 0, option&2 > 0, 0, n == 1)
			clean := x.run(t, with(e), nil)
			for i := range 3 { // in tiles of their own
				x.a[(5+40*i)%x.m*x.ars+(7+250*i)%x.k*x.acs] = odd / 4
				x.b[(9+240*i)%x.k*x.brs+(3+60*i)%x.n*x.bcs] = odd / 4
			}
			want, got := x.run(t, with(vectors), nil), x.run(t, with(e), nil)
			same := 0
			for i := range got {
				if want[i]-want[i] == 0 {
					require.InDelta(t, want[i], got[i], 1e-4+1e-5*math.Abs(float64(want[i])))
				} else {
					require.Equal(t, math.IsNaN(float64(want[i])), math.IsNaN(float64(got[i])))
					require.True(t, want[i] == got[i] || want[i] != want[i], "%v and %v", want[i], got[i])
				}
				if math.Float32bits(got[i]) == math.Float32bits(clean[i]) {
					same++
				}
			}
			require.Positive(t, same, "tiles without such operands have the bits that they had")
		}
	}
}

// TestTinyProducts: what a matrix unit takes for zero is no more than the least normal number for each product.
func TestTinyProducts(t *testing.T) {
	for _, scale := range []float64{1, 0x1p-40, 0x1p-62, 0x1p-75, 0x1p-130} {
		x := newExample[float32](3, 40, 40, 300, false, false, 0, false)
		for _, s := range [][]float32{x.a, x.b} {
			for i := range s {
				s[i] = float32(float64(s[i]) * scale)
			}
		}
		o := x.oracle()
		for i, v := range x.run(t, with(withTiles(genericTiles)), nil) {
			bound := 0x1p-24*302*o.magnitude[i] + 6*300*0x1p-126
			require.LessOrEqual(t, math.Abs(float64(v)-o.want[i]), bound, "%d, scale %g", i, scale)
		}
	}
}

func BenchmarkTiled(b *testing.B) {
	for _, v := range kernels.Available() {
		if v < kernels.AVX512 {
			continue
		}
		for _, s := range [][3]int{{96, 768, 768}, {128, 3072, 768}, {512, 512, 512}, {1024, 3072, 768},
			{1024, 768, 3072}} {
			for option := range 4 {
				x := newExample[float32](1, s[0], s[1], s[2], option&1 > 0, option&2 > 0, 0, false)
				b.Run(fmt.Sprintf("%s/%dx%dx%d/%s", v, s[0], s[1], s[2], []string{"NN", "TN", "NT", "TT"}[option]),
					func(b *testing.B) {
						restore, err := kernels.Force(v)
						require.NoError(b, err)
						defer restore()
						for b.Loop() {
							Float32(nil, x.m, x.n, x.k, Strided(x.a, x.ars, x.acs), Strided(x.b, x.brs, x.bcs),
								InRows(x.c, x.ldc), false)
						}
						b.ReportMetric(2*float64(x.m)*float64(x.n)*float64(x.k)*float64(b.N)/b.Elapsed().Seconds()/1e9,
							"GFLOP/s")
					})
			}
		}
	}
}

// TestSplitPanels compares products of panels that are split ahead with those of the same tiles, for any part of the
// panels.
func TestSplitPanels(t *testing.T) {
	unit := *matrixUnit(t)
	unit.rows, unit.cols, unit.products = genericTiles.rows, genericTiles.cols, genericTiles.products
	rapid.Check(t, func(t *rapid.T) {
		m, n, k := rapid.IntRange(1, 130).Draw(t, "m"), rapid.IntRange(1, 200).Draw(t, "n"),
			rapid.IntRange(1, kc).Draw(t, "k")
		x := newExample[float32](rapid.Uint64().Draw(t, "seed"), m, n, k, false, rapid.Bool().Draw(t, "transB"),
			rapid.IntRange(0, 5).Draw(t, "pad"), false)
		panels := slices.Repeat([]float32{guard}, SplitSize32(k, n))
		SplitPanels32(panels, k, n, Strided(x.b, x.brs, x.bcs))
		want := x.run(t, with(withTiles(unit)), nil)
		requireSameBits(t, want,
			x.run(t, func(_ *parallel.Pool, m, n, k int, a, _ Matrix[float32], c Rows[float32], _ bool) {
				first := rapid.IntRange(0, (n-1)/tileSide).Draw(t, "first") * tileSide
				rows := InRows(a.Data, a.RowStride)
				MultiplySplit32(m, n-first, k, rows, panels[SplitSize32(k, first):], InRows(c.Data[first:], c.Stride))
				if first > 0 {
					MultiplySplit32(m, first, k, rows, panels, c)
				}
			}, nil), x.String())
	})
	require.PanicsWithValue(t, "gemm: 2×3 results of 4 products: panels have 7 elements: want 1536, and rows of C "+
		"are 3 apart", func() {
		MultiplySplit32(2, 3, 4, InRows(make([]float32, 8), 4), make([]float32, 7), InRows(make([]float32, 6), 3))
	})
}

// TestMatrixUnitSurvivesInterruptions: signals of a profiler, of the garbage collector and of threads that take turns
// on a processor leave tiles as they were.
func TestMatrixUnitSurvivesInterruptions(t *testing.T) {
	matrixUnit(t)
	var profile bytes.Buffer
	require.NoError(t, pprof.StartCPUProfile(&profile))
	defer pprof.StopCPUProfile()
	x := newExample[float32](1, 160, 224, 700, false, true, 0, false)
	want := x.run(t, Float32, nil)
	var all errgroup.Group
	for range 4 * runtime.NumCPU() {
		all.Go(func() error {
			for range 200 {
				got := x.run(t, Float32, nil)
				runtime.GC()
				if !slices.Equal(want, got) {
					return errors.New("bits differ")
				}
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
}
