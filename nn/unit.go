// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Hooks are called around a module's Unit. Any of them may be nil; none may block. Of several hooks of a module, those
// before run in the order in which they were added, those behind in the reverse order.
type Hooks struct {
	PreForward  func(c *Ctx)
	PostForward func(c *Ctx)
	// PreBackward runs before the first op of the module runs backward.
	PreBackward func(c *tensor.Ctx)
	// PostBackward runs when all ops of the module have run backward: the gradients of its inputs are known, and those
	// of its parameters, but for what other modules add to them.
	PostBackward func(c *tensor.Ctx)
}

// Unit runs the forward function of module m in its own memory scope, under m's path, with m's hooks, and with
// recomputation if the context asks for it. Inputs that need gradients must be passed in, not captured, so that hooks
// and recomputation see them; those that are not there are nil. Training steps run inside a Scope of the caller, one
// per micro-batch. A graph that is recorded outside every Scope is freed by the garbage collector.
func Unit(c *Ctx, m Module, forward func(c *Ctx, in []*tensor.Tensor) []*tensor.Tensor,
	in ...*tensor.Tensor) []*tensor.Tensor {
	u := c.unit(m)
	hooks := u.tree.hooks[m]
	for _, h := range hooks {
		if h.PreForward != nil {
			h.PreForward(u)
		}
	}
	since := tensor.Recorded()
	run := func(t *tensor.Ctx, in []*tensor.Tensor) []*tensor.Tensor { return forward(u.With(t), in) }
	var out []*tensor.Tensor
	switch {
	case c.recompute[m] && u.Grad():
		runs := 0
		out = tensor.Checkpoint(u.Ctx, u.Path(), func(t *tensor.Ctx, in []*tensor.Tensor) []*tensor.Tensor {
			d := u.With(t)
			d.again = d.again || runs > 0
			runs++
			return forward(d, in)
		}, in, u.tree.tensors(m))
	case u.Grad() && !u.Scoped(): // a scope of ours would end the graph before Backward
		out = run(u.Ctx, in)
	default:
		out = u.Ctx.Scope(func(t *tensor.Ctx) []*tensor.Tensor { return run(t, in) })
	}
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
	d.Ctx = c.Ctx.Sub(path)
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
