// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// AttentionOptions are the attributes of Attention. The zero value attends from every
// query to every key.
type AttentionOptions struct {
	// Scale multiplies the scores; 0 means 1/√D.
	Scale float64
	// Causal lets query i see key j only if KeyOffset+j ≤ QueryOffset+i. The offsets
	// are the positions of the first query and key in their sequence: a KV cache has
	// QueryOffset = number of cached keys.
	Causal                 bool
	QueryOffset, KeyOffset int
	// Window, if above 0, lets a query see only keys at positions less than Window from
	// its own: with Causal the last Window ones (Mistral's sliding window), otherwise as
	// many on both sides. Keys outside cost nothing.
	Window int
	// Mask is Bool, broadcasts to [B,H,Tq,Tk], and is true where a query may see a key.
	// Padding is a mask [B,1,1,Tk]: keys that it hides at the ends of a row cost nothing.
	Mask *Tensor
	// Bias is added to the scaled scores before the softmax: relative positions (T5, ALiBi). It has q's dtype and
	// broadcasts to [B,H,Tq,Tk]. Its gradient takes memory of that shape, and together with Mask it does so, too.
	Bias *Tensor
	// SoftCap, if above 0, makes SoftCap·tanh(s/SoftCap) of each scaled score s, before Mask and Bias (Gemma 2). GPUs
	// have no kernel for it: there attention is composed of other ops and stores all scores.
	SoftCap float64
	// Dropout is the probability with which attention weights are zeroed.
	Dropout float64
	// FirstHead is the number of q's first head among all heads of the layer, if ranks divide the heads: dropout then
	// draws the same numbers for these heads as without the division. CPUs only.
	FirstHead int
}

// Attention is scaled dot-product attention, softmax(scale·QKᵀ)V, as one op (Vaswani et
// al. 2017; computed as in FlashAttention, Dao et al. 2022). q is [B,H,Tq,D], k [B,Hkv,Tk,D],
// v [B,Hkv,Tk,Dv]; H must be a multiple of Hkv, and consecutive query heads share a key
// head (grouped queries). It returns out [B,H,Tq,Dv], whose memory is ordered [B,Tq,H,Dv] so that
// merging the heads is free, and the log-sum-exp of the scores [B,H,Tq], by which partial
// results over parts of the keys can be merged; both are differentiable. A query that
// sees no key has output 0 and log-sum-exp −Inf.
func Attention(c *Ctx, q, k, v *Tensor, opt AttentionOptions) (out, lse *Tensor) {
	const name = "Attention"
	c.autocast(name, &q, &k, &v)
	if opt.Bias != nil {
		bias := opt.Bias
		c.autocast(name, &bias)
		opt.Bias = bias
	}
	c.checkAttention(q, k, v, opt)
	q, k, v = c.dense(q), c.dense(k), c.dense(v)
	b, h, tq, tk, dv := q.shape[0], q.shape[1], q.shape[2], k.shape[2], v.shape[3]
	mask, bias := opt.Mask, opt.Bias
	switch {
	case bias != nil:
		if mask != nil {
			bias = Where(c, mask, bias, Scalar(c, bias.dtype, math.Inf(-1)))
		}
		bias = Expand(c, bias, b, h, tq, tk)
		mask = bias
	case mask != nil:
		view := mask.broadcastView([]int{b, h, tq, tk})
		m := mask.alias()
		m.ndim, m.shape, m.stride = view.NDim, view.Shape, view.Stride
		mask = m
	}
	a := c.attentionAttrs(q, opt)
	out = swap12(c.empty(name, q.dtype, b, tq, h, dv))
	lse = c.empty(name, statDType(q), b, h, tq)
	launched := []*Tensor{out, lse}
	ins := []*Tensor{q, k, v, bias}
	var kept *Tensor
	if c.records(ins) {
		kept = c.keptDropout(&a, q, k, v, mask)
	}
	if kept != nil {
		launched = append(launched, kept)
	}
	c.launchMulti(backend.OpAttention, &a, launched, q, k, v, mask)
	outT, lseT := out, lse
	c.record(name, []*Tensor{out, lse}, ins, []*Tensor{q, k, v, out, lse, mask, kept}, func(bk *Back) {
		dout, aside := bk.Grad(0), outT // or delta
		if dout == nil {
			dout = Zeros(bk.Ctx, outT.dtype, outT.Shape()...)
		}
		dout = bk.dense(dout)
		if g := bk.Grad(1); g != nil {
			prod := Mul(bk.Ctx, Cast(bk.Ctx, dout, lseT.dtype), Cast(bk.Ctx, Detach(outT), lseT.dtype))
			aside = Sub(bk.Ctx, Sum(bk.Ctx, prod, []int{-1}, false), g)
		}
		dq, dk, dv := bk.attentionGrads(q, k, v)
		outs := []*Tensor{dq, dk, dv}
		if bk.Need(3) {
			outs = append(outs, bk.empty(name, q.dtype, b, h, tq, tk))
			bk.Set(3, outs[3])
		}
		bk.launchMulti(backend.OpAttentionGrad, &a, outs, q, k, v, lseT, dout, aside, mask, kept)
		bk.Set(0, dq)
		bk.Set(1, dk)
		bk.Set(2, dv)
	})
	return out, lse
}

