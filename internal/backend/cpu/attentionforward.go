// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels/gemm"
	"github.com/lockstep-ml/lockstep/internal/rng"
)

func attentionKernel(d *Device, c *backend.Call) {
	if w := d.wideBias(c, 3); w != nil {
		defer d.putWidened(w)
		c = &w.call
	}
	t := d.begin(c)
	defer t.end()
	a := &t.attention
	d.attention(c, a, 3)
	out := &c.Out[0]
	if out.DType != c.In[0].DType || out.NDim != 4 || [4]int(out.Shape[:4]) != [4]int{a.batch, a.heads, a.tq, a.dv} ||
		a.dv > 1 && out.Stride[3] != 1 || a.tq > 1 && out.Stride[2] < a.dv {
		d.fault(c, "output is %s of shape %v, strides %v", out.DType, out.Shape[:out.NDim], out.Stride[:out.NDim])
	}
	d.wantVector(c, &c.Out[1], a.computed(), a.batch*a.heads*a.tq, "log-sum-exp")
	if a.half {
		t.setHalf()
	}
	switch a.computed() {
	case dtype.Float32:
		t.do(a.batch*a.heads*a.parts, 1, attentionParts[float32])
	case dtype.Float64:
		t.do(a.batch*a.heads*a.parts, 1, attentionParts[float64])
	default:
		d.fault(c, "no kernel for %s", out.DType)
	}
}

// attentionParts computes parts lo to hi of the queries of all heads.
func attentionParts[T float](t *task, ws *workspace, lo, hi int) {
	a := &t.attention
	size := int(unsafe.Sizeof(*new(T)))
	queries := (a.tiles + a.parts - 1) / a.parts * a.rows
	keys := a.padded(a.columns)
	wide := a.wholePanels(a.dv)
	ws.reserve(carved(a.rows*a.stride*size) + carved(a.panels(keys, a.d)*size) + carved(keys*wide*size) +
		2*carved(queries*size) + carved(8*queries) + carved(4*keys) + carved(keys) +
		carved(a.halfRoom(queries, a.d)*size) + carved(a.halfRoom(queries, a.dv)*size) +
		carved(a.halfRoom(keys, a.d)*size) + carved(a.halfRoom(keys, a.dv)*size))
	w := attentionPart[T]{scores: carve[T](ws, a.rows*a.stride), panels: carve[T](ws, a.panels(keys, a.d)),
		values: carve[T](ws, keys*wide),
		most:   carve[T](ws, queries), factor: carve[T](ws, queries), sum: carve[float64](ws, queries)}
	w.bits, w.seen, w.prefetch = carve[uint32](ws, keys), carve[uint8](ws, keys), ws.prefetchList(a)
	w.queryRoom, w.outRoom = carve[T](ws, a.halfRoom(queries, a.d)), carve[T](ws, a.halfRoom(queries, a.dv))
	w.keyRoom, w.valueRoom = carve[T](ws, a.halfRoom(keys, a.d)), carve[T](ws, a.halfRoom(keys, a.dv))
	for u := lo; u < hi; u++ {
		w.unit = a.unit(u)
		w.set(a, w.sample, w.head)
		w.compute(t, ws)
	}
}

// attentionPart is the forward pass of some queries of a head, from i0 to i1.
type attentionPart[T float] struct {
	attentionHead[T]
	unit
	end            int // the key before which what its queries see ends
	scores         []T
	panels, values []T // keys of a tile, transposed, and values, where they do not lie together
	// the largest score of each query so far, times log₂e, and what results are to be multiplied by as it grows
	most, factor []T
	sum          []float64 // of the exponentials of each query so far
	query, out   matrix[T]
	// of half operands, widened: the part's queries and results, and a tile's keys and values
	queryRoom, outRoom, keyRoom, valueRoom []T
}

