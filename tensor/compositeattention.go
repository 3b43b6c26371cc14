// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// attention composes OpAttention: it holds all scores.
func (m *composer) attention(k *backend.Call) {
	group := groupOf(k)
	s, _ := m.scores(k, k.In[3:max(3, k.NIn)])
	most := m.bounded(m.rows(backend.OpMax, s))
	e := m.of(backend.OpExp, nil, m.sub(s, most))
	sum := m.rows(backend.OpSum, e)
	p := m.of(backend.OpDiv, nil, e, m.of(backend.OpMaximum, nil, sum, m.number(1e-30)))
	lse := m.add(m.of(backend.OpLog, nil, sum), most)
	lse.NDim--
	m.to(k.Out[1], backend.OpCopy, nil, lse)
	out := m.product(byGroup(m.dropped(k, p), group), shared(k.In[2], group))
	m.to(byGroup(k.Out[0], group), backend.OpCopy, nil, out)
}

// attentionGrad composes OpAttentionGrad.
func (m *composer) attentionGrad(k *backend.Call) {
	group := groupOf(k)
	q, key, v, dout := k.In[0], k.In[1], k.In[2], k.In[4]
	s, capped := m.scores(k, k.In[6:max(6, k.NIn)])
	p := m.of(backend.OpExp, nil, m.sub(s, m.bounded(lastOne(k.In[3]))))
	var delta backend.View
	if k.In[5].NDim == 4 {
		delta = m.rows(backend.OpSum, m.mul(dout, k.In[5]))
	} else {
		delta = lastOne(k.In[5])
	}
	dv := m.product(turned(byGroup(m.dropped(k, p), group)), byGroup(dout, group))
	dp := m.product(byGroup(dout, group), turned(shared(v, group)))
	ds := m.mul(p, m.sub(m.dropped(k, joined(dp, p)), delta))
	whole := m.affine(ds, k.Floats[0], 0)
	if softCap := k.Floats[2]; softCap > 0 {
		t := m.affine(capped, 1/softCap, 0)
		whole = m.mul(whole, m.affine(m.mul(t, t), -1, 1))
	}
	scaled := byGroup(whole, group)
	dq := m.product(scaled, shared(key, group))
	dk := m.product(turned(scaled), byGroup(q, group))
	m.to(byGroup(k.Out[0], group), backend.OpCopy, nil, dq)
	m.to(byGroup(k.Out[1], 1), backend.OpCopy, nil, m.along(backend.OpSum, dk, 2))
	m.to(byGroup(k.Out[2], 1), backend.OpCopy, nil, m.along(backend.OpSum, dv, 2))
	if k.NOut > 3 {
		m.copyTo(k.Out[3], ds)
	}
}

// scores are scale·QKᵀ, soft capped if the call says so, and those with −Inf where a key is not seen: [B,H,Tq,Tk].
func (m *composer) scores(k *backend.Call, mask []backend.View) (seen, all backend.View) {
	q, key, group := k.In[0], k.In[1], groupOf(k)
	shape := []int{q.Shape[0], q.Shape[1], q.Shape[2], key.Shape[2]}
	full := m.memory(m.dt, shape)
	s := m.affine(joined(m.product(byGroup(q, group), turned(shared(key, group))), full), k.Floats[0], 0)
	if softCap := k.Floats[2]; softCap > 0 {
		s = m.affine(m.of(backend.OpTanh, nil, m.affine(s, 1/softCap, 0)), softCap, 0)
	}
	all = s
	if len(mask) > 0 {
		if mask[0].DType == Bool {
			s = m.seen(mask[0], s)
		} else {
			s = m.add(s, mask[0])
		}
	}
	if k.Ints[0] != 1 && k.Ints[4] <= 0 {
		return s, all
	}
	i, j := m.memory(m.dt, shape[2:3]), m.memory(m.dt, shape[3:4])
	m.to(i, backend.OpArange, []float64{float64(k.Ints[1]), 1})
	m.to(j, backend.OpArange, []float64{float64(k.Ints[2]), 1})
	rows := m.add(repeated(column(i), shape[2:]), m.number(0))
	if k.Ints[0] == 1 {
		s = m.seen(m.of(backend.OpLe, nil, repeated(j, shape[2:]), rows), s)
	}
	if k.Ints[4] > 0 {
		apart := m.of(backend.OpAbs, nil, m.sub(rows, j))
		s = m.seen(m.of(backend.OpLt, nil, apart, m.number(float64(k.Ints[4]))), s)
	}
	return s, all
}