// keptDropout is memory for dropout's decisions, which the gradient of an attention reads; nil if it draws them again.
func (c *Ctx) keptDropout(a *attrs, ins ...*Tensor) *Tensor {
	keeper, ok := c.eng.dev.be.(backend.DropoutKeeper)
	if !ok || !(a.floats[1] > 0) {
		return nil
	}
	k := &c.eng.call
	k.Op, k.Ints, k.Floats, k.NIn, k.NOut = backend.OpAttention, a.ints, a.floats, 0, 0
	for _, t := range ins {
		if t != nil {
			k.In[k.NIn] = t.view()
			k.NIn++
		}
	}
	n := keeper.KeptDropout(k)
	if n == 0 {
		return nil
	}
	return c.empty("Attention", Int32, n)
}

// attentionGrads makes room for the gradients of Attention's operands. Where these are the thirds of one projection, or
// as many groups of its columns, the gradients lie in one matrix likewise, which Split takes as a whole; else each lies
// in the order of its operand.
func (b *Back) attentionGrads(q, k, v *Tensor) (dq, dk, dv *Tensor) {
	const name = "Attention"
	batch, tokens, keys := q.shape[0], q.shape[2], k.shape[2]
	wq, wk, wv := q.shape[1]*q.shape[3], k.shape[1]*k.shape[3], v.shape[1]*v.shape[3]
	width := wq + wk + wv
	beside := func(x *Tensor, at int) bool {
		return x.st == q.st && x.offset == q.offset+at &&
			[4]int(x.stride[:4]) == [4]int{tokens * width, x.shape[3], width, 1}
	}
	if tokens == keys && beside(q, 0) && beside(k, wq) && beside(v, wq+wk) {
		whole := b.empty(name, q.dtype, batch, tokens, width)
		of := func(x *Tensor) *Tensor {
			g := x.alias()
			g.st, g.gen, g.offset = whole.st, whole.gen, whole.offset+x.offset-q.offset
			return g
		}
		return of(q), of(k), of(v)
	}
	return b.emptyOrdered(name, q), b.emptyOrdered(name, k), b.emptyOrdered(name, v)
}

// emptyOrdered is an empty tensor of x's shape [B,H,T,D], in memory in the order [B,T,H,D] if x is.
func (c *Ctx) emptyOrdered(op string, x *Tensor) *Tensor {
	if x.stride[1] < x.stride[2] {
		return swap12(c.empty(op, x.dtype, x.shape[0], x.shape[2], x.shape[1], x.shape[3]))
	}
	return c.emptyLike(op, x)
}

