// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels/gemm"
)

// Scores are computed in tiles, so that they and the keys and values of a tile stay in the second-level cache, and
// memory does not grow with their number.
const (
	attentionRows = 192 // queries of a tile at most, where products take one panel at a time
	// and where they take two, so that the queries of a tile are no more products than gemm adds up at a time
	attentionFewer   = 120
	attentionColumns = 256 // keys of a tile at most
	// queries and keys from which a matrix unit computes scores, if they have half as many elements each
	attentionSplit = 64
	attentionUnits = 32 // below so many heads, the queries of a head are divided among workers
	scoreBlock     = 16 // columns that the kernels for scores want a multiple of
)

// attention is the geometry of an attention launch.
type attention struct {
	batch, heads, kvHeads, tq, tk, d, dv int
	q, k, v                              *backend.View
	mask                                 *backend.View // nil: none
	bias                                 *backend.View // of the scores; nil: none
	scale, p, cap                        float64       // cap: of soft capped scores; 0: none
	causal                               bool
	shift                                int  // key i+shift has query i's position: causal queries see no later one
	window                               int  // keys of positions less than window apart are seen; 0: all
	rows, tiles                          int  // queries per tile, tiles of queries
	parts                                int  // of the tiles of a head in the forward pass, each computed by itself
	columns                              int  // keys per tile
	width, height                        int  // of a panel of columns and of one of rows of the matrix product
	stride                               int  // of rows of scores
	half                                 bool // whether operands are of a half type
	split                                bool // whether a matrix unit computes scores of bands that are high enough
}

func (d *Device) attention(c *backend.Call, a *attention, maskAt int) {
	q, k, v := &c.In[0], &c.In[1], &c.In[2]
	*a = attention{q: q, k: k, v: v, half: q.DType.IsHalf(), scale: c.Floats[0], p: c.Floats[1], cap: c.Floats[2],
		causal: c.Ints[0] != 0, shift: c.Ints[1] - c.Ints[2]}
	if q.NDim != 4 || k.NDim != 4 || v.NDim != 4 {
		d.fault(c, "q, k, v of shape %v, %v, %v: want four dims", q.Shape[:q.NDim], k.Shape[:k.NDim], v.Shape[:v.NDim])
	}
	a.batch, a.heads, a.tq, a.d = q.Shape[0], q.Shape[1], q.Shape[2], q.Shape[3]
	a.kvHeads, a.tk, a.dv = k.Shape[1], k.Shape[2], v.Shape[3]
	if w := c.Ints[4]; w < 0 {
		d.fault(c, "window %d: want none negative", w)
	} else if w < a.tq+a.tk+max(a.shift, -a.shift) { // else it hides nothing
		a.window = w
	}
	a.tile()
	if k.Shape[0] != a.batch || v.Shape[0] != a.batch || v.Shape[1] != a.kvHeads || v.Shape[2] != a.tk ||
		k.Shape[3] != a.d ||
		a.kvHeads < 1 && a.heads > 0 || a.kvHeads > 0 && a.heads%a.kvHeads != 0 {
		d.fault(c, "q, k, v of shapes %v, %v, %v do not fit", q.Shape[:4], k.Shape[:4], v.Shape[:4])
	}
	for i := range 3 {
		if x := &c.In[i]; x.DType != q.DType || x.Shape[3] > 1 && x.Stride[3] != 1 {
			d.fault(c, "input %d: %s with stride %d in the last dim: want %s with 1", i, x.DType, x.Stride[3], q.DType)
		}
	}
	if !(a.p >= 0 && a.p <= 1) {
		d.fault(c, "dropout probability %v: want 0 to 1", a.p)
	}
	if !(a.cap >= 0) {
		d.fault(c, "soft cap %v: want a positive number, or 0 for none", a.cap)
	}
	if c.NIn > maskAt {
		m := &c.In[maskAt]
		if a.mask = m; m.DType == a.computed() {
			a.mask, a.bias = nil, m
		}
		if a.mask != nil && m.DType != dtype.Bool || m.NDim != 4 ||
			[4]int(m.Shape[:4]) != [4]int{a.batch, a.heads, a.tq, a.tk} {
			d.fault(c, "mask is %s of shape %v: want bool or %s %v", m.DType, m.Shape[:m.NDim], q.DType,
				[]int{a.batch, a.heads, a.tq, a.tk})
		}
	}
}

