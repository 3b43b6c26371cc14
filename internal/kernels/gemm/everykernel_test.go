// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
)

// TestEveryKernel calls each kernel of the engines directly, on shapes of a few elements, and compares with the
// definition. Elements are small whole numbers, so that sums are exact in any order. It is quick enough for an emulated
// processor: there .ci/run also checks that every kernel of AVX2 ran.
//
// Tiles of AMX, and kernels for one row that only AVX-512 has, are tested elsewhere: they need larger shapes.
func TestEveryKernel(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		everyKernel(t, engineOf[float32](), panelsOf[float32]())
		everyKernel(t, engineOf[float64](), panelsOf[float64]())
		everyHalfKernel(t, formatBF16(), packBF16Generic, func(x float32) uint16 { return uint16(dtype.ToBF16(x)) })
		everyHalfKernel(t, formatF16(), packF16Generic, func(x float32) uint16 { return uint16(dtype.ToF16(x)) })
		everyUnfolding(t)
	})
}

// numbers are whole numbers from -3 to 3.
func numbers[T element](n, seed int) []T {
	x := make([]T, n)
	for i := range x {
		x[i] = T((i*i*7+i*(3+seed)+seed)%7 - 3)
	}
	return x
}

// grid is a matrix for the definition: element (i, j) at i·rows + j·cols.
type grid[T element] struct {
	of         []T
	rows, cols int
}

func (g grid[T]) at(i, j int) T { return g.of[i*g.rows+j*g.cols] }

// requireProduct compares rows × cols of C, at i·cstride + j, with D + A·B; a D without elements is zero.
func requireProduct[T element](t *testing.T, rows, cols, k int, a, b, d grid[T], c []T, cstride int, name string) {
	t.Helper()
	for i := range rows {
		for j := range cols {
			var want T
			if d.of != nil {
				want = d.at(i, j)
			}
			for p := range k {
				want += a.at(i, p) * b.at(p, j)
			}
			require.Equal(t, want, c[i*cstride+j], "%s: %d×%d×%d, element (%d, %d)", name, rows, cols, k, i, j)
		}
	}
}

// addends are no D, and one.
func addends[T element](n int) [][]T { return [][]T{nil, numbers[T](n, 5)} }

// first is the address of a slice's first element, or nil.
func first[T any](x []T) *T { return unsafe.SliceData(x) }

func everyKernel[T element](t *testing.T, e *engine[T], panels *panelKernels[T]) {
	const deep = 24 // products at most
	for _, k := range []int{1, 7, 8, deep} {
		for _, blocks := range []int{1, 2} {
			for rows := 1; rows <= e.mr; rows++ {
				everyMicro(t, e, rows, k, blocks)
			}
			if e.rows != nil {
				var f requests
				rows := func(k int, a *T, as int, b *T, bs int, c *T, cs int, d *T, ds, n int) {
					e.rows(k, a, as, b, bs, c, cs, d, ds, n, &f.c.at)
				}
				tall := func(k int, a *T, as int, b *T, bs int, c *T, cs int, d *T, ds, n int) {
					e.tall(k, a, as, b, bs, c, cs, d, ds, n, &f.c.at)
				}
				everyPlaced(t, rows, tall, e.mr, e.nr, k, blocks)
			}
			for i, rows := range panels.sizes {
				everyPlaced(t, panels.rows[i], panels.tall[i], rows, panels.nr, k, blocks)
			}
		}
		for rows := 1; rows <= e.mr; rows++ {
			everyStrided(t, e, rows, k)
		}
		everyBroad(t, e, k)
		everyKeeping(t, e, k)
		everyPacking(t, e, k)
	}
	everyDirect(t, e.stream, numbers[T](4096, 1), numbers[T](4096, 1), "stream")
	everyDots(t, &e.dots, numbers[T](8192, 1), numbers[T](8192, 1), "dots")
	everyGEMVRows(t, e)
	everyOuter(t, e)
}

func everyMicro[T element](t *testing.T, e *engine[T], rows, k, blocks int) {
	cols := blocks * e.nr
	a, b, stride := numbers[T](rows*k, 1), numbers[T](blocks*k*e.nr, 2), cols+3
	for _, d := range addends[T](rows * stride) {
		c := make([]T, rows*stride)
		e.micro(rows, k, &a[0], &b[0], e.nr, &c[0], stride, first(d), stride, blocks)
		requirePanels(t, rows, e.nr, k, blocks, grid[T]{a, 1, rows}, b, d, c, stride, "micro")
	}
}

