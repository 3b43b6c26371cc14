// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// leaf is what a tensor has that gradients end at.
type leaf struct {
	grad   *Tensor // memory of the gradient, contiguous, outside every scope; nil: the first write makes it
	filled bool    // grad holds a gradient (else its next write overwrites)
	frozen bool    // SetRequiresGrad(false) was called last: not a leaf at present
	hooks  []func(c *Ctx, t *Tensor)
	after  []func(c *Ctx, t *Tensor) // hooks, behind those
	inner  bool                      // stands for the result of an op: its gradient has its own dtype, see GradDType

	lowered lowered
	blocks  *Tensor // of Quantize; nil: none
}

// SetRequiresGrad makes t a leaf whose gradient Backward accumulates, or ends that: the
// gradient is forgotten, hooks and the buffer of SwapGrad stay for when it is set again.
// Only floating-point tensors that no recorded op made can be leaves. It returns t.
func (t *Tensor) SetRequiresGrad(on bool) *Tensor {
	switch {
	case !on:
		if t.leaf != nil {
			t.ZeroGrad()
			t.leaf.frozen = true
		}
	case !t.dtype.IsFloat():
		panic(&Error{Op: "SetRequiresGrad", Inputs: []string{describe(t)},
			Msg: "only floating-point tensors have gradients"})
	case t.node != nil:
		panic(&Error{Op: "SetRequiresGrad", Inputs: []string{describe(t)},
			Msg: "the tensor is the result of " + t.node.op + ": Detach it first"})
	case t.leaf == nil:
		t.leaf = &leaf{}
	default:
		t.leaf.frozen = false
	}
	return t
}

// Boundary returns t as a leaf where Backward ends. It represents the result of ops with a separate backward pass, for
// example in another stage of a pipeline. Unlike that of other leaves its gradient has t's dtype, as that of a result
// would.
func (t *Tensor) Boundary() *Tensor {
	b := t.alias().SetRequiresGrad(true)
	b.leaf.inner = true
	return b
}

// RequiresGrad reports whether t is a leaf or the result of a recorded op.
func (t *Tensor) RequiresGrad() bool { return t.IsLeaf() || t.node != nil }

// IsLeaf reports whether SetRequiresGrad(true) was called on t last.
func (t *Tensor) IsLeaf() bool { return t.leaf != nil && !t.leaf.frozen }

// GradDType is the dtype of t's gradient: that of t, but float32 for leaves of half types. So the gradients of
// micro-batches, and of ranks, are added up in float32.
func (t *Tensor) GradDType() DType {
	if t.dtype.IsHalf() && t.leaf != nil && !t.leaf.inner {
		return Float32
	}
	return t.dtype
}

// Grad is the gradient that Backward accumulated in a leaf, contiguous, of dtype GradDType and t's shape;
// nil if there has been none since ZeroGrad, which also frees it. To keep a gradient longer,
// clone it or take it with SwapGrad.
func (t *Tensor) Grad() *Tensor {
	if t.leaf == nil || !t.leaf.filled {
		return nil
	}
	return t.leaf.grad
}

// ZeroGrad discards the gradient and frees its memory, like zero_grad of PyTorch's optimizers by default
// (set_to_none). The next Backward allocates it again when it reaches the leaf, so that gradients and the activations
// of the layers below do not exist at the same time. Memory that the caller passed to SwapGrad stays, and the first
// contribution to the next gradient overwrites it.
func (t *Tensor) ZeroGrad() {
	if t.leaf != nil {
		t.leaf.filled = false
		t.leaf.freeUnused()
	}
}

// freeUnused frees the memory of a gradient that is not there, unless it is the caller's.
func (l *leaf) freeUnused() {
	if l.grad == nil || l.filled || !l.grad.st.gradient {
		return
	}
	if l.hasMemory() {
		l.grad.st.release()
	}
	l.grad = nil
}

