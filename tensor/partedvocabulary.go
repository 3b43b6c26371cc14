// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// PartedVocabulary is the tokens whose rows of a table, or whose scores, a rank has: at least one. Parts have Length
// tokens each; the last ones of the vocabulary may have fewer, or none.
type PartedVocabulary struct {
	Size   int // tokens of all ranks
	First  int // this rank's first one
	Length int
	// Gather puts t [n,m] of all ranks one below the other, on each rank: [ranks·n,m]. nil: one rank.
	Gather func(c *Ctx, t *Tensor) *Tensor
}

// span is which of the n features of a matrix are in part i.
func (s *PartedSum) span(i, n int) (start, length int) {
	if s.Vocabulary == nil {
		return i * (n / s.Parts), n / s.Parts
	}
	start = min(i*s.Vocabulary.Length, n)
	return start, min((i+1)*s.Vocabulary.Length, n) - start
}

// ownTokens are, of ids [n], the numbers of rows on this rank, instead for tokens of other ranks and where ignored is
// true, and which are its own. An id that no rank has is a fault where the rows are used.
func (v *PartedVocabulary) ownTokens(c *Ctx, ids *Tensor, rows, instead int, ignored *Tensor) (at, own *Tensor) {
	number := func(n int) *Tensor { return Scalar(c, ids.dtype, float64(n)) }
	in := func(start, stop int) *Tensor { return And(c, Ge(c, ids, number(start)), Lt(c, ids, number(stop))) }
	own = in(v.First, v.First+rows)
	others := Where(c, in(0, v.Size), number(instead), ids)
	if ignored != nil {
		others = Where(c, ignored, number(instead), others)
	}
	return Where(c, own, Affine(c, ids, 1, float64(-v.First)), others), own
}

// partedEmbedding is Embedding of a table of which this rank has some rows: the others are zeros here, and added by
// Ranks, so that each row is exact.
func partedEmbedding(c *Ctx, table, ids *Tensor) *Tensor {
	const name = "Embedding"
	s, plain := c.parted, c.NoGrad().plain()
	rows, width := table.shape[0], table.shape[1]
	flat := c.materialize(name, ids).reshaped([]int{ids.Numel()})
	at, own := s.Vocabulary.ownTokens(plain, flat, rows, 0, nil)
	y := c.empty(name, table.dtype, flat.shape[0], width)
	c.Scope(func(c *Ctx) []*Tensor {
		c = c.NoGrad().plain()
		found := c.emptyLike(name, y)
		c.launch(backend.OpEmbedding, found, table, at)
		CopyInto(c, y, Where(c, Unsqueeze(c, own, 1), found, Scalar(c, y.dtype, 0)))
		return nil
	})
	s.inFlight(c, func(begin func(*Tensor)) { begin(y) })
	out := y.reshaped(append(slices.Clone(ids.Shape()), width))
	c.record(name, []*Tensor{out}, []*Tensor{table}, []*Tensor{flat}, func(b *Back) {
		g := b.materialize(name, b.Grad(0)).reshaped(y.Shape())
		own := func(c *Ctx) *Tensor { // tokens of other ranks have a row behind the table
			at, _ := s.Vocabulary.ownTokens(c.NoGrad(), flat, rows, rows, nil)
			return at
		}
		if take := b.sparse(0); take != nil {
			take(own(b.Ctx), b.convert(name, g, table.GradDType()))
			return
		}
		b.separate(0, func(b *Back) { b.addLookup(name, table, own(b.Ctx), g, 1) }, flat, g)
	})
	return out
}

// RowMean is the mean of the rows of a table [V,C]: [C]. Of a table whose rows are divided among ranks it is that of
// all, with parts that are added in a tree.
func RowMean(c *Ctx, table *Tensor) *Tensor {
	const name = "RowMean"
	table.check(c, name)
	c.wantFloat(name, table)
	if table.ndim != 2 {
		c.fail(name, []*Tensor{table}, "want a table [V C]")
	}
	if c.parted == nil {
		return Mean(c, table, []int{0}, false)
	}
	if c.parted.Rowwise || c.parted.Vocabulary == nil {
		c.wantWhole(name, table)
	}
	c.autocast(name, &table)
	if table.dtype.IsHalf() {
		return Cast(c, RowMean(c, Cast(c, table, Float32)), table.dtype)
	}
	s, shape := c.parted, table.Shape()
	share, plain := 1/float64(s.Vocabulary.Size), c.NoGrad().plain()
	y := Affine(plain, s.add(plain, func(c *Ctx, i int) *Tensor {
		start, n := s.span(i, shape[0])
		if n == 0 {
			return Full(c, table.dtype, 0, shape[1])
		}
		return c.reduce(backend.OpSum, name, table.narrow(0, start, n), []int{0}, table.dtype).reshaped(shape[1:])
	}), share, 0)
	c.record(name, []*Tensor{y}, []*Tensor{table}, nil, func(b *Back) {
		g := Affine(b.NoGrad(), b.materialize(name, b.Grad(0)), share, 0)
		b.Set(0, Expand(b.Ctx, g, shape...))
	})
	return y
}

