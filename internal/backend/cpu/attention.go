package cpu

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/rng"
)

// Scores are computed in tiles, so that they stay in the second-level cache and memory does not grow with their number.
const (
	attentionRows   = 192       // queries at most: the more there are, the less often the keys are packed for the matrix product
	edgeRows        = 96        // queries at most where not all see the same keys: the fewer there are, the less is computed in vain
	attentionScores = 96 * 1024 // scores at most; the backward pass has two matrices of half as many
)

// attention is the geometry of an attention launch.
type attention struct {
	batch, heads, kvHeads, tq, tk, d, dv int
	q, k, v                              *backend.View
	mask                                 *backend.View // nil: none
	scale, p                             float64
	causal                               bool
	shift                                int // key i+shift has query i's position: causal queries see no later one
	window                               int // keys of positions less than window apart are seen; 0: all
	most                                 int // queries per tile at most
	rows, tiles                          int // queries per tile, tiles of queries
	columns                              int // keys per tile
}

func (d *Device) attention(c *backend.Call, a *attention, maskAt int) {
	q, k, v := &c.In[0], &c.In[1], &c.In[2]
	*a = attention{q: q, k: k, v: v, scale: c.Floats[0], p: c.Floats[1], causal: c.Ints[0] != 0, shift: c.Ints[1] - c.Ints[2]}
	if q.NDim != 4 || k.NDim != 4 || v.NDim != 4 {
		d.fault(c, "q, k, v of shape %v, %v, %v, want four dims", q.Shape[:q.NDim], k.Shape[:k.NDim], v.Shape[:v.NDim])
	}
	a.batch, a.heads, a.tq, a.d = q.Shape[0], q.Shape[1], q.Shape[2], q.Shape[3]
	a.kvHeads, a.tk, a.dv = k.Shape[1], k.Shape[2], v.Shape[3]
	if w := c.Ints[4]; w < 0 {
		d.fault(c, "window %d, want none negative", w)
	} else if w < a.tq+a.tk+max(a.shift, -a.shift) { // else it hides nothing
		a.window = w
	}
	a.most = attentionRows
	if a.causal || a.window > 0 {
		a.most = edgeRows
	}
	a.columns = attentionScores / a.most
	a.tiles = max(1, (a.tq+a.most-1)/a.most)
	a.rows = min(a.most, ((a.tq+a.tiles-1)/a.tiles+11)/12*12) // about equal, whole panels
	a.tiles = (a.tq + a.rows - 1) / max(1, a.rows)
	if k.Shape[0] != a.batch || v.Shape[0] != a.batch || v.Shape[1] != a.kvHeads || v.Shape[2] != a.tk || k.Shape[3] != a.d ||
		a.kvHeads < 1 && a.heads > 0 || a.kvHeads > 0 && a.heads%a.kvHeads != 0 {
		d.fault(c, "q, k, v of shapes %v, %v, %v do not fit", q.Shape[:4], k.Shape[:4], v.Shape[:4])
	}
	for i := range 3 {
		if x := &c.In[i]; x.DType != q.DType || x.Shape[3] > 1 && x.Stride[3] != 1 {
			d.fault(c, "input %d: %s with stride %d in the last dim, want %s with 1", i, x.DType, x.Stride[3], q.DType)
		}
	}
	if !(a.p >= 0 && a.p <= 1) {
		d.fault(c, "dropout probability %v, want 0 to 1", a.p)
	}
	if c.NIn > maskAt {
		a.mask = &c.In[maskAt]
		m := a.mask
		if m.DType != dtype.Bool || m.NDim != 4 || [4]int(m.Shape[:4]) != [4]int{a.batch, a.heads, a.tq, a.tk} {
			d.fault(c, "mask is %s of shape %v, want bool %v", m.DType, m.Shape[:m.NDim], []int{a.batch, a.heads, a.tq, a.tk})
		}
	}
}