// requirePanels is requireProduct for panels of B one after the other.
func requirePanels[T element](t *testing.T, rows, nr, k, blocks int, a grid[T], b, d, c []T, stride int, name string) {
	t.Helper()
	for block := range blocks {
		from := grid[T]{nil, stride, 1}
		if d != nil {
			from.of = d[block*nr:]
		}
		requireProduct(t, rows, nr, k, a, grid[T]{b[block*k*nr:], nr, 1}, from, c[block*nr:], stride, name)
	}
}

// everyPlaced calls kernels that read A where it lies.
func everyPlaced[T element](t *testing.T, rowsOf, tallOf placedKernel[T], rows, nr, k, blocks int) {
	stride := blocks*nr + 3
	b := numbers[T](blocks*k*nr, 2)
	for _, d := range addends[T](rows * stride) {
		c, a := make([]T, rows*stride), numbers[T](rows*(k+1), 1)
		rowsOf(k, &a[0], k+1, &b[0], nr, &c[0], stride, first(d), stride, blocks)
		requirePanels(t, rows, nr, k, blocks, grid[T]{a, k + 1, 1}, b, d, c, stride, "rows")
		c, a = make([]T, rows*stride), numbers[T](k*(rows+1), 1)
		tallOf(k, &a[0], rows+1, &b[0], nr, &c[0], stride, first(d), stride, blocks)
		requirePanels(t, rows, nr, k, blocks, grid[T]{a, 1, rows + 1}, b, d, c, stride, "tall")
	}
}

func everyStrided[T element](t *testing.T, e *engine[T], rows, k int) {
	const tiles = 2 // side by side
	cols := tiles * e.nr
	a, b, stride := numbers[T](rows*(k+2), 1), numbers[T](k*cols, 2), cols+1
	for add, d := range addends[T](rows * stride) {
		c := append(make([]T, 0, rows*stride), d...)[:rows*stride]
		e.strided(rows, k, &a[0], k+2, 1, &b[0], cols, &c[0], stride, add, tiles, 0, e.nr, e.nr,
			uintptr(unsafe.Pointer(&a[0])), 0)
		requireProduct(t, rows, cols, k, grid[T]{a, k + 2, 1}, grid[T]{b, cols, 1}, grid[T]{d, stride, 1}, c, stride,
			"strided")
	}
}

func everyBroad[T element](t *testing.T, e *engine[T], k int) {
	if e.broad == nil {
		return
	}
	const tiles = 2 // below each other
	rows, cols := tiles*e.mr/2, 2*e.nr
	a, b, stride := numbers[T](rows*(k+2), 1), numbers[T](k*cols, 2), cols+1
	for add, d := range addends[T](rows * stride) {
		c := append(make([]T, 0, rows*stride), d...)[:rows*stride]
		e.broad(k, &a[0], k+2, 1, &b[0], cols, e.nr, &c[0], stride, add, tiles, e.mr/2*(k+2), e.mr/2*stride,
			uintptr(unsafe.Pointer(&a[0])), 0)
		requireProduct(t, rows, cols, k, grid[T]{a, k + 2, 1}, grid[T]{b, cols, 1}, grid[T]{d, stride, 1}, c, stride,
			"broad")
	}
}

func everyKeeping[T element](t *testing.T, e *engine[T], k int) {
	if e.keeping == nil {
		return
	}
	a, b, bstride := numbers[T](e.mr*(k+1), 1), numbers[T](k*(e.nr+4), 2), e.nr+4
	for _, d := range addends[T](e.mr * e.nr) {
		c, kept := make([]T, e.mr*e.nr), make([]T, k*e.nr)
		e.keeping(k, &a[0], k+1, &b[0], bstride, &c[0], e.nr, first(d), e.nr, &kept[0], &b[0])
		of := grid[T]{a, k + 1, 1}
		requireProduct(t, e.mr, e.nr, k, of, grid[T]{b, bstride, 1}, grid[T]{d, e.nr, 1}, c, e.nr, "keeping")
		requireProduct(t, e.mr, e.nr, k, of, grid[T]{kept, e.nr, 1}, grid[T]{d, e.nr, 1}, c, e.nr, "what it keeps")
	}
}

