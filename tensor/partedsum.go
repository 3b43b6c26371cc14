// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// PartedSum says how a linear layer computes a sum that tensor parallelism divides among ranks. The sum is cut into
// parts of equal length. Each part is a separate product, and the parts are added in a binary tree. So the bits do not
// depend on how many ranks share the parts: neighbours at distance 1, 2, 4, … are added, and one without a neighbour is
// carried up, as ranks are in comm.Group.AllReduce. Parts of half types are added in float32 and rounded once.
type PartedSum struct {
	// Rowwise divides the inputs' features: x·w is the sum of x's columns times the rows of w. The bias is added to the
	// whole sum. Otherwise the layer is colwise and divides the outputs' features: the gradient of x is a sum over
	// them.
	Rowwise bool
	// Parts is how many parts this rank has, at least 1.
	Parts int
	// Fused is the number of matrices that the outputs of a colwise layer concatenate, such as those of queries, keys
	// and values. Each is cut into Parts; 0 means 1.
	Fused int
	// Vocabulary says which tokens this rank has, of a table of embeddings, and of a colwise layer that scores tokens,
	// whose outputs' features they are: for Embedding and LinearCrossEntropy, and for a Linear whose features do not
	// divide. Else nil.
	Vocabulary *PartedVocabulary
	// Ranks begins to add t, which is contiguous, over the ranks, in place, and returns a function that waits for the
	// sum. t is that of the ranks until it returns or panics. nil: this rank has all parts.
	Ranks func(c *Ctx, t *Tensor) (wait func())
}

// WithPartedSum returns a context in which linear layers (Linear, AddMM, and MatMul with a matrix on the right) compute
// as s says; nil as usual. Sub ends it. Other ops that sum over a weight's rows or columns panic in this context.
func (c *Ctx) WithPartedSum(s *PartedSum) *Ctx {
	if s != nil && (s.Parts < 1 || s.Fused < 0 || s.Rowwise && s.Fused > 1 || s.Vocabulary != nil && s.Fused > 1) {
		panic(&Error{Op: "WithPartedSum", Where: c.where(), Msg: fmt.Sprintf("%d parts of %d fused matrices, "+
			"rowwise %v: want at least 1 part, and fused matrices in colwise layers only", s.Parts, s.Fused,
			s.Rowwise)})
	}
	d := *c
	d.parted = s
	return &d
}

// wantWhole panics for an op that cannot compute with a part of its weight.
func (c *Ctx) wantWhole(op string, ins ...*Tensor) {
	if c.parted != nil {
		c.fail(op, ins, "its weight is divided among ranks: want a linear layer, or a weight that every rank has")
	}
}

// dividesOutputs reports whether this rank has a part of the outputs' features, which are those of one matrix.
func (s *PartedSum) dividesOutputs() bool {
	return s != nil && !s.Rowwise && s.Fused <= 1 && s.Vocabulary == nil && s.Ranks != nil
}

// sumsInputGrads reports whether ranks add the gradient of the inputs.
func (s *PartedSum) sumsInputGrads() bool { return s != nil && !s.Rowwise && s.Ranks != nil }

// wantAllFeatures panics for an op that cuts the features of a colwise layer of which this rank has a part: it would
// get others than on one rank, such as gates alone on the first ranks and none of them on the last.
func (c *Ctx) wantAllFeatures(op string, x *Tensor, d int) {
	if int(x.part) == d+1 {
		c.fail(op, []*Tensor{x}, "a colwise layer made the features of dim %d, which has %d, a rank's part of all, "+
			"and a piece of them is not that of all: want packed_colwise for a layer of two matrices, such as gate "+
			"and up, packed_colwise:3 for one of three, or colwise_gather_output", d, x.shape[d])
	}
}

// wantFeaturesTogether panics for an op that computes something of all features of a token together, such as their
// mean, where this rank has a part of them.
func (c *Ctx) wantFeaturesTogether(op string, x *Tensor, dims ...int) {
	if x.part > 0 && slices.Contains(dims, int(x.part)-1) {
		c.fail(op, []*Tensor{x}, "a colwise layer made the features of dim %d, a rank's part of all, and %s needs all "+
			"of them: want colwise_gather_output", x.part-1, op)
	}
}

// partOf gives a result the part that an operand of an elementwise op has.
func (t *Tensor) partOf(x *Tensor) {
	if x.part == 0 {
		return
	}
	d := t.ndim - x.ndim + int(x.part)
	if t.shape[d-1] == x.shape[x.part-1] {
		t.part = uint8(d)
	}
}

// partAs gives a result the part of x, whose dims were cut differently: of several dims that the features lie in now,
// the first is divided, as heads are in front of their features. It has none if no dim begins where the features did,
// or if it has size 1, which does not tell.
func (t *Tensor) partAs(x *Tensor) {
	if x.part == 0 {
		return
	}
	before, at := 1, 1
	for _, n := range x.shape[:x.part-1] {
		before *= n
	}
	for d, n := range t.Shape() {
		if at == before {
			if n > 1 {
				t.part = uint8(d + 1)
			}
			return
		}
		at *= n
	}
}

