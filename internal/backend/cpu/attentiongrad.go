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

func attentionGradKernel(d *Device, c *backend.Call) {
	w := d.wideBias(c, 6)
	if w == nil {
		d.attentionGrad(c)
		return
	}
	defer d.putWidened(w)
	d.attentionGrad(&w.call)
	if c.NOut == 4 {
		d.convert(w, &c.Out[3], &w.call.Out[3])
	}
}

func (d *Device) attentionGrad(c *backend.Call) {
	t := d.begin(c)
	defer t.end()
	a := &t.attention
	d.attention(c, a, 6)
	rows := a.batch * a.heads * a.tq
	d.wantVector(c, &c.In[3], a.computed(), rows, "log-sum-exp")
	d.wantAttentionOut(c, a, 4, "dout")
	if givesOut(c) {
		d.wantAttentionOut(c, a, 5, "out")
	} else {
		d.wantVector(c, &c.In[5], a.computed(), rows, "delta")
	}
	for i := range 3 {
		d.wantGradOf(c, i)
	}
	if c.NOut == 4 {
		d.wantVector(c, &c.Out[3], a.computed(), rows*a.tk, "gradient of the bias")
	}
	if a.half {
		t.setHalf()
	}
	switch a.computed() {
	case dtype.Float32:
		t.do(a.batch*a.kvHeads, 1, attentionGradHeads[float32])
	case dtype.Float64:
		t.do(a.batch*a.kvHeads, 1, attentionGradHeads[float64])
	default:
		d.fault(c, "no kernel for %s", a.q.DType)
	}
}

// givesOut reports whether the call has the output, and not delta.
func givesOut(c *backend.Call) bool { return c.In[5].NDim == 4 }

// wantAttentionOut faults unless input i has the output's shape and dtype.
func (d *Device) wantAttentionOut(c *backend.Call, a *attention, i int, what string) {
	v := &c.In[i]
	if v.DType != a.q.DType || v.NDim != 4 || [4]int(v.Shape[:4]) != [4]int{a.batch, a.heads, a.tq, a.dv} || a.dv > 1 &&
		v.Stride[3] != 1 {
		d.fault(c, "%s is %s of shape %v, strides %v", what, v.DType, v.Shape[:v.NDim], v.Stride[:v.NDim])
	}
}

// wantGradOf faults unless output i has the shape and dtype of input i, with contiguous rows that do not overlap.
func (d *Device) wantGradOf(c *backend.Call, i int) {
	g, x := &c.Out[i], &c.In[i]
	if g.DType != x.DType || !backend.SameShape(g, x) || g.Shape[3] > 1 && g.Stride[3] != 1 || g.Shape[2] > 1 &&
		g.Stride[2] < g.Shape[3] {
		d.fault(c, "gradient %d is %s of shape %v, strides %v: want %s %v", i, g.DType, g.Shape[:g.NDim],
			g.Stride[:g.NDim], x.DType, x.Shape[:x.NDim])
	}
}