// everyDots calls kernels that read columns of B where they lie, and prefetch what is not there, which does nothing.
func everyDots[T element, B any](t *testing.T, kernel *directAhead[T, B], b []B, values []T, name string) {
	if kernel.crowded != nil {
		everyDots(t, kernel.crowded, b, values, name)
	}
	for rows := 1; rows < len(kernel.widths); rows++ {
		if !kernel.has(rows) {
			continue
		}
		for _, k := range []int{kernel.whole, 2 * kernel.whole} {
			for _, blocks := range []int{1, 2, 3} {
				cols, all := kernel.widths[rows], blocks*k
				a, cstride := numbers[T](rows*all, 1), cols+3
				for _, d := range addends[T](rows * cstride) {
					c := make([]T, rows*cstride)
					kernel.compute(rows, k, &a[0], &b[0], all, &c[0], cstride, first(d), cstride, blocks, 0)
					requireProduct(t, rows, cols, all, grid[T]{a, 1, rows}, grid[T]{values, 1, all},
						grid[T]{d, cstride, 1}, c, cstride, name)
				}
			}
		}
	}
}

// everyDirect calls kernels that read B where it lies: values are its elements.
func everyDirect[T element, B any](t *testing.T, kernel direct[T, B], b []B, values []T, name string) {
	for rows := 1; rows < len(kernel.widths); rows++ {
		if kernel.widths[rows] == 0 {
			continue
		}
		for _, k := range []int{kernel.whole, 2 * kernel.whole} {
			for _, blocks := range []int{1, 2} {
				cols := blocks * kernel.widths[rows]
				of, stride := grid[T]{values, cols, 1}, cols // rows of B
				a, cstride := numbers[T](rows*k, 1), cols+3
				for _, d := range addends[T](rows * cstride) {
					c := make([]T, rows*cstride)
					kernel.compute(rows, k, &a[0], &b[0], stride, &c[0], cstride, first(d), cstride, blocks)
					requireProduct(t, rows, cols, k, grid[T]{a, 1, rows}, of, grid[T]{d, cstride, 1}, c, cstride, name)
				}
			}
		}
	}
}

func everyGEMVRows[T element](t *testing.T, e *engine[T]) {
	g := &e.gemvRows
	if g.some == nil {
		return
	}
	for name, compute := range map[string]func(k int, a, b *T, bstride int, c *T, steps, add int){
		"one": g.one, "some": g.some, "prefetch": g.prefetch,
	} {
		for _, steps := range []int{1, 3} {
			k, cols := 2*g.rows, steps*g.width
			if name == "one" {
				k++
			}
			a, b := numbers[T](k, 1), numbers[T](k*cols, 2)
			for add, d := range addends[T](cols) {
				c := append(make([]T, 0, cols), d...)[:cols]
				compute(k, &a[0], &b[0], cols, &c[0], steps, add)
				requireProduct(t, 1, cols, k, grid[T]{a, 0, 1}, grid[T]{b, cols, 1}, grid[T]{d, 0, 1}, c, cols, name)
			}
		}
	}
	cols, ones := 2*g.width, []T{1, 1, 1}
	b, d, c := numbers[T](3*cols, 2), numbers[T](cols, 5), make([]T, cols)
	g.add(&c[0], &d[0], &b[0], cols, 3, 2)
	requireProduct(t, 1, cols, 3, grid[T]{ones, 0, 1}, grid[T]{b, cols, 1}, grid[T]{d, 0, 1}, c, cols, "add")
}

func everyOuter[T element](t *testing.T, e *engine[T]) {
	if e.outer.row == nil {
		return
	}
	cols := 3 * e.outer.width
	a, b := numbers[T](1, 3), numbers[T](cols, 2)
	for _, d := range addends[T](cols) {
		c := make([]T, cols)
		e.outer.row(&a[0], &b[0], &c[0], first(d), 3)
		requireProduct(t, 1, cols, 1, grid[T]{a, 0, 1}, grid[T]{b, cols, 1}, grid[T]{d, 0, 1}, c, cols, "outer")
	}
	room := make([]T, cols+nonTemporalAlign)
	for uintptr(unsafe.Pointer(&room[0]))%nonTemporalAlign != 0 {
		room = room[1:]
	}
	e.outer.nonTemporal(&a[0], &b[0], &room[0], nil, 3)
	e.outer.fence()
	requireProduct(t, 1, cols, 1, grid[T]{a, 0, 1}, grid[T]{b, cols, 1}, grid[T]{}, room, cols, "non-temporal outer")
}