// SwapGrad makes g the buffer in which the next gradient is accumulated. It returns the previous buffer, which then
// belongs to the caller; either may be nil. filled says whether g already holds a gradient to add to. Accumulation in
// several stages (a tree over micro-batches) is built on it. g must be contiguous, of t's shape and dtype GradDType,
// and live outside every scope.
func (t *Tensor) SwapGrad(g *Tensor, filled bool) *Tensor {
	if t.leaf == nil {
		panic(&Error{Op: "SwapGrad", Inputs: []string{describe(t)},
			Msg: "not a leaf: call SetRequiresGrad(true) first"})
	}
	if g != nil && (g.dtype != t.GradDType() || !slices.Equal(g.Shape(), t.Shape()) || !g.IsContiguous()) {
		panic(&Error{Op: "SwapGrad", Inputs: []string{describe(t), describe(g)},
			Msg: fmt.Sprintf("want a contiguous buffer of the leaf's shape, of %v", t.GradDType())})
	}
	old := t.leaf.grad
	t.leaf.grad, t.leaf.filled = g, filled && g != nil
	return old
}

// HasGradBuffer reports whether t is a leaf with memory for its gradient: one that SwapGrad was given, or one in which
// Backward has begun to add it up, in which case it must stay.
func (t *Tensor) HasGradBuffer() bool { return t.leaf != nil && t.leaf.hasMemory() }

// OnGrad registers hook to be called during Backward, or with [DelayWeightGrads] during Pop, as soon as the gradient of
// the leaf t is complete for that Backward. Hooks run in the order in which gradients are
// completed and must not block. They may read and change the gradient. The returned function removes the hook.
func (t *Tensor) OnGrad(hook func(c *Ctx, t *Tensor)) (remove func()) {
	l := t.hooked("OnGrad")
	i := len(l.hooks)
	l.hooks = append(l.hooks, hook)
	return func() { l.hooks[i] = nil }
}

// AfterGrad is OnGrad for a hook that passes the gradient on, for example to other ranks: it runs after all hooks of
// OnGrad, whenever they were added.
func (t *Tensor) AfterGrad(hook func(c *Ctx, t *Tensor)) (remove func()) {
	l := t.hooked("AfterGrad")
	i := len(l.after)
	l.after = append(l.after, hook)
	return func() { l.after[i] = nil }
}

// hooked is the leaf that a hook is registered with.
func (t *Tensor) hooked(op string) *leaf {
	if t.leaf == nil {
		panic(&Error{Op: op, Inputs: []string{describe(t)}, Msg: "not a leaf: call SetRequiresGrad(true) first"})
	}
	return t.leaf
}

// accumulate adds g to the leaf's gradient; the first write after ZeroGrad overwrites.
func (t *Tensor) accumulate(c *Ctx, g *Tensor) {
	buf := t.gradBuffer(c)
	if t.leaf.filled {
		c.launch(backend.OpAdd, buf, buf, g)
	} else {
		c.launch(backend.OpCopy, buf, g)
	}
	t.accumulated()
}

// gradBuffer is the buffer of the leaf's gradient, made if there is none.
func (t *Tensor) gradBuffer(c *Ctx) *Tensor {
	l := t.leaf
	if !l.hasMemory() {
		free := *c
		free.scope = nil
		l.grad, l.filled = free.empty("Backward", t.GradDType(), t.Shape()...), false
		l.grad.st.gradient = true
	}
	return l.grad
}

// hasMemory reports whether there is memory for a gradient; a caller of Grad may have freed it.
func (l *leaf) hasMemory() bool { return l.grad != nil && l.grad.gen == l.grad.st.gen }

// adoptGrad makes g the gradient of a leaf that has no memory for one. Nothing else refers to g.
func (t *Tensor) adoptGrad(g *Tensor) {
	g.st.give(nil) // the reference that Backward held is the leaf's
	g.st.gradient = true
	t.leaf.grad = g
	t.accumulated()
}

// accumulated notes that the leaf's gradient has been written.
func (t *Tensor) accumulated() {
	t.leaf.grad.st.ver++
	t.leaf.filled = true
}