// computed is the dtype of scores: statistics and biases have it, too.
func (a *attention) computed() dtype.DType {
	if a.half {
		return dtype.Float32
	}
	return a.q.DType
}

// tile chooses the sizes of tiles.
func (a *attention) tile() {
	a.width, a.height = gemm.InPlaceWidth[float32](), gemm.InPlaceHeight[float32]()
	if a.q.DType == dtype.Float64 {
		a.width, a.height = gemm.InPlaceWidth[float64](), gemm.InPlaceHeight[float64]()
	}
	most := attentionRows
	if gemm.SideBySide() {
		most = attentionFewer
	}
	a.tiles = max(1, (a.tq+most-1)/most)
	a.rows = max(1, ((a.tq+a.tiles-1)/a.tiles+a.height-1)/a.height*a.height) // about equal, whole panels
	a.tiles = (a.tq + a.rows - 1) / a.rows
	a.parts = 1
	if units := max(1, a.batch*a.heads); units < attentionUnits {
		a.parts = max(1, min(a.tiles, attentionUnits/units))
	}
	a.columns = max(1, min(attentionColumns, a.tk))
	a.split = a.computed() == dtype.Float32 && gemm.HasTiles() && min(a.rows, a.columns) >= attentionSplit &&
		min(a.d, a.dv) >= attentionSplit/2
	a.stride = a.padded(a.columns) + scoreBlock // not a multiple of a page, whose lines fall into few sets of a cache
}

// unit is what a worker computes of the forward pass: queries i0 to i1 of a sample and head.
type unit struct{ number, sample, head, i0, i1 int }

func (a *attention) unit(number int) unit {
	part := number % a.parts
	return unit{number, number / a.parts / a.heads, number / a.parts % a.heads, part * a.tiles / a.parts * a.rows,
		min((part+1)*a.tiles/a.parts*a.rows, a.tq)}
}

// padded is a number of columns of scores with those that kernels want to compute beside them.
func (a *attention) padded(columns int) int {
	whole := max(scoreBlock, a.width)
	return (columns + whole - 1) / whole * whole
}

// panels is the number of elements of so many keys in panels, d of each: of those for vectors, and behind them of those
// for a matrix unit if there is one.
func (a *attention) panels(keys, d int) int {
	if a.split {
		return keys*d + gemm.SplitSize32(d, keys)
	}
	return keys * d
}

// wholePanels is a number of columns of B with those that fill up the last panel.
func (a *attention) wholePanels(columns int) int { return (columns + a.width - 1) / a.width * a.width }

// keys are the keys from ≤ j < to that query i may see, except for the mask; neither bound falls as i grows.
func (a *attention) keys(i int) (from, to int) {
	to = a.tk
	if a.window > 0 {
		from = i + a.shift - a.window + 1
	}
	if reach, limited := a.reach(); limited {
		to = min(to, i+reach)
	}
	to = max(0, to)
	return min(max(0, from), to), to
}

// visible are the keys of a sample and head without those at both ends that a mask of keys (the same for all queries,
// as padding is) hides. masked says whether the mask hides any other.
func (a *attention) visible(b, h int) (from, to int, masked bool) {
	to = a.tk
	if a.mask == nil {
		return 0, to, false
	}
	if a.mask.Stride[2] != 0 && a.tq > 1 {
		return 0, to, true
	}
	seen := func(j int) bool { return *a.maskAt(b, h, 0, j) != 0 }
	for from < to && !seen(from) {
		from++
	}
	for from < to && !seen(to-1) {
		to--
	}
	for j := from; j < to && !masked; j++ {
		masked = !seen(j)
	}
	return from, to, masked
}