// check panics unless n features divide into the parts.
func (s *PartedSum) check(c *Ctx, l *linear) {
	n := l.m.shape[1]
	if s.Rowwise {
		n = l.m.shape[0]
	}
	if of := s.Parts * max(1, s.Fused); n%of != 0 && s.Vocabulary == nil {
		c.fail(l.op, []*Tensor{l.x, l.wLow}, "%d features: want a multiple of %d, parts of a divided sum", n, of)
	}
}

// The outputs of a rowwise layer are summed over ranks in up to sumChunks groups of rows, so that the ranks add one
// while they compute the next. A group has at least sumRows rows, which products of any kernel compute as they would
// among more, and sumBytes bytes.
const (
	sumChunks = 4
	sumRows   = 128
	sumBytes  = 256 << 10
)

// chunks is in how many groups rows of a width are summed over ranks. Devices compute the same whether ranks are one or
// several, but libraries need not form products of some rows as among others: those get all rows at once.
func (s *PartedSum) chunks(c *Ctx, rows, width int, dt DType) int {
	if s.Ranks == nil || c.eng.dev.traits.Memory > 0 {
		return 1
	}
	return max(1, min(sumChunks, rows/sumRows, rows*width*dt.Size()/sumBytes))
}

// rowwise is the product of a rowwise layer without its bias, in the dtype of sums.
func (s *PartedSum) rowwise(c *Ctx, l *linear) *Tensor {
	k, dt, all, width := l.m.shape[0]/s.Parts, statDType(l.x), l.rows.shape[0], l.m.shape[1]
	y := c.empty(l.op, dt, all, width)
	n := s.chunks(c, all, width, dt)
	s.inFlight(c, func(begin func(*Tensor)) {
		for i := range n {
			from, to := i*all/n, (i+1)*all/n
			rows, into := l.rows.narrow(0, from, to-from), y.narrow(0, from, to-from)
			treeSum(c.NoGrad(), 0, s.Parts, func(c *Ctx, i int) *Tensor {
				z := into // of the first part, to which others are added
				if i > 0 {
					z = c.empty(l.op, dt, to-from, width)
				}
				c.matmulTo(z, rows.narrow(1, i*k, k), l.m.narrow(0, i*k, k), nil)
				return z
			})
			begin(into)
		}
	})
	return y
}

// colwise is the gradient of the inputs of a colwise layer, for that of its outputs. While ranks add it, this rank
// calls during.
func (s *PartedSum) colwise(c *Ctx, l *linear, g *Tensor, during func()) *Tensor {
	fused, w := max(1, s.Fused), swapLast(l.m)
	features := l.m.shape[1] / fused
	return s.addDuring(c, during, func(c *Ctx, i int) (sum *Tensor) {
		start, n := s.span(i, features)
		if n == 0 {
			return Full(c, statDType(l.x), 0, l.rows.Shape()...)
		}
		for f := range fused {
			at := f*features + start
			sum = c.plus(sum, c.matmulAs(l.op, statDType(l.x), g.narrow(1, at, n), w.narrow(0, at, n)))
		}
		return sum
	})
}

// plus adds y to x, which may be nil, in place.
func (c *Ctx) plus(x, y *Tensor) *Tensor {
	if x == nil {
		return y
	}
	c.elementwise(backend.OpAdd, &attrs{}, x, x, y)
	return x
}

// add adds the parts of all ranks.
func (s *PartedSum) add(c *Ctx, part func(c *Ctx, i int) *Tensor) *Tensor {
	return s.addDuring(c, func() {}, part)
}

// addDuring is add that calls during while ranks add.
func (s *PartedSum) addDuring(c *Ctx, during func(), part func(c *Ctx, i int) *Tensor) *Tensor {
	sum := treeSum(c.NoGrad(), 0, s.Parts, part)
	s.inFlight(c, func(begin func(*Tensor)) {
		begin(sum)
		during()
	})
	return sum
}

// inFlight calls body, which begins sums over the ranks, and waits for them in their order. Whatever panics, no sum is
// under way afterwards, so that the memory may go.
func (s *PartedSum) inFlight(c *Ctx, body func(begin func(t *Tensor))) {
	if s.Ranks == nil {
		body(func(*Tensor) {})
		return
	}
	var waits []func()
	defer func() {
		for _, wait := range waits { // after a panic, which says what happened first
			_ = Try(wait)
		}
	}()
	plain := c.NoGrad().plain()
	body(func(t *Tensor) { waits = append(waits, s.Ranks(plain, t)) })
	for len(waits) > 0 {
		wait := waits[0]
		waits = waits[1:]
		wait()
	}
}

// treeSum adds parts first to first+n in a tree, and holds no more of them than it is high.
func treeSum(c *Ctx, first, n int, part func(c *Ctx, i int) *Tensor) *Tensor {
	return c.Scope(func(c *Ctx) []*Tensor {
		if n == 1 {
			return []*Tensor{part(c, first)}
		}
		left := 1 << (bits.Len(uint(n-1)) - 1)
		x := treeSum(c, first, left, part)
		return []*Tensor{c.plus(x, treeSum(c, first+left, n-left, part))}
	})[0]
}
