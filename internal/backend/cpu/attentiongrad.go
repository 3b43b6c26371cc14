package cpu

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/rng"
)

func attentionGradKernel(d *Device, c *backend.Call) {
	t := d.begin(c)
	defer t.end()
	a := &t.attention
	d.attention(c, a, 6)
	a.columns /= 2
	rows := a.batch * a.heads * a.tq
	d.wantVector(c, &c.In[3], a.q.DType, rows, "log-sum-exp")
	d.wantAttentionOut(c, a, 4, "dout")
	if givesOut(c) {
		d.wantAttentionOut(c, a, 5, "out")
	} else {
		d.wantVector(c, &c.In[5], a.q.DType, rows, "delta")
	}
	for i := range 3 {
		d.wantGradOf(c, i)
	}
	switch a.q.DType {
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
	if v.DType != a.q.DType || v.NDim != 4 || [4]int(v.Shape[:4]) != [4]int{a.batch, a.heads, a.tq, a.dv} || a.dv > 1 && v.Stride[3] != 1 {
		d.fault(c, "%s is %s of shape %v, strides %v", what, v.DType, v.Shape[:v.NDim], v.Stride[:v.NDim])
	}
}

// wantGradOf faults unless output i has the shape and dtype of input i, with contiguous rows that do not overlap.
func (d *Device) wantGradOf(c *backend.Call, i int) {
	g, x := &c.Out[i], &c.In[i]
	if g.DType != x.DType || !equalShape(g, x) || g.Shape[3] > 1 && g.Stride[3] != 1 || g.Shape[2] > 1 && g.Stride[2] < g.Shape[3] {
		d.fault(c, "gradient %d is %s of shape %v, strides %v, want %s %v", i, g.DType, g.Shape[:g.NDim], g.Stride[:g.NDim], x.DType, x.Shape[:x.NDim])
	}
}

// attentionGradHeads computes all gradients of key heads lo to hi: the query heads of a group in order, their tiles of queries in order. The probabilities
// come again from the saved log-sum-exp (Dao et al., "FlashAttention", 2022):
//
//	P = exp(scale·QKᵀ − lse)   dV += (P∘Z)ᵀ dO   dS = scale·P∘(Z∘(dO Vᵀ) − delta)   dQ = dS K   dK += dSᵀ Q
//
// with Z the dropout mask over 1−p, and delta the sums of dO∘O along the last dim.
func attentionGradHeads[T float](t *task, l *lane, lo, hi int) {
	a, c := &t.attention, t.c
	size := int(unsafe.Sizeof(*new(T)))
	keys := min(a.columns, a.tk)
	room := a.rows * keys
	l.reserve(2*carved(room*size) + carved(4*room) + carved(keys) + carved(a.rows*size))
	g := gradTile[T]{probs: carve[T](l, room), grads: carve[T](l, room), bits: carve[uint32](l, room), seen: carve[uint8](l, keys), delta: carve[T](l, a.rows)}
	group := a.heads / a.kvHeads
	for u := lo; u < hi; u++ {
		g.b, g.kv = u/a.kvHeads, u%a.kvHeads
		clearHead[T](&c.Out[1], g.b, g.kv, 0, a.tk)
		clearHead[T](&c.Out[2], g.b, g.kv, 0, a.tk)
		for g.h = g.kv * group; g.h < (g.kv+1)*group; g.h++ {
			for g.i0 = 0; g.i0 < a.tq; g.i0 += a.rows {
				g.rows(t)
			}
		}
	}
}

// gradHead is head for a matrix that is written: a single row has any distance, which a product wants to be one of rows.
func gradHead[T float](v *backend.View, b, h, i int) (x []T, stride int) {
	x, stride = head[T](v, b, h, i)
	return x, max(stride, v.Shape[3])
}

// clearHead makes rows i0 to i1 of one sample and head zero.
func clearHead[T float](v *backend.View, b, h, i0, i1 int) {
	for i := i0; i < i1; i++ {
		x, _ := head[T](v, b, h, i)
		clear(x[:v.Shape[3]])
	}
}

// gradTile is a tile of the backward pass: queries from i0 on of head h, and its scratch.
type gradTile[T float] struct {
	b, kv, h, i0 int
	masked       bool
	probs, grads []T
	bits         []uint32 // dropout's
	seen         []uint8  // the mask's
	delta        []T
}

// rows adds what the tile's queries contribute to dk and dv, over tiles of keys in order, and writes their dq.
func (g *gradTile[T]) rows(t *task) {
	a := &t.attention
	i1 := min(g.i0+a.rows, a.tq)
	from, to, masked := a.span(g.b, g.h, g.i0, i1)
	g.masked = masked
	if from == to {
		clearHead[T](&t.c.Out[0], g.b, g.h, g.i0, i1)
	}
	g.deltas(t, i1-g.i0)
	for j0 := from; j0 < to; j0 += a.columns {
		g.tile(t, i1-g.i0, j0, min(a.columns, to-j0), j0 > from)
	}
}

// deltas computes delta of the tile's m queries, or takes it where it is given.
func (g *gradTile[T]) deltas(t *task, m int) {
	a, c := &t.attention, t.c
	if !givesOut(c) {
		copy(g.delta[:m], slice[T](&c.In[5])[(g.b*a.heads+g.h)*a.tq+g.i0:])
		return
	}
	if a.dv == 0 {
		clear(g.delta)
		return
	}
	dout, dos := head[T](&c.In[4], g.b, g.h, g.i0)
	out, os := head[T](&c.In[5], g.b, g.h, g.i0)
	for i := range m {
		g.delta[i] = T(dot(dout[i*dos:][:a.dv], out[i*os:][:a.dv]))
	}
}

// tile adds what m queries and the n keys from j0 on contribute to all gradients; to dq only if there is more in it already.
func (g *gradTile[T]) tile(t *task, m, j0, n int, more bool) {
	a, c := &t.attention, t.c
	dq, dqs := gradHead[T](&c.Out[0], g.b, g.h, g.i0)
	dk, dks := gradHead[T](&c.Out[1], g.b, g.kv, j0)
	dv, dvs := gradHead[T](&c.Out[2], g.b, g.kv, j0)
	q, qs := head[T](a.q, g.b, g.h, g.i0)
	k, ks := head[T](a.k, g.b, g.kv, j0)
	v, vs := head[T](a.v, g.b, g.kv, j0)
	dout, dos := head[T](&c.In[4], g.b, g.h, g.i0)
	lse := slice[T](&c.In[3])[(g.b*a.heads+g.h)*a.tq+g.i0:][:m]

	multiply(nil, m, n, a.d, q, qs, 1, k, 1, ks, g.probs, n, false)
	for i := range m {
		g.probabilities(a, g.probs[i*n:][:n], float64(lse[i]), g.i0+i, j0)
	}
	dropped := g.probs
	if a.p > 0 {
		dropped = g.grads // P∘Z; free until dO Vᵀ is computed
		for i := range m {
			z := g.bits[i*n:][:n]
			a.draw(z, c, g.b, g.h, g.i0+i, j0)
			keepLine(dropped[i*n:][:n], g.probs[i*n:][:n], z, rng.KeepThreshold(a.p), keepScale[T](a.p))
		}
	}
	multiply(nil, n, a.dv, m, dropped, 1, n, dout, dos, 1, dv, dvs, true)
	multiply(nil, m, n, a.dv, dout, dos, 1, v, 1, vs, g.grads, n, false)
	for i := range m {
		d := g.grads[i*n:][:n]
		if a.p > 0 {
			keepLine(d, d, g.bits[i*n:][:n], rng.KeepThreshold(a.p), keepScale[T](a.p))
		}
		scoreGradLine(d, g.probs[i*n:][:n], g.delta[i], T(a.scale))
	}
	multiply(nil, m, a.d, n, g.grads, n, 1, k, ks, 1, dq, dqs, more)
	multiply(nil, n, a.d, m, g.grads, 1, n, q, qs, 1, dk, dks, true)
}

// probabilities turns the products q·k of query i and the keys from j0 on into probabilities, 0 where the key is not seen.
func (g *gradTile[T]) probabilities(a *attention, s []T, lse float64, i, j0 int) {
	if lse == negInf {
		clear(s)
		return
	}
	from, to := a.keysWithin(i, j0, len(s))
	clear(s[:from])
	clear(s[to:])
	s = s[from:to]
	if a.scale != 0 {
		expLine(s, s, T(lse/a.scale), T(a.scale), 1)
	} else {
		p := T(math.Exp(-lse))
		for j := range s {
			s[j] = p
		}
	}
	if g.masked {
		hideLine(s, a.maskRow(g.seen, g.b, g.h, i, j0+from, len(s)), 0)
	}
}