// attentionGradHeads computes all gradients of key heads lo to hi: their tiles of keys in order, for each the query
// heads of a group and their tiles of queries in order. The probabilities come again from the saved log-sum-exp (Dao et
// al., "FlashAttention", 2022):
//
//	P = exp(scale·QKᵀ − lse)   dV += (P∘Z)ᵀ dO   dS = scale·P∘(Z∘(dO Vᵀ) − delta)   dQ += dS K   dK += dSᵀ Q
//
// with Z the dropout mask over 1−p, and delta the sums of dO∘O along the last dim.
func attentionGradHeads[T float](t *task, ws *workspace, lo, hi int) {
	a := &t.attention
	size := int(unsafe.Sizeof(*new(T)))
	room, keys, group := a.rows*a.stride, a.padded(a.columns), a.heads/a.kvHeads
	capped := 0
	if a.cap > 0 {
		capped = room
	}
	wide, wideOut := a.wholePanels(a.d), a.wholePanels(a.dv)
	ws.reserve(2*carved(room*size) + carved(capped*size) +
		carved(a.panels(keys, a.d)*size) + carved(a.panels(keys, a.dv)*size) +
		carved(keys*wide*size) + carved(a.tq*wide*size) + carved(a.tq*wideOut*size) +
		2*carved(group*a.tq*size) + carved(4*keys) + carved(keys) +
		carved(a.halfRoom(a.tq, a.d)*size) + carved(a.halfRoom(a.tq, a.dv)*size) +
		carved(a.halfRoom(a.rows, a.dv)*size) + carved(a.halfRoom(group*a.tq, a.d)*size) +
		2*carved(a.halfRoom(keys, a.d)*size) + 2*carved(a.halfRoom(keys, a.dv)*size))
	g := gradHeads[T]{probs: carve[T](ws, room), grads: carve[T](ws, room), slopes: carve[T](ws, capped),
		keyPanels: carve[T](ws, a.panels(keys, a.d)), valuePanels: carve[T](ws, a.panels(keys, a.dv)),
		keyRows:   carve[T](ws, keys*wide),
		queryRows: carve[T](ws, a.tq*wide), doutRows: carve[T](ws, a.tq*wideOut), delta: carve[T](ws, group*a.tq),
		shift: carve[T](ws, group*a.tq)}
	g.bits, g.seen, g.prefetch = carve[uint32](ws, keys), carve[uint8](ws, keys), ws.prefetchList(a)
	r := &g.room
	r.query, r.dout = carve[T](ws, a.halfRoom(a.tq, a.d)), carve[T](ws, a.halfRoom(a.tq, a.dv))
	r.out, r.dq = carve[T](ws, a.halfRoom(a.rows, a.dv)), carve[T](ws, a.halfRoom(group*a.tq, a.d))
	r.keys, r.dk = carve[T](ws, a.halfRoom(keys, a.d)), carve[T](ws, a.halfRoom(keys, a.d))
	r.values, r.dv = carve[T](ws, a.halfRoom(keys, a.dv)), carve[T](ws, a.halfRoom(keys, a.dv))
	for u := lo; u < hi; u++ {
		g.b, g.kv = u/a.kvHeads, u%a.kvHeads
		if a.tq == 0 {
			g.noQueries(t, ws)
			continue
		}
		for i := range group {
			if c := t.c; c.NOut == 4 {
				clear(slice[T](&c.Out[3])[(g.b*a.heads+g.kv*group+i)*a.tq*a.tk:][:a.tq*a.tk])
			}
			if a.tk == 0 {
				g.gradOfQueries(t, i).clear(0, a.tq, a.d)
			}
			g.rowStatistics(t, ws, g.kv*group+i, g.delta[i*a.tq:][:a.tq], g.shift[i*a.tq:][:a.tq])
		}
		for j0 := 0; j0 < a.tk; j0 += a.columns {
			g.tileOfKeys(t, ws, j0)
		}
		for i := range group {
			storeHead(t, ws, g.gradOfQueries(t, i), &t.c.Out[0], g.b, g.kv*group+i, 0, a.tq)
		}
	}
}

// gradOfQueries is where the gradient of queries of the group's head i is added up.
func (g *gradHeads[T]) gradOfQueries(t *task, i int) matrix[T] {
	a := &t.attention
	return writeHead(t, g.room.dq[a.halfRoom(i*a.tq, a.d):], &t.c.Out[0], g.b, g.kv*(a.heads/a.kvHeads)+i, 0)
}

// gradHeads is the backward pass of a key head and its group of query heads.
type gradHeads[T float] struct {
	attentionHead[T]
	kv                     int
	probs, grads           []T // of a tile: scores, then probabilities; and gradients of these, then of scores
	slopes                 []T // of a tile: the derivatives of capped scores; empty: they are not capped
	keyPanels, valuePanels []T // of a tile of keys, transposed
	// where they do not lie together; as the queries of the head, and the gradients of their outputs:
	keyRows             []T
	queryRows, doutRows []T
	k, q, dout          operand[T]
	// rows of what is read and written, of half operands in room
	query, doutOf, dq, dk, dv matrix[T]
	room                      struct{ query, dout, out, dq, keys, dk, values, dv []T }
	delta, shift              []T // of each query: delta, and the log-sum-exp times log₂e
}

// rowStatistics computes what is known of the queries of head h.
func (g *gradHeads[T]) rowStatistics(t *task, ws *workspace, h int, delta, shift []T) {
	a, c := &t.attention, t.c
	first := (g.b*a.heads + h) * a.tq
	for i, lse := range slice[T](&c.In[3])[first:][:a.tq] {
		shift[i] = T(float64(lse) * math.Log2E)
		if float64(lse) == negInf { // no key is seen
			shift[i] = -lse
		}
	}
	g.doutOf = readHead(t, ws, g.room.dout, &c.In[4], g.b, h, 0, a.tq)
	clear(delta)
	if !givesOut(c) {
		copy(delta, slice[T](&c.In[5])[first:])
		return
	}
	for i0 := 0; i0 < a.tq && a.dv > 0; i0 += a.rows {
		i1 := min(i0+a.rows, a.tq)
		out := readHead(t, ws, g.room.out, &c.In[5], g.b, h, i0, i1)
		dotRows(delta[i0:i1], a.dv, g.doutOf.from(i0), g.doutOf.stride, out.x, out.stride)
	}
}

