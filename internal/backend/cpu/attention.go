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
	attentionRows = 96  // queries at most: eight panels of the matrix product's kernel
	attentionKeys = 512 // keys at most in the forward pass
	gradientKeys  = 256 // keys at most in the backward pass, which has two matrices of scores
)

// attention is the geometry of an attention launch.
type attention struct {
	batch, heads, kvHeads, tq, tk, d, dv int
	q, k, v                              *backend.View
	mask                                 *backend.View // nil: none
	scale, p                             float64
	causal                               bool
	shift                                int // query i sees keys j ≤ i+shift
	rows, tiles                          int // queries per tile, tiles of queries
}

func (d *Device) attention(c *backend.Call, a *attention, maskAt int) {
	q, k, v := &c.In[0], &c.In[1], &c.In[2]
	*a = attention{q: q, k: k, v: v, scale: c.Floats[0], p: c.Floats[1], causal: c.Ints[0] != 0, shift: c.Ints[1] - c.Ints[2]}
	if q.NDim != 4 || k.NDim != 4 || v.NDim != 4 {
		d.fault(c, "q, k, v of shape %v, %v, %v, want four dims", q.Shape[:q.NDim], k.Shape[:k.NDim], v.Shape[:v.NDim])
	}
	a.batch, a.heads, a.tq, a.d = q.Shape[0], q.Shape[1], q.Shape[2], q.Shape[3]
	a.kvHeads, a.tk, a.dv = k.Shape[1], k.Shape[2], v.Shape[3]
	a.tiles = max(1, (a.tq+attentionRows-1)/attentionRows)
	a.rows = min(attentionRows, ((a.tq+a.tiles-1)/a.tiles+11)/12*12) // about equal, whole panels
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

// limit is the number of keys that query i may see.
func (a *attention) limit(i int) int {
	if !a.causal {
		return a.tk
	}
	return max(0, min(a.tk, i+a.shift+1))
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
	keys := min(attentionKeys, a.tk)
	l.reserve(carved(attentionRows*keys*size) + carved(4*keys))
	scores, bits := carve[T](l, attentionRows*keys), carve[uint32](l, keys)
	for u := lo; u < hi; u++ {
		attentionTile(t, u/a.tiles/a.heads, u/a.tiles%a.heads, u%a.tiles*a.rows, scores, bits)
	}
}

// attentionTile computes the queries from i0 on of one head, over tiles of keys. After each, a row holds Σ e^(scale·(s−m))·v with m the largest score so far
// (Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018); it is divided by the sum of the exponentials at the end.
func attentionTile[T float](t *task, b, h, i0 int, scores []T, bits []uint32) {
	a := &t.attention
	i1 := min(i0+a.rows, a.tq)
	m, seen, kv := i1-i0, a.limit(i1-1), h/(a.heads/a.kvHeads)
	q, qs := head[T](a.q, b, h, i0)
	out, os := head[T](&t.c.Out[0], b, h, i0)
	if m == 1 {
		os = a.dv // a single row has any stride
	}
	var rows [attentionRows]softmaxRow
	for i := range m {
		rows[i].most = negInf
	}
	for j0 := 0; j0 == 0 || j0 < seen; j0 += attentionKeys {
		n := min(attentionKeys, seen-j0)
		if n == 0 { // no key is seen
			multiply(nil, m, a.dv, 0, scores, 1, 1, scores, 1, 1, out, os, false)
			break
		}
		k, ks := head[T](a.k, b, kv, j0)
		v, vs := head[T](a.v, b, kv, j0)
		multiply(nil, m, n, a.d, q, qs, 1, k, 1, ks, scores, n, false)
		for i := range m {
			s := scores[i*n:][:n]
			if f := expScores(a, &rows[i], s, b, h, i0+i, j0); f != 1 {
				o := out[i*os:][:a.dv]
				scaleLine(o, o, T(f))
			}
			if a.p > 0 {
				a.draw(bits[:n], t.c, b, h, i0+i, j0)
				keepLine(s, s, bits[:n], rng.KeepThreshold(a.p), keepScale[T](a.p))
			}
		}
		multiply(nil, m, a.dv, n, scores, n, 1, v, vs, 1, out, os, j0 > 0)
	}
	lse := slice[T](&t.c.Out[1])[(b*a.heads+h)*a.tq+i0:]
	for i := range m {
		r, o := &rows[i], out[i*os:][:a.dv]
		lse[i] = T(r.most*a.exponent() + math.Log(r.sum)) // −∞ where no key is seen
		inverse := T(0)
		if r.sum != 0 {
			inverse = T(1 / r.sum)
		}
		scaleLine(o, o, inverse)
	}
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

// expScores turns the products q·k of query i and the keys from j0 on into e^(scale·(product−most)), 0 where the key is not seen, adds them to the
// row's sum, and returns what earlier results are to be multiplied by as most grows.
func expScores[T float](a *attention, r *softmaxRow, s []T, b, h, i, j0 int) (factor float64) {
	seen := max(0, min(a.limit(i)-j0, len(s)))
	clear(s[seen:])
	s = s[:seen]
	if a.scale <= 0 {
		scaleLine(s, s, T(a.scale))
	}
	if a.mask != nil {
		a.hide(b, h, i, j0, seen, func(j int) { s[j] = T(negInf) })
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

// hide calls f for the keys among n from j0 on that the mask hides from query i; f's argument counts from j0.
func (a *attention) hide(b, h, i, j0, n int, f func(j int)) {
	m := a.mask
	p := at(m, m.Offset+b*m.Stride[0]+h*m.Stride[1]+i*m.Stride[2]+j0*m.Stride[3])
	for j := range n {
		if *(*uint8)(unsafe.Add(p, j*m.Stride[3])) == 0 {
			f(j)
		}
	}
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
