// SPDX-License-Identifier: Apache-2.0

// Package accumulation accumulates gradients: it adds those of a step's micro-batches in the order of
// docs/numerics.md, which does not depend on the number of ranks. It is for the strategies of package accelerate.
// Start with [New], or with [NewShard] for a rank that has a part of each gradient.
//
// M micro-batches form E groups of M/E consecutive ones. E is the largest power of two that divides M and is at most
// the number of deterministic ranks. Gradients of a group are added in order, in place. The sums of groups are then
// added in a binary tree, which grows like a binary counter, so a parameter never has more than log2(E)+1 gradients.
// If the last step of an epoch has fewer micro-batches, the tree is the same without them.
package accumulation

import "github.com/lockstep-ml/lockstep/tensor"

// Groups is E for a window of so many micro-batches.
func Groups(microBatches, ranks int) int {
	e := 1
	for e*2 <= ranks && microBatches%(e*2) == 0 {
		e *= 2
	}
	return e
}

// Tree holds the sums of finished groups, built up like a binary counter, so that log2(E)+1 of them are alive at most:
// the larger subtrees come first, nil where no gradient came. After group g there is one for each bit that is set in
// g+1, over as many groups as the bit is worth.
type Tree struct{ sums []*tensor.Tensor }

// Add puts the sum of a group into the tree, which owns it from then on; nil means a group without a gradient. Groups
// come in order, without a gap.
func (t *Tree) Add(c *tensor.Ctx, group int, sum *tensor.Tensor) {
	for level := 0; group>>level&1 == 1; level++ {
		sum = t.merge(c, sum)
	}
	t.sums = append(t.sums, sum)
}

// Total merges what is there, which becomes the caller's; nil if no gradient came.
func (t *Tree) Total(c *tensor.Ctx) (total *tensor.Tensor) {
	for len(t.sums) > 0 {
		total = t.merge(c, total)
	}
	return total
}

// Take empties the tree. The sums become the caller's; some may be nil.
func (t *Tree) Take() []*tensor.Tensor {
	sums := t.sums
	t.sums = nil
	return sums
}

// merge pops the top subtree and adds sum to it, whose memory is freed then.
func (t *Tree) merge(c *tensor.Ctx, sum *tensor.Tensor) *tensor.Tensor {
	n := len(t.sums) - 1
	left := t.sums[n]
	t.sums = t.sums[:n]
	switch {
	case left == nil:
		return sum
	case sum == nil:
		return left
	}
	tensor.AddInto(c, left, sum)
	sum.Free() // never a gradient's home, which holds the first of the sums
	return left
}

// Shard adds one rank's part of the gradients of all micro-batches: a vector for each. The bits are those of the same
// elements where one rank adds all micro-batches.
type Shard struct {
	c     *tensor.Ctx
	q     int
	group int            // that sum belongs to; −1 before the first micro-batch
	sum   *tensor.Tensor // of the micro-batches of group so far; nil: none came
	tree  Tree
}

// NewShard makes the sum for windows of so many micro-batches. c has no Scope.
func NewShard(c *tensor.Ctx, microBatches, ranks int) *Shard {
	return &Shard{c: c, q: microBatches / Groups(microBatches, ranks), group: -1}
}

// Add adds a micro-batch's part, which stays the caller's. Micro-batches come in ascending order; absent ones change
// nothing.
func (s *Shard) Add(microBatch int, part *tensor.Tensor) {
	for ; s.group < microBatch/s.q; s.group++ {
		if s.group >= 0 {
			s.tree.Add(s.c, s.group, s.sum)
			s.sum = nil
		}
	}
	if s.sum == nil {
		s.sum = tensor.Clone(s.c, part)
		return
	}
	tensor.AddInto(s.c, s.sum, part)
}

// Total ends the window and gives the sum, which becomes the caller's; nil if no micro-batch came.
func (s *Shard) Total() *tensor.Tensor {
	if s.group < 0 {
		return nil
	}
	s.tree.Add(s.c, s.group, s.sum)
	s.sum, s.group = nil, -1
	return s.tree.Total(s.c)
}

// Reset forgets an unfinished window.
func (s *Shard) Reset() {
	for _, sum := range append(s.tree.Take(), s.sum) {
		if sum != nil {
			sum.Free()
		}
	}
	s.sum, s.group = nil, -1
}