// keys are the keys from ≤ j < to that query i may see, but for the mask; neither bound falls as i grows.
func (a *attention) keys(i int) (from, to int) {
	own := i + a.shift
	to = a.tk
	if a.window > 0 {
		from, to = own-a.window+1, min(to, own+a.window)
	}
	if a.causal {
		to = min(to, own+1)
	}
	to = max(0, to)
	return min(max(0, from), to), to
}

// span is the part of the keys that a tile of queries needs: what some query sees, without the keys at both ends that a mask of keys (the same for all
// queries, as padding is) hides. masked says whether the mask hides any other.
func (a *attention) span(b, h, i0, i1 int) (from, to int, masked bool) {
	from, _ = a.keys(i0)
	_, to = a.keys(i1 - 1)
	if a.mask == nil || from == to {
		return from, to, false
	}
	if a.mask.Stride[2] != 0 && i1-i0 > 1 {
		return from, to, true
	}
	seen := func(j int) bool { return *a.maskAt(b, h, i0, j) != 0 }
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

func attentionKernel(d *Device, c *backend.Call) {
	t := d.begin(c)
	defer t.end()
	a := &t.attention
	d.attention(c, a, 3)
	out := &c.Out[0]
	if out.DType != c.In[0].DType || out.NDim != 4 || [4]int(out.Shape[:4]) != [4]int{a.batch, a.heads, a.tq, a.dv} ||
		a.dv > 1 && out.Stride[3] != 1 || a.tq > 1 && out.Stride[2] < a.dv {
		d.fault(c, "output is %s of shape %v, strides %v", out.DType, out.Shape[:out.NDim], out.Stride[:out.NDim])
	}
	d.wantVector(c, &c.Out[1], out.DType, a.batch*a.heads*a.tq, "log-sum-exp")
	if out.DType == dtype.Float64 {
		t.do(a.batch*a.heads*a.tiles, 1, attentionTiles[float64])
		return
	}
	if out.DType != dtype.Float32 {
		d.fault(c, "no kernel for %s", out.DType)
	}
	t.do(a.batch*a.heads*a.tiles, 1, attentionTiles[float32])
}

// attentionTiles computes tiles of queries lo to hi.
func attentionTiles[T float](t *task, l *lane, lo, hi int) {
	a := &t.attention
	size := int(unsafe.Sizeof(*new(T)))
	keys := min(a.columns, a.tk)
	l.reserve(carved(a.rows*keys*size) + carved(4*keys) + carved(keys))
	w := attentionTile[T]{scores: carve[T](l, a.rows*keys), bits: carve[uint32](l, keys), seen: carve[uint8](l, keys)}
	for u := lo; u < hi; u++ {
		w.b, w.h, w.i0 = u/a.tiles/a.heads, u/a.tiles%a.heads, u%a.tiles*a.rows
		w.compute(t)
	}
}

// attentionTile is a tile of the forward pass: queries from i0 on of head h, and its scratch.
type attentionTile[T float] struct {
	b, h, i0 int
	masked   bool
	scores   []T
	bits     []uint32 // dropout's
	seen     []uint8  // the mask's
	rows     [attentionRows]softmaxRow
}

// compute goes over tiles of keys. After each, a row holds Σ e^(scale·(s−m))·v with m the largest score so far (Milakov & Gimelshein, "Online normalizer
// calculation for softmax", 2018); it is divided by the sum of the exponentials at the end.
func (w *attentionTile[T]) compute(t *task) {
	a := &t.attention
	i1 := min(w.i0+a.rows, a.tq)
	m := i1 - w.i0
	out, os := head[T](&t.c.Out[0], w.b, w.h, w.i0)
	if m == 1 {
		os = a.dv // a single row has any stride
	}
	for i := range m {
		w.rows[i] = softmaxRow{most: negInf}
	}
	from, to, masked := a.span(w.b, w.h, w.i0, i1)
	w.masked = masked
	if from == to { // no key is seen
		multiply(nil, m, a.dv, 0, w.scores, 1, 1, w.scores, 1, 1, out, os, false)
	}
	for j0 := from; j0 < to; j0 += a.columns {
		w.add(t, m, j0, min(a.columns, to-j0), out, os, j0 > from)
	}
	lse := slice[T](&t.c.Out[1])[(w.b*a.heads+w.h)*a.tq+w.i0:]
	for i := range m {
		r, o := &w.rows[i], out[i*os:][:a.dv]
		lse[i] = T(r.most*a.exponent() + math.Log(r.sum)) // −∞ where no key is seen
		inverse := T(0)
		if r.sum != 0 {
			inverse = T(1 / r.sum)
		}
		scaleLine(o, o, inverse)
	}
}

// add adds what the n keys from j0 on contribute to m queries' rows of out.
func (w *attentionTile[T]) add(t *task, m, j0, n int, out []T, os int, more bool) {
	a := &t.attention
	kv := w.h / (a.heads / a.kvHeads)
	q, qs := head[T](a.q, w.b, w.h, w.i0)
	k, ks := head[T](a.k, w.b, kv, j0)
	v, vs := head[T](a.v, w.b, kv, j0)
	multiply(nil, m, n, a.d, q, qs, 1, k, 1, ks, w.scores, n, false)
	for i := range m {
		s := w.scores[i*n:][:n]
		if f := w.exponentials(a, i, s, j0); f != 1 {
			o := out[i*os:][:a.dv]
			scaleLine(o, o, T(f))
		}
		if a.p > 0 {
			a.draw(w.bits[:n], t.c, w.b, w.h, w.i0+i, j0)
			keepLine(s, s, w.bits[:n], rng.KeepThreshold(a.p), keepScale[T](a.p))
		}
	}
	multiply(nil, m, a.dv, n, w.scores, n, 1, v, vs, 1, out, os, more)
}

// softmaxRow is what is known of a query after some keys: the largest product and the sum of e^(scale·(product−most)).
type softmaxRow struct{ most, sum float64 }

// exponent is what products are multiplied by in the exponential. A scale that is not positive is multiplied in before, so that the largest product
// is the largest score.
func (a *attention) exponent() float64 {
	if a.scale <= 0 {
		return 1
	}
	return a.scale
}

// exponentials turns the products q·k of the tile's query i and the keys from j0 on into e^(scale·(product−most)), 0 where the key is not seen, adds them to
// the row's sum, and returns what earlier results are to be multiplied by as most grows.
func (w *attentionTile[T]) exponentials(a *attention, i int, s []T, j0 int) (factor float64) {
	r := &w.rows[i]
	from, to := a.keysWithin(w.i0+i, j0, len(s))
	clear(s[:from])
	clear(s[to:])
	s = s[from:to]
	if a.scale <= 0 {
		scaleLine(s, s, T(a.scale))
	}
	if w.masked {
		hideLine(s, a.maskRow(w.seen, w.b, w.h, w.i0+i, j0+from, len(s)), T(negInf))
	}
	most, scale := float64(largest(s)), a.exponent()
	if most == negInf && !hasNaN(s) {
		clear(s)
		return 1
	}
	factor = 1
	if most > r.most {
		if r.sum != 0 {
			factor = math.Exp((r.most - most) * scale)
		}
		r.most = most
	}
	r.sum = r.sum*factor + expSumLine(s, s, T(r.most), T(scale))
	return factor
}

// keysWithin are the keys that query i sees among the n from j0 on, counted from there.
func (a *attention) keysWithin(i, j0, n int) (from, to int) {
	from, to = a.keys(i)
	to = max(0, min(to-j0, n))
	return min(max(0, from-j0), to), to
}

// draw draws the random bits of query i and the keys from j0 on: element ((h·Tq)+i)·Tk + j of sample b.
func (a *attention) draw(bits []uint32, c *backend.Call, b, h, i, j0 int) {
	rng.FillUint32(bits, c.Key, uint64(c.Ints[3]+b), uint64((h*a.tq+i)*a.tk+j0))
}

func hasNaN[T float](s []T) bool {
	for _, v := range s {
		if v != v {
			return true
		}
	}
	return false
}
