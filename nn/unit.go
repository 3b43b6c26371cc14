// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Hooks are called around a module's Unit. Any of them may be nil; none may block.
type Hooks struct {
	PreForward  func(c *Ctx)
	PostForward func(c *Ctx)
	// PreBackward runs before the first op of the module runs backward.
	PreBackward func(c *tensor.Ctx)
	// PostBackward runs when the gradients of the module's inputs are known. It does not
	// run for a module none of whose inputs needs a gradient (the first one, which gets
	// token ids).
	PostBackward func(c *tensor.Ctx)
}

// Unit runs the forward function of module m in its own memory scope, under m's path, with m's
// hooks, and with recomputation if the context asks for it. Inputs that need gradients must be
// passed in, not captured, so that hooks and recomputation see them; those that are not there are nil. Training steps run inside
// a Scope of the caller, one per micro-batch. A graph that is recorded outside every Scope is
// freed by the garbage collector.
func Unit(c *Ctx, m Module, forward func(c *Ctx, in []*tensor.Tensor) []*tensor.Tensor, in ...*tensor.Tensor) []*tensor.Tensor {
	u := c.unit(m)
	h := u.tree.hooks[m]
	if h != nil && h.PreForward != nil {
		h.PreForward(u)
	}
	if h != nil && h.PostBackward != nil {
		in = onBackward(u.Ctx, u.Path()+".post_backward", h.PostBackward, in)
	}
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
	if h != nil && h.PreBackward != nil {
		out = onBackward(u.Ctx, u.Path()+".pre_backward", h.PreBackward, out)
	}
	if h != nil && h.PostForward != nil {
		h.PostForward(u)
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
	d.Ctx = c.Ctx.Sub(d.tree.path(m))
	return &d
}

// onBackward passes tensors through unchanged and calls hook when Backward gets there.
func onBackward(c *tensor.Ctx, name string, hook func(c *tensor.Ctx), ts []*tensor.Tensor) []*tensor.Tensor {
	if i := slices.Index(ts, nil); i >= 0 { // an input that is not there
		rest := onBackward(c, name, hook, slices.Delete(slices.Clone(ts), i, i+1))
		return slices.Insert(rest, i, nil)
	}
	return tensor.Custom(c, tensor.CustomOp{
		Name:    name,
		Forward: func(_ *tensor.Ctx, in []*tensor.Tensor) (out, saved []*tensor.Tensor) { return append(out, in...), nil },
		Backward: func(c *tensor.Ctx, _, grads []*tensor.Tensor, _ []bool) []*tensor.Tensor {
			hook(c)
			return append([]*tensor.Tensor(nil), grads...)
		},
	}, ts...)
}