func (c *Ctx) attentionAttrs(q *Tensor, opt AttentionOptions) attrs {
	if opt.Scale == 0 {
		opt.Scale = 1 / math.Sqrt(float64(q.shape[3]))
	}
	a := floats(opt.Scale, opt.Dropout, opt.SoftCap)
	if opt.Causal {
		a.ints[0] = 1
	}
	a.ints[1], a.ints[2], a.ints[3] = opt.QueryOffset, opt.KeyOffset, int(c.pos)
	a.ints[4], a.ints[5] = opt.Window, opt.FirstHead
	if opt.Dropout > 0 {
		a.key = c.nextKey("attention")
	}
	return a
}

// countsHeads reports whether the device's attention draws dropout by AttentionOptions.FirstHead: the CPU's kernels do,
// and neither those of GPUs nor an attention that is composed of other ops.
func (c *Ctx) countsHeads(dt DType) bool {
	return c.eng.dev.traits.Memory == 0 && c.eng.dev.be.Supports(backend.OpAttention, dt)
}

// dense makes the last dim of x have stride 1, copying only if it must.
func (c *Ctx) dense(x *Tensor) *Tensor {
	if x.stride[x.ndim-1] == 1 || x.shape[x.ndim-1] <= 1 && x.IsContiguous() {
		return x
	}
	return Contiguous(c, x)
}

func swap12(x *Tensor) *Tensor {
	y := x.alias()
	y.shape[1], y.shape[2] = x.shape[2], x.shape[1]
	y.stride[1], y.stride[2] = x.stride[2], x.stride[1]
	return y
}

func (c *Ctx) checkAttention(q, k, v *Tensor, opt AttentionOptions) {
	const name = "Attention"
	ins := []*Tensor{q, k, v}
	if c.noAttention != "" {
		c.fail(name, ins, "%s", c.noAttention)
	}
	for _, t := range ins {
		t.check(c, name)
		if t.ndim != 4 {
			c.fail(name, ins, "want operands of 4 dims [B H T D]")
		}
	}
	c.wantFloat(name, ins...)
	c.sameDType(name, ins...)
	switch {
	case k.shape[0] != q.shape[0] || v.shape[0] != q.shape[0]:
		c.fail(name, ins, "batch sizes differ")
	case k.shape[1] != v.shape[1] || k.shape[1] == 0 || q.shape[1]%k.shape[1] != 0:
		c.fail(name, ins, "want as many value heads as key heads, and query heads a multiple of them")
	case k.shape[3] != q.shape[3] || k.shape[2] != v.shape[2]:
		c.fail(name, ins, "want equal head sizes of q and k, and equal lengths of k and v")
	case opt.Window < 0:
		c.fail(name, ins, "window %d: want a number of keys, or 0 for all", opt.Window)
	case !(opt.Dropout >= 0 && opt.Dropout < 1):
		c.fail(name, ins, "dropout %g: want a probability in [0, 1)", opt.Dropout)
	case !(opt.SoftCap >= 0) || math.IsInf(opt.SoftCap, 0):
		c.fail(name, ins, "soft cap %g: want a positive number, or 0 for none", opt.SoftCap)
	case opt.FirstHead < 0:
		c.fail(name, ins, "first head %d: want none negative", opt.FirstHead)
	case opt.FirstHead > 0 && opt.Dropout > 0 && !c.countsHeads(q.dtype):
		c.fail(name, ins, "dropout %g of attention weights from head %d on: the kernels of %s count heads from 0: "+
			"want no dropout of attention weights where heads are divided among ranks", opt.Dropout, opt.FirstHead,
			c.eng.dev.Name())
	}
	shape := []int{q.shape[0], q.shape[1], q.shape[2], k.shape[2]}
	fits := func(m *Tensor, dt DType, what string) {
		if m == nil {
			return
		}
		m.check(c, name)
		ok := m.dtype == dt && m.ndim <= 4
		for d := 0; ok && d < m.ndim; d++ {
			s := m.shape[d]
			ok = s == 1 || s == shape[4-m.ndim+d]
		}
		if !ok {
			c.fail(name, []*Tensor{q, k, v, m}, "want a %s %s that broadcasts to %v", dt, what, shape)
		}
	}
	fits(opt.Mask, Bool, "mask")
	fits(opt.Bias, q.dtype, "bias")
}
