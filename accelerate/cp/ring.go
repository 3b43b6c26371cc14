// SPDX-License-Identifier: Apache-2.0

package cp

import (
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Ring sends keys and values round the ranks (Liu et al. 2023): in each hop a rank attends to the chunks of one rank,
// and merges the result with the earlier ones by their log-sum-exps. It holds the keys and values of two ranks at most;
// its backward pass computes each partial result again. Sums are formed in the order in which keys arrive, so results
// agree with the other methods to rounding. Dropout of attention weights draws other numbers than for them, the same
// on any number of ranks.
var Ring = &Method{name: "ring", forward: ringForward, backward: ringBackward}

// never stands for −Inf, the log-sum-exp of a query that has seen no key, in differences.
const never = -1e30

// block is the keys and values of a chunk on their way round the ranks, with their gradients.
type block struct {
	k, v, mask, dk, dv *tensor.Tensor
	made               []*tensor.Tensor // those of k, v and mask that are freed when no rank waits for them
}

// hops calls visit for the blocks of each rank, by chunks, beginning with this rank's own, while the keys of these
// blocks continue to the next rank. Their gradients follow when visit has added to them; after the last hop they are
// back where they began. What came in one hop is freed after the next.
func (r *round) hops(c *tensor.Ctx, blocks []*block, back bool, visit func(chunk int, b *block)) error {
	l := r.layout
	for hop := range l.Size {
		from, last := l, hop == l.Size-1
		from.Rank = (l.Rank - hop + l.Size) % l.Size
		next := make([]block, len(blocks))
		var calls []*comm.Handle
		for i, b := range blocks {
			if next[i] = *b; !last {
				calls = append(calls, r.pass(c, &next[i].k, &next[i].v, &next[i].mask)...)
				next[i].made = []*tensor.Tensor{next[i].k, next[i].v}
				if m := next[i].mask; m != nil {
					next[i].made = append(next[i].made, m)
				}
			}
		}
		err := r.beside(calls, func() {
			for i, chunk := range from.Own() {
				visit(chunk, blocks[i])
			}
		})
		if err != nil {
			return err
		}
		var gone []*tensor.Tensor
		calls = nil
		for i, b := range blocks {
			if !last {
				gone = append(gone, b.made...)
			}
			if *b = next[i]; back && l.Size > 1 {
				gone = append(gone, b.dk, b.dv)
				calls = append(calls, r.pass(c, &b.dk, &b.dv)...)
			}
		}
		if err = ended(calls...); err != nil {
			return err
		}
		for _, t := range gone {
			t.Free()
		}
	}
	return nil
}

// beside calls f while calls are under way, and waits for them, also if f panics: until then the memory is theirs.
func (r *round) beside(calls []*comm.Handle, f func()) error {
	returned := false
	defer func() {
		if !returned {
			_ = ended(calls...) // what happened first is on its way
		}
	}()
	f()
	returned = true
	return ended(calls...)
}

// pass begins to send contiguous tensors to the next rank and to receive others in their place from the rank before.
func (r *round) pass(c *tensor.Ctx, ts ...**tensor.Tensor) (calls []*comm.Handle) {
	g, l := r.cfg.Group, r.layout
	for _, t := range ts {
		if *t == nil {
			continue
		}
		out := *t
		*t = tensor.Empty(c, out.DType(), out.Shape()...)
		calls = append(calls, g.Send(comm.OfTensor(c, out), (l.Rank+1)%l.Size, comm.Label("ring")),
			g.Recv(comm.OfTensor(c, *t), (l.Rank-1+l.Size)%l.Size, comm.Label("ring")))
	}
	return calls
}

// ringBlocks are those of this rank's chunks.
func (r *round) ringBlocks(c *tensor.Ctx, parts []*part) []*block {
	var list []*block
	for _, p := range parts {
		b := &block{k: p.k, v: p.v}
		if m := p.opt.Mask; m != nil {
			b.mask = tensor.Cast(c, m, tensor.Int32)
		}
		if r.layout.Size > 1 { // else nothing is sent
			for _, t := range []**tensor.Tensor{&b.k, &b.v, &b.mask} {
				if *t != nil && !(*t).IsContiguous() {
					*t = tensor.Clone(c, *t)
					b.made = append(b.made, *t)
				}
			}
		}
		list = append(list, b)
	}
	return list
}

// sees reports whether queries of p may see a key of a chunk, which has so many that are no padding.
func (r *round) sees(p *part, chunk int) bool {
	return r.real(chunk) > 0 && (!p.opt.Causal || chunk <= p.chunk)
}

// real is how many tokens of a chunk are no padding.
func (r *round) real(chunk int) int {
	length := r.layout.Length(r.tokens)
	return max(0, min(length, r.tokens-chunk*length))
}

// partial is the attention of p's queries q over the keys of one chunk.
func (r *round) partial(c *tensor.Ctx, p *part, chunk int, q, k, v, mask *tensor.Tensor) (out, lse *tensor.Tensor) {
	opt, length, n := p.opt, r.layout.Length(r.tokens), r.real(chunk)
	if opt.Dropout > 0 { // each pair of chunks draws its own
		c = c.WithRandomState(tensor.RandomState{Key: p.random.Key, Draws: p.random.Draws + uint64(chunk)})
	}
	opt.QueryOffset, opt.KeyOffset, opt.Mask = p.chunk*length, chunk*length, nil
	if mask != nil {
		opt.Mask = visibleTo(c.NoGrad(), p.opt.Mask, mask, n)
	}
	return tensor.Attention(c, q, tensor.Slice(c, k, 2, 0, n), tensor.Slice(c, v, 2, 0, n), opt)
}

// merged is a result over the keys so far, in float32: the output [B,H,L,D] and the log-sum-exp [B,H,L].
type merged struct{ out, lse *tensor.Tensor }

// merge merges a result over other keys, and frees what it was made of.
func (m *merged) merge(c *tensor.Ctx, result func(c *tensor.Ctx) (out, lse *tensor.Tensor)) {
	old := *m
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		out, lse := result(c)
		m.add(c, out, lse)
		return []*tensor.Tensor{m.out, m.lse}
	})
	if old.out != nil {
		old.out.Free()
		old.lse.Free()
	}
}