// tileOfKeys adds what the tile of keys from j0 on contributes to the gradients of the group's queries, and computes
// its own.
func (g *gradHeads[T]) tileOfKeys(t *task, ws *workspace, j0 int) {
	a, c := &t.attention, t.c
	n := min(a.columns, a.tk-j0)
	k := readHead(t, ws, g.room.keys, a.k, g.b, g.kv, j0, j0+n)
	v := readHead(t, ws, g.room.values, a.v, g.b, g.kv, j0, j0+n)
	packKeys(a, g.keyPanels, a.d, n, k.x, k.stride)
	packKeys(a, g.valuePanels, a.dv, n, v.x, v.stride)
	g.k = newOperand(a, g.keyRows, k.x, k.stride, n, a.d)
	g.dk = writeHead(t, g.room.dk, &c.Out[1], g.b, g.kv, j0)
	g.dv = writeHead(t, g.room.dv, &c.Out[2], g.b, g.kv, j0)
	group := a.heads / a.kvHeads
	for i := range group {
		g.set(a, g.b, g.kv*group+i)
		if j0 == 0 || group > 1 {
			g.query = readHead(t, ws, g.room.query, a.q, g.b, g.h, 0, a.tq)
			if group > 1 { // else rowStatistics did
				g.doutOf = readHead(t, ws, g.room.dout, &c.In[4], g.b, g.h, 0, a.tq)
			}
			g.q = newOperand(a, g.queryRows, g.query.x, g.query.stride, a.tq, a.d)
			g.dout = newOperand(a, g.doutRows, g.doutOf.x, g.doutOf.stride, a.tq, a.dv)
			g.dq = g.gradOfQueries(t, i)
		}
		for i0 := 0; i0 < a.tq; i0 += a.rows {
			g.prefetchNext(t, i0, j0, i)
			g.tile(t, i0, j0, n, i)
		}
	}
	storeHead(t, ws, g.dk, &c.Out[1], g.b, g.kv, j0, j0+n)
	storeHead(t, ws, g.dv, &c.Out[2], g.b, g.kv, j0, j0+n)
}

// tile adds what the queries from i0 on of the group's head, and the n keys from j0 on, contribute to all gradients.
// The first tile of its queries or of its keys overwrites what these have.
func (g *gradHeads[T]) tile(t *task, i0, j0, n, inGroup int) {
	a := &t.attention
	i1, end := min(i0+a.rows, a.tq), j0+n
	from, _ := a.keys(i0)
	_, to := a.keys(i1 - 1)
	from = min(max(from, g.from, j0), end)
	to = max(from, min(to, g.to, end))
	for i := i0; i < i1; {
		b := a.bandOfQueries(i, i1, from, to)
		if b.from < b.to {
			g.scores(t, b, i0, j0, from, to, inGroup*a.tq)
		} else if j0 == 0 {
			g.dq.clear(b.first, b.end, a.d)
		}
		i = b.end
	}
	fresh := i0 == 0 && inGroup == 0
	if fresh {
		g.clearKeys(a, j0, from)
		g.clearKeys(a, to, end)
	}
	for j := from; j < to; {
		b := a.bandOfKeys(j, to, i0, i1)
		if b.from < b.to {
			g.keyGrads(t, b, i0, j0, !fresh)
		} else if fresh {
			g.clearKeys(a, b.first, b.end)
		}
		j = b.end
	}
}

// clearKeys makes the gradients of keys from ≤ j < to zero, and of their values.
func (g *gradHeads[T]) clearKeys(a *attention, from, to int) {
	g.dk.clear(from, to, a.d)
	g.dv.clear(from, to, a.dv)
}

// noQueries makes all gradients of the head's keys and values zero.
func (g *gradHeads[T]) noQueries(t *task, ws *workspace) {
	a, c := &t.attention, t.c
	for j0 := 0; j0 < a.tk; j0 += a.columns {
		j1 := min(j0+a.columns, a.tk)
		g.dk = writeHead(t, g.room.dk, &c.Out[1], g.b, g.kv, j0)
		g.dv = writeHead(t, g.room.dv, &c.Out[2], g.b, g.kv, j0)
		g.clearKeys(a, j0, j1)
		storeHead(t, ws, g.dk, &c.Out[1], g.b, g.kv, j0, j1)
		storeHead(t, ws, g.dv, &c.Out[2], g.b, g.kv, j0, j1)
	}
}

