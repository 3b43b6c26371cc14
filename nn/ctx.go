package nn

import "github.com/lockstep-ml/lockstep/tensor"

// Ctx is what a module's Forward gets: the tensor context, and what modules add to it.
// Like the tensor context it is derived, never changed, and belongs to one goroutine.
type Ctx struct {
	*tensor.Ctx
	// Training is true while training: dropout is active, and batch norms take the
	// statistics of the batch.
	Training bool
	// LossOnly is true if nobody looks at anything but the loss: a model may then leave out its logits.
	LossOnly bool

	tree      *Tree
	recompute map[Module]bool
	observer  Observer
	again     bool // a forward pass is being run again for its gradient
}

// NewCtx returns a context for running modules. tree is Walk(model), so that it is not
// walked at every call; with nil the first Unit walks the module it runs.
func NewCtx(c *tensor.Ctx, tree *Tree, training bool) *Ctx {
	return &Ctx{Ctx: c, Training: training, tree: tree}
}

// With returns c on another tensor context.
func (c *Ctx) With(t *tensor.Ctx) *Ctx {
	d := *c
	d.Ctx = t
	return &d
}

// WithLossOnly returns a context in which models may leave out what is not the loss, such as a language model's logits (see
// LinearCrossEntropySum). A model that makes use of it needs less memory; its loss has the same bits, its gradients other roundings.
func (c *Ctx) WithLossOnly() *Ctx {
	d := *c
	d.LossOnly = true
	return &d
}

// WithRecompute returns a context in which the given modules do not keep what their
// gradient needs but run forward again during Backward (gradient checkpointing). Gradients
// keep their bits, as long as what goes into such a module is not used beside it too: the
// module's uses of an input are then added up before the others.
func (c *Ctx) WithRecompute(units []Module) *Ctx {
	d := *c
	d.recompute = map[Module]bool{}
	for _, u := range units {
		d.recompute[u] = true
	}
	return &d
}

// Scope runs body in a memory scope of its own; see tensor.Ctx.Scope.
func (c *Ctx) Scope(body func(c *Ctx) []*tensor.Tensor) []*tensor.Tensor {
	return c.Ctx.Scope(func(t *tensor.Ctx) []*tensor.Tensor { return body(c.With(t)) })
}