// compute goes over tiles of keys. After each, a row holds Σ e^(s−m)·v with m the largest score so far (Milakov &
// Gimelshein, "Online normalizer calculation for softmax", 2018); it is divided by the sum of the exponentials at the
// end.
func (w *attentionPart[T]) compute(t *task, ws *workspace) {
	a, m := &t.attention, w.i1-w.i0
	if m == 0 {
		return
	}
	fill(w.most[:m], T(negInf))
	clear(w.sum[:m])
	w.query = readHead(t, ws, w.queryRoom, a.q, w.b, w.h, w.i0, w.i1)
	w.out = writeHead(t, w.outRoom, &t.c.Out[0], w.b, w.h, w.i0)
	from, _ := a.keys(w.i0)
	_, to := a.keys(w.i1 - 1)
	from, to = max(from, w.from), min(to, w.to)
	if from >= to {
		w.out.clear(w.i0, w.i1, a.dv)
	}
	first := from / a.columns * a.columns
	w.end = to
	for j0 := first; j0 < to; j0 += a.columns {
		w.keys(t, ws, j0, j0 > first)
	}
	lse := slice[T](&t.c.Out[1])[(w.b*a.heads+w.h)*a.tq+w.i0:][:m]
	for i, sum := range w.sum[:m] {
		lse[i] = T(float64(w.most[i])*math.Ln2 + math.Log(sum)) // −∞ where no key is seen
		w.factor[i] = 0
		if sum != 0 {
			w.factor[i] = T(1 / sum)
		}
	}
	scaleRows(w.out.x, a.dv, w.out.stride, w.factor[:m])
	storeHead(t, ws, w.out, &t.c.Out[0], w.b, w.h, w.i0, w.i1)
}

// keys adds what the tile of keys from j0 on contributes to what others did, or overwrites the output if there were no
// more.
func (w *attentionPart[T]) keys(t *task, ws *workspace, j0 int, more bool) {
	a := &t.attention
	from, to := max(j0, w.from), min(j0+a.columns, w.to)
	kv := w.h / (a.heads / a.kvHeads)
	k := readHead(t, ws, w.keyRoom, a.k, w.b, kv, j0, to)
	v := readHead(t, ws, w.valueRoom, a.v, w.b, kv, j0, to)
	packKeys(a, w.panels, a.d, to-j0, k.x, k.stride)
	values := newOperand(a, w.values, v.x, v.stride, to-j0, a.dv)
	for i0 := w.i0; i0 < w.i1; i0 += a.rows {
		w.prefetchNext(t, i0, j0)
		for i, i1 := i0, min(i0+a.rows, w.i1); i < i1; {
			b := a.bandOfQueries(i, i1, from, to)
			if b.from < b.to {
				w.add(t, b, j0, values, more)
			} else if !more {
				w.out.clear(b.first, b.end, a.dv)
			}
			i = b.end
		}
	}
}

// add adds what values, from key j0 on, contribute to a band's queries.
func (w *attentionPart[T]) add(t *task, b band, j0 int, values operand[T], more bool) {
	a, rows, at := &t.attention, b.end-b.first, b.first-w.i0
	lo, hi := a.columnsOf(b, j0)
	w.products(a, b, j0, w.query.from(b.first), w.query.stride, a.d, w.panels, w.scores)
	w.hide(a, b, j0, w.scores, nil)
	softmaxStep(w.scores, hi-lo, a.stride, w.most[at:][:rows], w.sum[at:][:rows], w.factor, T(a.exponent()))
	out, os := w.out.from(b.first), w.out.stride
	if more {
		scaleRows(out, a.dv, os, w.factor[:rows])
	}
	seen := w.scores[b.from-j0-lo:]
	for i := 0; i < rows && a.p > 0; i++ {
		row := seen[i*a.stride:][:b.to-b.from]
		keepRow(row, row, w.draw(a, t.c, b.first+i, b.from, len(row)), rng.KeepThreshold(a.p), keepScale[T](a.p))
	}
	values.multiply(rows, a.dv, b.from-j0, b.to-b.from, gemm.Strided(seen, a.stride, 1), gemm.InRows(out, os), more,
		w.prefetch)
}