// add merges a result over other keys.
func (m *merged) add(c *tensor.Ctx, out, lse *tensor.Tensor) {
	out = tensor.Cast(c, out, lse.DType())
	if m.out == nil {
		m.out, m.lse = out, lse
		return
	}
	most := bounded(c, tensor.Maximum(c, m.lse, lse))
	sum := tensor.Add(c, tensor.Exp(c, tensor.Sub(c, m.lse, most)), tensor.Exp(c, tensor.Sub(c, lse, most)))
	total := tensor.Add(c, tensor.Log(c, sum), most)
	m.out = tensor.Add(c, weighted(c, m.out, m.lse, total), weighted(c, out, lse, total))
	m.lse = total
}

// bounded replaces −Inf.
func bounded(c *tensor.Ctx, lse *tensor.Tensor) *tensor.Tensor {
	return tensor.Maximum(c, lse, tensor.Full(c, lse.DType(), never))
}

// weighted is x by the share exp(lse−total) of its keys.
func weighted(c *tensor.Ctx, x, lse, total *tensor.Tensor) *tensor.Tensor {
	return tensor.Mul(c, x, tensor.Unsqueeze(c, share(c, lse, total), -1))
}

func share(c *tensor.Ctx, lse, total *tensor.Tensor) *tensor.Tensor {
	return tensor.Exp(c, tensor.Sub(c, lse, bounded(c, total)))
}