// seen is s where the mask is true, else −Inf.
func (m *composer) seen(mask, s backend.View) backend.View {
	shape := s.Shape[:s.NDim]
	out := m.memory(m.dt, shape)
	m.to(out, backend.OpWhere, nil, repeated(mask, shape), s, repeated(m.number(math.Inf(-1)), shape))
	return out
}

// number is one element, which repeats to any shape.
func (m *composer) number(x float64) backend.View {
	v := m.memory(m.dt, []int{1})
	m.to(v, backend.OpFill, []float64{x})
	return v
}

// bounded replaces −Inf by the smallest number, so that differences from it are no NaN.
func (m *composer) bounded(x backend.View) backend.View {
	least := -math.MaxFloat64
	if m.dt == Float32 {
		least = -math.MaxFloat32
	}
	return m.of(backend.OpMaximum, nil, x, m.number(least))
}

// dropped is p after the call's dropout.
func (m *composer) dropped(k *backend.Call, p backend.View) backend.View {
	if k.Floats[1] == 0 {
		return p
	}
	out := m.memory(m.dt, p.Shape[:p.NDim])
	call := &m.c.eng.call
	*call = backend.Call{Op: backend.OpDropout, NOut: 1, NIn: 1, Out: [4]backend.View{out}, In: [8]backend.View{p},
		Key: k.Key}
	call.Floats[0], call.Ints[0] = k.Floats[1], k.Ints[3]
	m.c.submit(call)
	return out
}

// product is x·y over all batch dims.
func (m *composer) product(x, y backend.View) backend.View {
	shape := append([]int(nil), x.Shape[:x.NDim]...)
	shape[x.NDim-1] = y.Shape[y.NDim-1]
	out := m.memory(m.dt, shape)
	m.ints(out, backend.OpMatMul, 0, x, y)
	return out
}

// groupOf is the number of query heads of a head of keys.
func groupOf(k *backend.Call) int { return max(1, k.In[0].Shape[1]/max(1, k.In[1].Shape[1])) }

// byGroup shows [B,H,T,D] as [B,H/group,group,T,D].
func byGroup(v backend.View, group int) backend.View {
	g := v
	g.NDim = 5
	g.Shape[1], g.Shape[2], g.Shape[3], g.Shape[4] = v.Shape[1]/group, group, v.Shape[2], v.Shape[3]
	g.Stride[1], g.Stride[2], g.Stride[3], g.Stride[4] = v.Stride[1]*group, v.Stride[1], v.Stride[2], v.Stride[3]
	return g
}

// shared shows keys or values [B,Hkv,T,D] as [B,Hkv,group,T,D], the same for each of a group.
func shared(v backend.View, group int) backend.View {
	s := byGroup(v, 1)
	s.Shape[2], s.Stride[2] = group, 0
	return s
}

// joined shows a contiguous [B,Hkv,group,Tq,Tk] in the shape of a contiguous [B,H,Tq,Tk].
func joined(v, like backend.View) backend.View {
	j := like
	j.Buf, j.Offset = v.Buf, v.Offset
	return j
}

// turned swaps the last two dims.
func turned(v backend.View) backend.View {
	a, b := v.NDim-2, v.NDim-1
	v.Shape[a], v.Shape[b] = v.Shape[b], v.Shape[a]
	v.Stride[a], v.Stride[b] = v.Stride[b], v.Stride[a]
	return v
}

// lastOne shows v with one more dim, of size 1.
func lastOne(v backend.View) backend.View {
	v.Shape[v.NDim], v.Stride[v.NDim] = 1, 1
	v.NDim++
	return v
}
