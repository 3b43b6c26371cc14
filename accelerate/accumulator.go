package accelerate

import (
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// accumulator adds the gradients of a window's leaves in an order that does not depend
// on how many ranks share the work. M leaves form E groups of q = M/E consecutive ones,
// E being the largest power of two that divides M and is at most the number of
// deterministic ranks. A group's leaves are added in order, in place; the groups form a
// binary tree, built up like a binary counter, so that log2(E)+1 gradients are alive per
// parameter. At an epoch's tail absent leaves are left out of the nominal tree.
type accumulator struct {
	c      *tensor.Ctx
	params []optim.Param
	q      int
	group  int // the group that the parameters' gradients belong to; −1 before the first leaf
	stacks []stack
}

// stack holds a parameter's finished subtrees, the larger below, and spare buffers.
type stack struct {
	sums  []subtree
	spare []*tensor.Tensor
}

// subtree is the sum over 2^level groups; nil if no gradient came.
type subtree struct {
	level int
	sum   *tensor.Tensor
}

func newAccumulator(c *tensor.Ctx, params []optim.Param, leaves, ranks int) *accumulator {
	return &accumulator{c: c, params: params, q: leaves / groups(leaves, ranks), group: -1, stacks: make([]stack, len(params))}
}

// groups is E.
func groups(leaves, ranks int) int {
	e := 1
	for e*2 <= ranks && leaves%(e*2) == 0 {
		e *= 2
	}
	return e
}

// begin readies the gradients for a leaf's backward pass.
func (a *accumulator) begin(leaf int) {
	if g := leaf / a.q; g != a.group {
		a.carry()
		a.group = g
	}
}

// carry puts the finished group onto the stacks and merges equal subtrees.
func (a *accumulator) carry() {
	if a.group < 0 {
		return
	}
	for i, p := range a.params {
		s := &a.stacks[i]
		sum := s.take(p)
		level := 0
		for ; a.group>>level&1 == 1; level++ {
			sum = s.merge(a.c, sum)
		}
		s.sums = append(s.sums, subtree{level, sum})
	}
}

// take removes the gradient from the parameter, nil if there is none, and gives the
// parameter a spare buffer.
func (s *stack) take(p optim.Param) *tensor.Tensor {
	filled := p.Grad() != nil
	var next *tensor.Tensor
	if n := len(s.spare); n > 0 {
		next, s.spare = s.spare[n-1], s.spare[:n-1]
	}
	sum := p.SwapGrad(next, false)
	if !filled && sum != nil {
		s.spare = append(s.spare, sum)
		return nil
	}
	return sum
}

// merge pops the top subtree and adds sum to it.
func (s *stack) merge(c *tensor.Ctx, sum *tensor.Tensor) *tensor.Tensor {
	n := len(s.sums) - 1
	left := s.sums[n].sum
	s.sums = s.sums[:n]
	switch {
	case left == nil:
		return sum
	case sum == nil:
		return left
	}
	tensor.AddInto(c, left, sum)
	s.spare = append(s.spare, sum)
	return left
}

// finish merges what is left and makes the totals the parameters' gradients.
func (a *accumulator) finish() {
	if a.group == 0 && len(a.stacks) > 0 && len(a.stacks[0].sums) == 0 {
		a.group = -1 // one group: the gradients lie where they belong
		return
	}
	a.carry()
	a.group = -1
	for i, p := range a.params {
		s := &a.stacks[i]
		if len(s.sums) == 0 {
			continue
		}
		n := len(s.sums) - 1
		total := s.sums[n].sum
		s.sums = s.sums[:n]
		for len(s.sums) > 0 {
			total = s.merge(a.c, total)
		}
		if old := p.SwapGrad(total, total != nil); old != nil {
			s.spare = append(s.spare, old)
		}
	}
}

// reset forgets all gradients, those of an unfinished window too.
func (a *accumulator) reset() {
	a.group = -1
	for i, p := range a.params {
		s := &a.stacks[i]
		for _, t := range s.sums {
			if t.sum != nil {
				s.spare = append(s.spare, t.sum)
			}
		}
		s.sums = s.sums[:0]
		p.ZeroGrad()
	}
}
