// SPDX-License-Identifier: Apache-2.0

package accumulation

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Accumulator adds the gradients of the micro-batches that one rank computes.
type Accumulator struct {
	c      *tensor.Ctx
	params []tensor.Named
	count  int // M
	q      int
	group  int // the group that the parameters' gradients belong to; −1 before the first micro-batch
	sums   []Tree
	done   []bool           // per parameter: the total is its gradient
	home   []*tensor.Tensor // where gradients are exchanged, per parameter: totals lie there; nil if they are not
}

// New makes the accumulator of windows of count micro-batches, whose sums have the same bits on up to so many ranks. c
// has no Scope.
func New(c *tensor.Ctx, params []tensor.Named, count, ranks int) *Accumulator {
	return &Accumulator{c: c, params: params, count: count, q: count / Groups(count, ranks), group: -1,
		sums: make([]Tree, len(params)), done: make([]bool, len(params))}
}

// Begin readies the gradients for the backward pass of a micro-batch. They come in ascending order;
// those that never come, before, between or after, are absent from the tree.
func (a *Accumulator) Begin(microBatch int) {
	group := microBatch / a.q
	if microBatch < 0 || microBatch >= a.count || group < a.group {
		panic(&tensor.Error{Op: "accelerate.Backward", Msg: fmt.Sprintf(
			"micro-batch %d: want one in [%d, %d): micro-batches ascend, and Reduce ends a window", microBatch,
			max(a.group, 0)*a.q, a.count)})
	}
	for a.group < group {
		a.carry()
		a.group++
	}
}

// carry puts the finished group onto the stacks.
func (a *Accumulator) carry() {
	if a.group < 0 {
		return
	}
	for i := range a.params {
		a.carryParam(i)
	}
}

// carryParam puts a parameter's finished group into its tree. The next group's gradient gets memory when it comes.
func (a *Accumulator) carryParam(i int) {
	a.sums[i].Add(a.c, a.group, take(a.params[i]))
}

// take removes the gradient from the parameter, with its buffer; nil if there is none.
func take(p tensor.Named) *tensor.Tensor {
	if p.Grad() == nil {
		return nil
	}
	return p.SwapGrad(nil, false)
}

// FinishParam makes the total of a parameter its gradient. It may be called during the
// last backward pass, when the parameter's gradient of that micro-batch is complete.
func (a *Accumulator) FinishParam(i int) {
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

// Finish makes the totals the parameters' gradients and ends the window.
func (a *Accumulator) Finish() {
	for i := range a.params {
		a.FinishParam(i)
	}
	clear(a.done)
	a.group = -1
}

// Settle makes home the places in which gradients are exchanged, in place of earlier ones,
// and forgets all gradients. The parameters' buffers are there already.
func (a *Accumulator) Settle(home []*tensor.Tensor) {
	a.group, a.home = -1, home
	clear(a.sums)
	clear(a.done)
}

// Reset forgets all gradients, those of an unfinished window too, and frees all that is not a home.
func (a *Accumulator) Reset() {
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
func (a *Accumulator) free(i int, g *tensor.Tensor) {
	if g != nil && (a.home == nil || g != a.home[i]) {
		g.Free()
	}
}
