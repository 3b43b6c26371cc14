// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Hooks are called around a module's Unit. Any of them may be nil; none may block. Of several hooks of a module, those
// before it run in the order in which they were added, those after it in reverse order.
type Hooks struct {
	// Context derives the tensor context in which the module itself runs, not the modules within it. With it, the
	// module may read parameters that are divided among ranks: see Parameter.Divide.
	Context func(c *tensor.Ctx) *tensor.Ctx
	// HeadPart is the part of the heads that the module's attention computes, if they are divided: dropout draws the
	// same numbers for them as in the whole module. nil: all heads.
	HeadPart    *int
	PreForward  func(c *Ctx)
	PostForward func(c *Ctx)
	// Inputs replaces the inputs of the module (nil where one is not there), Outputs its results. Their ops are part of
	// the graph. When the module runs again for its gradient they do not: a collective in Outputs is not repeated.
	Inputs  func(c *Ctx, ts []*tensor.Tensor) []*tensor.Tensor
	Outputs func(c *Ctx, ts []*tensor.Tensor) []*tensor.Tensor
	// Around runs the module by calls of run, between Inputs and Outputs: on parts of its inputs, say. nil: once.
	Around func(c *Ctx, run RunFunc, in []*tensor.Tensor) []*tensor.Tensor
	// PreBackward runs before the first op of the Unit runs backward.
	PreBackward func(c *tensor.Ctx)
	// PostBackward runs when all ops of the Unit have run backward: the gradients of its inputs are known, and those
	// of its parameters, except what other modules add to them and what tensor.DelayWeightGrads leaves to a later pass.
	PostBackward func(c *tensor.Ctx)
}

// RunFunc runs a module in a context, which is that of its Unit or derived from it.
type RunFunc func(c *Ctx, in []*tensor.Tensor) []*tensor.Tensor

// forwardFunc is what a module computes in its Unit.
type forwardFunc = func(c *Ctx, in []*tensor.Tensor) []*tensor.Tensor

// Unit runs the forward function of module m in its own memory scope, under m's path, with m's hooks, and with
// recomputation if the context asks for it. Inputs that need gradients must be passed in, not captured, so that hooks
// and recomputation see them; absent inputs are nil. Training steps run inside a Scope of the caller, one per
// micro-batch. A graph that is recorded outside every Scope is freed by the garbage collector.
func Unit(c *Ctx, m Module, forward forwardFunc, in ...*tensor.Tensor) []*tensor.Tensor {
	u := c.unit(m)
	hooks := u.tree.hooks[m]
	for _, h := range hooks {
		if h.Context != nil {
			u.Ctx, u.divides = h.Context(u.Ctx), true
		}
		if h.HeadPart != nil {
			u.headPart = *h.HeadPart
		}
	}
	for _, h := range hooks {
		if h.PreForward != nil {
			h.PreForward(u)
		}
	}
	since := tensor.Recorded()
	out := u.transformed(m, hooks, forward, in)
	if slices.ContainsFunc(hooks, func(h *Hooks) bool { return h.PreBackward != nil || h.PostBackward != nil }) {
		out = aroundBackward(u.Ctx, hooks, since, out)
	}
	for _, h := range slices.Backward(hooks) {
		if h.PostForward != nil {
			h.PostForward(u)
		}
	}
	return out
}

// transformed runs m between the transforms of its inputs and outputs. c is m's own context.
func (c *Ctx) transformed(m Module, hooks []*Hooks, forward forwardFunc, in []*tensor.Tensor) []*tensor.Tensor {
	if !slices.ContainsFunc(hooks, func(h *Hooks) bool {
		return h.Inputs != nil || h.Outputs != nil || h.Around != nil
	}) {
		return c.run(m, forward, in)
	}
	return c.scoped(func(c *Ctx) []*tensor.Tensor {
		for _, h := range hooks {
			if h.Inputs != nil {
				in = h.Inputs(c, in)
			}
		}
		out := c.around(m, hooks, forward, in)
		for _, h := range slices.Backward(hooks) {
			if h.Outputs != nil {
				out = h.Outputs(c, out)
			}
		}
		return out
	})
}

// around is run within the hooks that run m by themselves, the last of which is the outermost.
func (c *Ctx) around(m Module, hooks []*Hooks, forward forwardFunc, in []*tensor.Tensor) []*tensor.Tensor {
	run := func(c *Ctx, in []*tensor.Tensor) []*tensor.Tensor { return c.run(m, forward, in) }
	for _, h := range hooks {
		if inner := run; h.Around != nil {
			run = func(c *Ctx, in []*tensor.Tensor) []*tensor.Tensor { return h.Around(c, inner, in) }
		}
	}
	return run(c, in)
}

// run runs m, and again for its gradient if c asks for it.
func (c *Ctx) run(m Module, forward forwardFunc, in []*tensor.Tensor) []*tensor.Tensor {
	if !c.recompute[m] || !c.Grad() {
		return c.scoped(func(c *Ctx) []*tensor.Tensor { return forward(c, in) })
	}
	runs := 0
	return tensor.Checkpoint(c.Ctx, c.Path(), func(t *tensor.Ctx, in []*tensor.Tensor) []*tensor.Tensor {
		d := c.With(t)
		d.again = d.again || runs > 0
		runs++
		return forward(d, in)
	}, in, c.tree.tensors(m))
}

// scoped runs body in a Scope. A graph outside of every Scope has none: a scope of ours would end it before Backward.
func (c *Ctx) scoped(body func(c *Ctx) []*tensor.Tensor) []*tensor.Tensor {
	if c.Grad() && !c.Scoped() {
		return body(c)
	}
	return c.Scope(body)
}

// Unit1 is Unit for modules of one input and one output.
func Unit1(c *Ctx, m Module, forward func(c *Ctx, x *tensor.Tensor) *tensor.Tensor, x *tensor.Tensor) *tensor.Tensor {
	return Unit(c, m, func(c *Ctx, in []*tensor.Tensor) []*tensor.Tensor {
		return []*tensor.Tensor{forward(c, in[0])}
	}, x)[0]
}

// unit returns the context in which m runs.
func (c *Ctx) unit(m Module) *Ctx {
	d := *c
	if d.tree == nil {
		d.tree = Walk(m)
	}
	path := d.tree.path(m)
	d.Ctx, d.divides, d.headPart = c.Ctx.Sub(path), false, -1
	if dt, ok := c.precision[path]; ok {
		d.Ctx = d.Autocast(dt)
	}
	return &d
}

// aroundBackward passes a unit's outputs through and calls the hooks before and behind the ops that were recorded for
// them.
func aroundBackward(c *tensor.Ctx, hooks []*Hooks, since uint64, out []*tensor.Tensor) []*tensor.Tensor {
	before := func(c *tensor.Ctx) {
		for _, h := range hooks {
			if h.PreBackward != nil {
				h.PreBackward(c)
			}
		}
	}
	after := func(c *tensor.Ctx) {
		for _, h := range slices.Backward(hooks) {
			if h.PostBackward != nil {
				h.PostBackward(c)
			}
		}
	}
	return tensor.BackwardSpan(c, c.Path()+".backward", since, out, before, after)
}