func everyPacking[T element](t *testing.T, e *engine[T], k int) {
	src := numbers[T](4096, 1)
	requirePacking(t, e.pack, packGeneric[T], src, e.nr, e.mr, k)
	if e.copyA != nil {
		requireCopies(t, e.copyA, packGeneric[T], src, e.mr, k)
		requireCopies(t, e.copyB, packGeneric[T], src, e.nr, k)
	}
	const lanes = 13
	got, want := make([]T, k*lanes), make([]T, k*lanes)
	e.transpose(got, lanes, lanes, k, src, k+1)
	transposeGeneric(want, lanes, lanes, k, src, k+1)
	require.Equal(t, want, got, "transposing %d×%d", lanes, k)
}

// packer is engine.pack.
type packer[T element, S any] func(dst []T, width, lanes, k int, src []S, laneStride, kStride int)

// requirePacking compares packings of whole and ragged panels, with contiguous lanes and with contiguous products.
func requirePacking[T element, S any](t *testing.T, pack, generic packer[T, S], src []S, nr, mr, k int) {
	t.Helper()
	for _, width := range []int{nr, mr} {
		for _, lanes := range []int{width, max(1, width-1)} {
			for _, strides := range [][2]int{{1, width + 1}, {k + 1, 1}} {
				got, want := make([]T, k*width), make([]T, k*width)
				pack(got, width, lanes, k, src, strides[0], strides[1])
				generic(want, width, lanes, k, src, strides[0], strides[1])
				require.Equal(t, want, got, "packing %d lanes of %d, %d products, %v apart", lanes, width, k, strides)
			}
		}
	}
}

func requireCopies[T element, S element | uint16](t *testing.T, kernel copyPanels[T, S], generic packer[T, S], src []S,
	width, k int) {
	t.Helper()
	pitch, stride := k*width+5, together*width+3
	got := make([]T, together*pitch)
	kernel(k, &src[0], stride, &got[0], pitch)
	for j := range together {
		want := make([]T, k*width)
		generic(want, width, width, k, src[j*width:], 1, stride)
		require.Equal(t, want, got[j*pitch:][:k*width], "panel %d of %d lanes, %d products", j, width, k)
	}
}

// everyHalfKernel calls the kernels that widen elements as they read them.
func everyHalfKernel(t *testing.T, f *format[float32], generic packer[float32, uint16],
	narrow func(float32) uint16) {
	values := numbers[float32](8192, 1)
	halves := make([]uint16, len(values))
	for i, v := range values {
		halves[i] = narrow(v)
	}
	e := engineOf[float32]()
	for _, k := range []int{1, 7, 8, 40} {
		requirePacking(t, f.pack, generic, halves, e.nr, e.mr, k)
		if f.copyA != nil {
			requireCopies(t, f.copyA, generic, halves, e.mr, min(k, 8))
			requireCopies(t, f.copyB, generic, halves, e.nr, min(k, 8))
		}
	}
	everyDirect(t, f.stream, halves, values, "stream of halves")
	everyDots(t, &f.dots, halves, values, "dots of halves")
}

func everyUnfolding(t *testing.T) {
	for _, run := range []int{3, 8, 13, 37} {
		const places, planes, rows = 3, 2, 2
		pitch := planes * rows * run
		src := numbers[float32](8*run+200, 1)
		got, want := make([]float32, places*pitch+UnfoldSlack), make([]float32, places*pitch+UnfoldSlack)
		Unfold(got, pitch, places, src, 2, planes, 3*run, rows, run+1, run)
		unfoldGeneric(want, pitch, places, src, 2, planes, 3*run, rows, run+1, run)
		require.Equal(t, want[:places*pitch], got[:places*pitch], fmt.Sprintf("runs of %d", run))
	}
}