// partedChunk is chunk for the scores of some tokens of the vocabulary, of the rows x. z holds them, and is its own
// gradient afterwards. Ranks exchange, for each row, the log-sum-exp of each part and the score of the target. The sum
// of exponentials is added in a tree over all parts, and so is the gradient of x.
func (h *head) partedChunk(c *Ctx, lo int, z, x, dx, targets, losses *Tensor) {
	c = c.NoGrad().plain()
	s, v := h.parted, h.parted.Vocabulary
	ignored := Eq(c, targets, Scalar(c, targets.dtype, float64(h.ignore.ints[0])))
	at, own := v.ownTokens(c, targets, h.classes, 0, ignored)
	own = And(c, own, Not(c, ignored))
	none := Scalar(c, h.stat, 0)
	var figures []*Tensor
	for i := range s.Parts {
		start, n := s.span(i, h.classes)
		figures = append(figures, h.logSumExp(c, z.narrow(1, start, n)))
	}
	hit := Cast(c, Squeeze(c, Gather(c, z, 1, Unsqueeze(c, at, 1)), 1), h.stat)
	hit = Where(c, own, hit, none)
	all := Stack(c, 0, append(figures, hit)...)
	if v.Gather != nil {
		all = v.Gather(c, all)
	}
	all = Reshape(c, all, -1, s.Parts+1, z.shape[0]) // rank, part, row
	ranks := all.shape[0]
	score := Slice(c, all, 1, s.Parts, s.Parts+1)
	parts := Reshape(c, Slice(c, all, 1, 0, s.Parts), ranks*s.Parts, z.shape[0])
	most := Max(c, parts, 0, true)
	exps := Exp(c, Sub(c, parts, most))
	sum := treeSum(c, 0, ranks*s.Parts, func(c *Ctx, i int) *Tensor {
		return Affine(c, Slice(c, exps, 0, i, i+1), 1, 0)
	})
	lse := Squeeze(c, Add(c, Log(c, sum), most), 0)
	loss := Sub(c, lse, Reshape(c, Sum(c, score, []int{0}, false), -1)) // one rank's score, and zeros
	CopyInto(c, losses, Where(c, ignored, none, loss))
	if h.dx == nil && h.dw == nil && h.db == nil {
		return
	}
	hits := Where(c, own, Scalar(c, h.stat, -1), none)
	h.slope(c, z, Where(c, ignored, Scalar(c, h.stat, math.Inf(1)), lse), at, hits)
	h.seed(c, lo, z)
	h.uncap(c, z)
	params := func() { h.addParams(c, lo, z, x) }
	if dx == nil {
		params()
		return
	}
	CopyInto(c, dx, s.addDuring(c, params, func(c *Ctx, i int) *Tensor {
		start, n := s.span(i, h.classes)
		if n == 0 {
			return Full(c, h.stat, 0, dx.Shape()...)
		}
		return c.matmulAs(h.op, h.stat, z.narrow(1, start, n), h.weight.narrow(0, start, n))
	}))
}

// logSumExp is that of each row of z.
func (h *head) logSumExp(c *Ctx, z *Tensor) *Tensor {
	rows, n := z.shape[0], z.shape[1]
	if n == 0 || h.bias != nil { // a bias may be −Inf for all tokens of a part
		return LogSumExp(c, Cast(c, z, h.stat), []int{1}, false)
	}
	loss, lse := c.empty(h.op, h.stat, rows), c.empty(h.op, h.stat, rows)
	ignored := Full(c, h.targets.dtype, float64(h.ignore.ints[0]), rows)
	c.launchMulti(backend.OpCrossEntropy, &h.ignore, []*Tensor{loss, lse}, z, ignored)
	return lse
}

// slope makes z its own gradient: e to the power of z − lse, and hits more in the columns at. Where lse is Inf it is 0.
func (h *head) slope(c *Ctx, z, lse, at, hits *Tensor) {
	g := z
	if z.dtype != h.stat {
		g = Cast(c, z, h.stat)
	}
	c.elementwise(backend.OpSub, &attrs{}, g, g, Unsqueeze(c, lse, 1))
	c.elementwise(backend.OpExp, &attrs{}, g, g)
	columns := ints(1)
	c.launchAttrs(backend.OpScatterAdd, &columns, g, Unsqueeze(c, hits, 1), Unsqueeze(c, at, 1))
	if g != z {
		CopyInto(c, z, g)
	}
}