// maskAt is the mask of query i and key j.
func (a *attention) maskAt(b, h, i, j int) *uint8 {
	m := a.mask
	return (*uint8)(at(m, m.Offset+b*m.Stride[0]+h*m.Stride[1]+i*m.Stride[2]+j*m.Stride[3]))
}

// maskRow is the mask of query i and the n keys from j on, where it lies if it lies together, else in room.
func (a *attention) maskRow(room []uint8, b, h, i, j, n int) []uint8 {
	p, stride := a.maskAt(b, h, i, j), a.mask.Stride[3]
	if stride == 1 {
		return unsafe.Slice(p, n)
	}
	for k := range n {
		room[k] = *(*uint8)(unsafe.Add(unsafe.Pointer(p), k*stride))
	}
	return room[:n]
}

// head is the matrix of one sample and head: its elements from row i on, and the distance of its rows.
func head[T float](v *backend.View, b, h, i int) (x []T, stride int) {
	return from[T](v, v.Offset+b*v.Stride[0]+h*v.Stride[1]+i*v.Stride[2]), v.Stride[2]
}

// reach is, where limited, the key before which what query i sees ends, less i.
func (a *attention) reach() (reach int, limited bool) {
	switch {
	case a.causal:
		return a.shift + 1, true
	case a.window > 0:
		return a.shift + a.window, true
	}
	return 0, false
}

// queries are the queries from ≤ i < to that may see some key from j0 to j1, except for the mask; neither bound falls
// as j0 and j1 grow.
func (a *attention) queries(j0, j1 int) (from, to int) {
	to = a.tq
	if reach, limited := a.reach(); limited {
		from = j0 - reach + 1
	}
	if a.window > 0 {
		to = min(to, j1-1-a.shift+a.window)
	}
	to = max(0, to)
	return min(max(0, from), to), to
}

// band is a run of neighbouring rows of a product, some panels of them, and the range of what they need of the other
// side.
type band struct{ first, end, from, to int }

// bandOfQueries is the longest run of panels of queries from first on, before end, that need the same keys of those
// from ≤ j < to.
func (a *attention) bandOfQueries(first, end, from, to int) band {
	return a.band(first, end, from, to, func(i0, i1 int) (int, int) {
		lo, _ := a.keys(i0)
		_, hi := a.keys(i1 - 1)
		return lo, hi
	})
}

// bandOfKeys is the longest run of panels of keys from first on, before end, that need the same queries of those from ≤
// i < to.
func (a *attention) bandOfKeys(first, end, from, to int) band {
	return a.band(first, end, from, to, a.queries)
}

func (a *attention) band(first, end, from, to int, needs func(lo, hi int) (int, int)) band {
	within := func(i int) (lo, hi, next int) {
		next = min(i+a.height, end)
		lo, hi = needs(i, next)
		hi = max(from, min(hi, to))
		return min(max(from, lo), hi), hi, next
	}
	lo, hi, next := within(first)
	b := band{first, next, lo, hi}
	for b.end < end {
		if lo, hi, next = within(b.end); lo != b.from || hi != b.to {
			break
		}
		b.end = next
	}
	return b
}

// whole reports whether all queries of the band see all of its keys, except for the mask.
func (a *attention) whole(b band) bool {
	_, to := a.keys(b.first)
	from, _ := a.keys(b.end - 1)
	return from <= b.from && b.to <= to
}

// columnsOf are the columns of scores, counted from key j0, that are computed for a band of queries: whole blocks.
func (a *attention) columnsOf(b band, j0 int) (lo, hi int) {
	whole := max(scoreBlock, a.width)
	return (b.from - j0) / whole * whole, a.padded(b.to - j0)
}

// scaled reports whether products are multiplied by the scale before the exponential: by one that is not positive, so
// that the largest product is the largest score, and where scores are capped or a bias is added to them.
func (a *attention) scaled() bool { return a.scale <= 0 || a.cap > 0 || a.bias != nil }

// exponent is what products are multiplied by in the exponential to base 2.
func (a *attention) exponent() float64 {
	if a.scaled() {
		return math.Log2E
	}
	return a.scale * math.Log2E
}