func ringForward(r *round, parts []*part) (err error) {
	r.root.NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		sums := make([]merged, len(parts))
		for _, p := range parts {
			if p.random = p.c.RandomState(); p.opt.Dropout > 0 {
				p.c.SkipDraws(r.layout.Chunks)
			}
		}
		err = r.hops(c, r.ringBlocks(c, parts), false, func(chunk int, b *block) {
			for i, p := range parts {
				if r.sees(p, chunk) {
					sums[i].merge(c, func(c *tensor.Ctx) (out, lse *tensor.Tensor) {
						return r.partial(c, p, chunk, p.q, b.k, b.v, b.mask)
					})
					r.keys += int64(p.q.Size(1))
				}
			}
		})
		for i, p := range parts {
			if err == nil {
				c := p.c.NoGrad()
				out, lse := tensor.Clone(c, sums[i].out), tensor.Clone(c, sums[i].lse)
				p.y, p.saved = tensor.Cast(c, out, p.q.DType()), []*tensor.Tensor{out, lse, p.q, p.k, p.v}
				if m := p.opt.Mask; m != nil {
					p.saved = append(p.saved, m)
				}
			}
		}
		return nil
	})
	return err
}

// ringBackward computes each partial result again. With its share w of the result, and delta = Σ dy·y of each query,
// its gradient is w·dy, and that of its log-sum-exp w·(Σ dy·out − delta).
func ringBackward(r *round, parts []*part) (err error) {
	r.root.NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		blocks := r.ringBlocks(c, parts)
		delta, dq := make([]*tensor.Tensor, len(parts)), make([]*tensor.Tensor, len(parts))
		for i, p := range parts {
			lse := p.saved[1].DType()
			dq[i] = tensor.Zeros(c, lse, p.q.Shape()...)
			blocks[i].dk, blocks[i].dv = tensor.Zeros(c, lse, p.k.Shape()...), tensor.Zeros(c, lse, p.v.Shape()...)
			delta[i] = dots(c, tensor.Cast(c, p.dy, lse), p.saved[0])
		}
		err = r.hops(c, blocks, true, func(chunk int, b *block) {
			for i, p := range parts {
				if r.sees(p, chunk) {
					r.partialBackward(c, p, chunk, b, delta[i], dq[i])
				}
			}
		})
		for i, p := range parts {
			p.dq = tensor.Cast(p.c, tensor.Clone(p.c, dq[i]), p.q.DType())
			p.dk = tensor.Cast(p.c, tensor.Clone(p.c, blocks[i].dk), p.k.DType())
			p.dv = tensor.Cast(p.c, tensor.Clone(p.c, blocks[i].dv), p.v.DType())
		}
		return nil
	})
	return err
}

// partialBackward adds the gradients of a partial result to dq and to those of the block.
func (r *round) partialBackward(c *tensor.Ctx, p *part, chunk int, b *block, delta, dq *tensor.Tensor) {
	c.EnableGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		in, host := []*tensor.Tensor{p.q.Boundary(), b.k.Boundary(), b.v.Boundary()}, c.NoGrad()
		out, lse := r.partial(c, p, chunk, in[0], in[1], in[2], b.mask)
		dy := tensor.Cast(host, p.dy, lse.DType())
		w := share(host, tensor.Detach(lse), p.saved[1])
		dout := tensor.Cast(host, tensor.Mul(host, dy, tensor.Unsqueeze(host, w, -1)), out.DType())
		apart := dots(host, dy, tensor.Cast(host, tensor.Detach(out), dy.DType()))
		dlse := tensor.Mul(host, w, tensor.Sub(host, apart, delta))
		grads := tensor.Backward(host, []*tensor.Tensor{out, lse}, []*tensor.Tensor{dout, dlse}, in)
		for i, into := range []*tensor.Tensor{dq, b.dk, b.dv} {
			tensor.AddInto(host, into, tensor.Cast(host, grads[i], into.DType()))
		}
		return nil
	})
}

// dots is Σ x·y along the last dim.
func dots(c *tensor.Ctx, x, y *tensor.Tensor) *tensor.Tensor {
	return tensor.Sum(c, tensor.Mul(c, x, y), []int{-1}, false)
}
