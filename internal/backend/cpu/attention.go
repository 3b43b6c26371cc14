package cpu

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/rng"
)

// attentionRows is the number of queries whose scores are held at once, so that memory is linear in the number of keys.
const attentionRows = 64

// attention is the geometry of an attention launch.
type attention struct {
	batch, heads, kvHeads, tq, tk, d, dv int
	q, k, v                              *backend.View
	mask                                 *backend.View // nil: none
	scale, p                             float64
	causal                               bool
	shift                                int // query i sees keys j ≤ i+shift
	tiles                                int
}

func (d *Device) attention(c *backend.Call, a *attention, maskAt int) {
	q, k, v := &c.In[0], &c.In[1], &c.In[2]
	*a = attention{q: q, k: k, v: v, scale: c.Floats[0], p: c.Floats[1], causal: c.Ints[0] != 0, shift: c.Ints[1] - c.Ints[2]}
	if q.NDim != 4 || k.NDim != 4 || v.NDim != 4 {
		d.fault(c, "q, k, v of shape %v, %v, %v, want four dims", q.Shape[:q.NDim], k.Shape[:k.NDim], v.Shape[:v.NDim])
	}
	a.batch, a.heads, a.tq, a.d = q.Shape[0], q.Shape[1], q.Shape[2], q.Shape[3]
	a.kvHeads, a.tk, a.dv = k.Shape[1], k.Shape[2], v.Shape[3]
	a.tiles = (a.tq + attentionRows - 1) / attentionRows
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
	l.reserve(carved(attentionRows*a.tk*size) + carved(a.tk))
	scores, keep := carve[T](l, attentionRows*a.tk), carve[bool](l, a.tk)
	lse := slice[T](&t.c.Out[1])
	for u := lo; u < hi; u++ {
		b, h, i0 := u/a.tiles/a.heads, u/a.tiles%a.heads, u%a.tiles*attentionRows
		i1 := min(i0+attentionRows, a.tq)
		n := a.limit(i1 - 1) // keys that some query of the tile sees
		q, qs := head[T](a.q, b, h, i0)
		k, ks := head[T](a.k, b, h/(a.heads/a.kvHeads), 0)
		v, vs := head[T](a.v, b, h/(a.heads/a.kvHeads), 0)
		out, os := head[T](&t.c.Out[0], b, h, i0)
		if i1-i0 == 1 {
			os = a.dv // a single row has any stride
		}
		multiply(nil, i1-i0, n, a.d, q, qs, 1, k, 1, ks, scores, n, false)
		var inverse [attentionRows]T
		for i := i0; i < i1; i++ {
			s := scores[(i-i0)*n:][:n]
			sum, logSum := attentionSoftmax(a, s, b, h, i)
			lse[(b*a.heads+h)*a.tq+i] = T(logSum)
			if sum != 0 {
				inverse[i-i0] = T(1 / sum)
			}
			if a.p > 0 {
				a.fillKeep(keep[:n], t.c, b, h, i)
				applyKeep(s, s, keep[:n], keepScale[T](a.p))
			}
		}
		multiply(nil, i1-i0, a.dv, n, scores, n, 1, v, vs, 1, out, os, false)
		for i := range i1 - i0 {
			o := out[i*os:][:a.dv]
			scaleLine(o, o, inverse[i])
		}
	}
}

// attentionSoftmax turns the products q·k of query i into e^(scale·s − max), 0 where the key is not seen, and returns their sum and the row's log-sum-exp.
func attentionSoftmax[T float](a *attention, s []T, b, h, i int) (sum, lse float64) {
	seen := a.limit(i)
	clear(s[seen:])
	s = s[:seen]
	scale := a.scale
	if scale <= 0 { // else the largest product is the largest score
		for j := range s {
			s[j] *= T(scale)
		}
		scale = 1
	}
	if a.mask != nil {
		a.hide(b, h, i, seen, func(j int) { s[j] = T(negInf) })
	}
	m := largest(s)
	if float64(m) == negInf && !hasNaN(s) {
		clear(s)
		return 0, negInf
	}
	sum = expSumLine(s, s, m, T(scale))
	return sum, float64(m)*scale + math.Log(sum)
}

// hide calls f for the keys among the first n that the mask hides from query i.
func (a *attention) hide(b, h, i, n int, f func(j int)) {
	m := a.mask
	p := at(m, m.Offset+b*m.Stride[0]+h*m.Stride[1]+i*m.Stride[2])
	for j := range n {
		if *(*uint8)(unsafe.Add(p, j*m.Stride[3])) == 0 {
			f(j)
		}
	}
}

// fillKeep draws the dropout of query i's row: element ((h·Tq)+i)·Tk + j of sample b.
func (a *attention) fillKeep(keep []bool, c *backend.Call, b, h, i int) {
	drawKeep(keep, rng.KeepThreshold(a.p), c.Key, uint64(c.Ints[3]+b), uint64((h*a.tq+i)*a.tk))
}

func hasNaN[T float](s []T) bool {
	for _, v := range s {
		if v != v {
			return true
		}
	}
	return false
}
