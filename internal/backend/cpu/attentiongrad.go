package cpu

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

func attentionGradKernel(d *Device, c *backend.Call) {
	t := d.begin(c)
	defer t.end()
	a := &t.attention
	d.attention(c, a, 6)
	rows := a.batch * a.heads * a.tq
	d.wantVector(c, &c.In[3], a.q.DType, rows, "log-sum-exp")
	d.wantVector(c, &c.In[5], a.q.DType, rows, "delta")
	dout := &c.In[4]
	if dout.DType != a.q.DType || dout.NDim != 4 || [4]int(dout.Shape[:4]) != [4]int{a.batch, a.heads, a.tq, a.dv} || a.dv > 1 && dout.Stride[3] != 1 {
		d.fault(c, "dout is %s of shape %v, strides %v", dout.DType, dout.Shape[:dout.NDim], dout.Stride[:dout.NDim])
	}
	d.wantVector(c, &c.Out[0], a.q.DType, rows*a.d, "dq")
	d.wantVector(c, &c.Out[1], a.q.DType, a.batch*a.kvHeads*a.tk*a.d, "dk")
	d.wantVector(c, &c.Out[2], a.q.DType, a.batch*a.kvHeads*a.tk*a.dv, "dv")
	switch a.q.DType {
	case dtype.Float32:
		t.do(a.batch*a.kvHeads, 1, attentionGradHeads[float32])
	case dtype.Float64:
		t.do(a.batch*a.kvHeads, 1, attentionGradHeads[float64])
	default:
		d.fault(c, "no kernel for %s", a.q.DType)
	}
}

// attentionGradHeads computes all gradients of key heads lo to hi: the query heads of a group in order, their tiles of queries in order. The probabilities
// come again from the saved log-sum-exp (Dao et al., "FlashAttention", 2022):
//
//	P = exp(scale·QKᵀ − lse)   dV += (P∘Z)ᵀ dO   dS = scale·P∘(Z∘(dO Vᵀ) − delta)   dQ = dS K   dK += dSᵀ Q
//
// with Z the dropout mask over 1−p.
func attentionGradHeads[T float](t *task, l *lane, lo, hi int) {
	a, c := &t.attention, t.c
	size := int(unsafe.Sizeof(*new(T)))
	room := attentionRows * a.tk
	l.reserve(2*carved(room*size) + carved(room))
	probs, grads, keep := carve[T](l, room), carve[T](l, room), carve[bool](l, room)
	group := a.heads / a.kvHeads
	for u := lo; u < hi; u++ {
		b, kv := u/a.kvHeads, u%a.kvHeads
		dk, dv := row[T](&c.Out[1], u, a.tk*a.d), row[T](&c.Out[2], u, a.tk*a.dv)
		clear(dk)
		clear(dv)
		for h := kv * group; h < (kv+1)*group; h++ {
			for i0 := 0; i0 < a.tq; i0 += attentionRows {
				attentionGradTile(t, b, kv, h, i0, probs, grads, keep, dk, dv)
			}
		}
	}
}

// attentionGradTile adds what one tile of queries of head h contributes to dk and dv, and writes its dq.
func attentionGradTile[T float](t *task, b, kv, h, i0 int, probs, grads []T, keep []bool, dk, dv []T) {
	a, c := &t.attention, t.c
	i1 := min(i0+attentionRows, a.tq)
	m, n := i1-i0, a.limit(i1-1)
	first := (b*a.heads+h)*a.tq + i0
	dq := slice[T](&c.Out[0])[first*a.d:][:m*a.d]
	if n == 0 {
		clear(dq)
		return
	}
	q, qs := head[T](a.q, b, h, i0)
	k, ks := head[T](a.k, b, kv, 0)
	v, vs := head[T](a.v, b, kv, 0)
	dout, dos := head[T](&c.In[4], b, h, i0)
	lse, delta := slice[T](&c.In[3])[first:][:m], slice[T](&c.In[5])[first:][:m]

	multiply(nil, m, n, a.d, q, qs, 1, k, 1, ks, probs, n, false)
	for i := range m {
		attentionProbs(a, probs[i*n:][:n], float64(lse[i]), b, h, i0+i)
	}
	dropped := probs
	if a.p > 0 {
		dropped = grads // P∘Z; free until dO Vᵀ is computed
		for i := range m {
			z := keep[i*n:][:n]
			a.fillKeep(z, c, b, h, i0+i)
			applyKeep(dropped[i*n:][:n], probs[i*n:][:n], z, keepScale[T](a.p))
		}
	}
	multiply(nil, n, a.dv, m, dropped, 1, n, dout, dos, 1, dv, a.dv, true)
	multiply(nil, m, n, a.dv, dout, dos, 1, v, 1, vs, grads, n, false)
	scale := T(a.scale)
	for i := range m {
		p, g := probs[i*n:][:n], grads[i*n:][:n]
		if a.p > 0 {
			applyKeep(g, g, keep[i*n:][:n], keepScale[T](a.p))
		}
		scoreGradLine(g, p, delta[i], scale)
	}
	multiply(nil, m, a.d, n, grads, n, 1, k, ks, 1, dq, a.d, false)
	multiply(nil, n, a.d, m, grads, 1, n, q, qs, 1, dk, a.d, true)
}

// attentionProbs turns the products q·k of query i into probabilities, 0 where the key is not seen.
func attentionProbs[T float](a *attention, s []T, lse float64, b, h, i int) {
	if lse == negInf {
		clear(s)
		return
	}
	seen := a.limit(i)
	clear(s[seen:])
	s = s[:seen]
	if a.scale != 0 {
		expLine(s, s, T(lse/a.scale), T(a.scale), 1)
	} else {
		p := T(math.Exp(-lse))
		for j := range s {
			s[j] = p
		}
	}
	if a.mask != nil {
		a.hide(b, h, i, seen, func(j int) { s[j] = 0 })
	}
}
