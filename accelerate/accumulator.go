// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate/leaves"
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
	params []tensor.Named
	leaves int // M
	q      int
	group  int // the group that the parameters' gradients belong to; −1 before the first leaf
	sums   []leaves.Tree
	done   []bool           // per parameter: the total is its gradient
	home   []*tensor.Tensor // where gradients are exchanged, per parameter: totals lie there; nil if they are not
}

func newAccumulator(c *tensor.Ctx, params []tensor.Named, count, ranks int) *accumulator {
	return &accumulator{c: c, params: params, leaves: count, q: count / leaves.Groups(count, ranks), group: -1,
		sums: make([]leaves.Tree, len(params)), done: make([]bool, len(params))}
}

// begin readies the gradients for a leaf's backward pass. Leaves come in ascending order;
// those that never come, before, between or behind, are absent from the tree.
func (a *accumulator) begin(leaf int) {
	group := leaf / a.q
	if leaf < 0 || leaf >= a.leaves || group < a.group {
		panic(&tensor.Error{Op: "accelerate.Backward", Msg: fmt.Sprintf(
			"leaf %d: want one in [%d, %d): leaves ascend, and Reduce ends a window", leaf, max(a.group, 0)*a.q,
			a.leaves)})
	}
	for a.group < group {
		a.carry()
		a.group++
	}
}

// carry puts the finished group onto the stacks.
func (a *accumulator) carry() {
	if a.group < 0 {
		return
	}
	for i := range a.params {
		a.carryParam(i)
	}
}

// carryParam puts a parameter's finished group into its tree. The next group's gradient gets memory when it comes.
func (a *accumulator) carryParam(i int) {
	a.sums[i].Add(a.c, a.group, take(a.params[i]))
}

// take removes the gradient from the parameter, with its buffer; nil if there is none.
func take(p tensor.Named) *tensor.Tensor {
	if p.Grad() == nil {
		return nil
	}
	return p.SwapGrad(nil, false)
}

// finishParam makes the total of a parameter its gradient. It may be called during the
// last leaf's backward pass, when the parameter's gradient of that leaf is complete.
func (a *accumulator) finishParam(i int) {
	if a.done[i] {
		return
	}
	a.done[i] = true
	if a.group <= 0 {
		return // one group: the gradient lies where it belongs
	}
	a.carryParam(i)
	if total := a.sums[i].Total(a.c); total != nil {
		a.params[i].SwapGrad(total, true)
	}
}

// finish makes the totals the parameters' gradients and ends the window.
func (a *accumulator) finish() {
	for i := range a.params {
		a.finishParam(i)
	}
	clear(a.done)
	a.group = -1
}

// settle makes home the places in which gradients are exchanged, in place of earlier ones,
// and forgets all gradients. The parameters' buffers are there already.
func (a *accumulator) settle(home []*tensor.Tensor) {
	a.group, a.home = -1, home
	clear(a.sums)
	clear(a.done)
}

// reset forgets all gradients, those of an unfinished window too, and frees all that is not a home.
func (a *accumulator) reset() {
	a.group = -1
	for i, p := range a.params {
		p.ZeroGrad()
		if a.home != nil {
			a.free(i, p.SwapGrad(a.home[i], false))
		}
		for _, sum := range a.sums[i].Take() {
			a.free(i, sum)
		}
	}
	clear(a.done)
}

// free frees a gradient of parameter i, unless it has its home.
func (a *accumulator) free(i int, g *tensor.Tensor) {
	if g != nil && (a.home == nil || g != a.home[i]) {
		g.Free()
	}
}