// scores computes the probabilities of a band of queries and the gradients of its scores, and adds up those of the
// queries. All is 0 as far as a panel of keys from first to last, which are those of the tile, may reach beyond the
// band's own.
func (g *gradHeads[T]) scores(t *task, b band, i0, j0, first, last, stats int) {
	a, rows := &t.attention, b.end-b.first
	lo, hi := a.columnsOf(b, j0)
	at := (b.first - i0) * a.stride
	probs, grads := g.probs[at+lo:], g.grads[at+lo:]
	g.products(a, b, j0, g.query.from(b.first), g.query.stride, a.d, g.keyPanels, probs)
	g.products(a, b, j0, g.doutOf.from(b.first), g.doutOf.stride, a.dv, g.valuePanels, grads)
	var slopes []T
	if a.cap > 0 {
		slopes = g.slopes[at+lo:]
	}
	g.hide(a, b, j0, probs, slopes)
	shift, delta := g.shift[stats+b.first:][:rows], g.delta[stats+b.first:][:rows]
	scale := T(a.scale)
	if t.c.NOut == 4 { // the gradient of the bias is that of the scores
		scale = 1
	}
	if a.p > 0 {
		g.dropped(t, b, lo, hi, j0, probs, grads, shift, delta, scale)
	} else {
		scoreRows(probs, grads, hi-lo, a.stride, shift, delta, T(a.exponent()), scale)
	}
	for i := 0; i < rows && t.c.NOut == 4; i++ {
		row := grads[i*a.stride:][:hi-lo]
		copy(slice[T](&t.c.Out[3])[((g.b*a.heads+g.h)*a.tq+b.first+i)*a.tk+b.from:], row[b.from-j0-lo:][:b.to-b.from])
		scaleRow(row, row, T(a.scale), false)
	}
	for i := 0; i < rows && a.cap > 0; i++ {
		row := grads[i*a.stride:][:hi-lo]
		mulRow(row, row, slopes[i*a.stride:][:hi-lo])
	}
	if lo > first-j0 || hi < last-j0 {
		for i := range rows {
			for _, x := range [2][]T{g.probs[at+i*a.stride:], g.grads[at+i*a.stride:]} {
				clear(x[max(0, lo-a.height):lo])
				clear(x[hi:][:a.height])
			}
		}
	}
	g.k.multiply(rows, a.d, b.from-j0, b.to-b.from, gemm.Strided(grads[b.from-j0-lo:], a.stride, 1),
		gemm.InRows(g.dq.from(b.first), g.dq.stride), j0 > 0, g.prefetch)
}

// dropped is scoreRows with dropout: the mask is applied to the gradients before, and to the probabilities behind it.
func (g *gradHeads[T]) dropped(t *task, b band, lo, hi, j0 int, probs, grads, shift, delta []T, scale T) {
	a := &t.attention
	for i := range b.end - b.first {
		p, d := probs[i*a.stride:], grads[i*a.stride:]
		bits := g.draw(a, t.c, b.first+i, b.from, b.to-b.from)
		seenP, seenD := p[b.from-j0-lo:][:len(bits)], d[b.from-j0-lo:][:len(bits)]
		keepRow(seenD, seenD, bits, rng.KeepThreshold(a.p), keepScale[T](a.p))
		scoreRows(p, d, hi-lo, a.stride, shift[i:i+1], delta[i:i+1], T(a.exponent()), scale)
		keepRow(seenP, seenP, bits, rng.KeepThreshold(a.p), keepScale[T](a.p))
	}
}

// keyGrads computes what a band of keys gets from the queries from i0 on: their gradients and those of the values, and
// adds it if there is more already.
func (g *gradHeads[T]) keyGrads(t *task, b band, i0, j0 int, more bool) {
	a, rows, n := &t.attention, b.end-b.first, b.to-b.from
	at := (b.from-i0)*a.stride + b.first - j0
	dk, dv := gemm.InRows(g.dk.from(b.first), g.dk.stride), gemm.InRows(g.dv.from(b.first), g.dv.stride)
	g.dout.multiply(rows, a.dv, b.from, n, gemm.Strided(g.probs[at:], 1, a.stride), dv, more, g.prefetch)
	g.q.multiply(rows, a.d, b.from, n, gemm.Strided(g.grads[at:], 1, a.stride), dk, more, g.prefetch)
}
