// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Transform is one link of an optimizer's chain.
type Transform interface {
	// Traits are the transform's promises. The zero value promises nothing.
	Traits() Traits
	// State describes the tensors that the transform keeps for a parameter, as Like(p, "exp_avg"). They begin as zeros,
	// when they are first needed.
	State(p tensor.Named) []StateTensor
	// Apply replaces the update of one parameter, which begins as its gradient. It may change update and the state in
	// place, and p for what is not an update. Of a parameter of a half type p is a float32 copy, and update is float32.
	Apply(c *tensor.Ctx, p tensor.Named, g *Group, s *Slot, update *tensor.Tensor)
}

// Traits are promises of a transform about its Apply.
type Traits struct {
	// Elementwise: each element is computed only from the same element of parameter, update and state, so that Apply
	// may be given a part of a parameter, as a vector. Where parameters are sharded, all transforms must be so: one
	// that needs whole matrices or norms of parameters is refused.
	Elementwise bool
	// Blocks: each block of so many elements of a parameter is computed by itself, so that Apply may be given a part of
	// a parameter, as a vector, that begins at a multiple of them. See Optimizer.DescribeParts. 0: there are none.
	Blocks int
	// OnDevice: Apply only changes tensors, by operations on the given context, reads none of their numbers, and keeps
	// nothing else from step to step. Then a step may be queued before it is known whether its gradients are finite: if
	// they are not, the device leaves parameters and state unchanged. With any other transform in the chain the host
	// waits for the gradients' norm before each step.
	OnDevice bool
	// Moves: Apply changes the parameter by itself, and no step of the learning rate follows. Only the last transform
	// of a chain may.
	Moves bool
	// Average replaces a parameter by what evaluation and saved weights take, from it and its state; nil: the parameter
	// itself. See Optimizer.Eval.
	Average func(c *tensor.Ctx, p tensor.Named, s *Slot)
	// Fused is one pass for a chain that the transform is in; nil: there is none.
	Fused *Fused

	// parts tells the transform how many elements the parameters have of which it may be given a part.
	parts func(numel map[string]int)
	// host readies a step of float32 in host memory: what it returns has the bits of Apply. nil: there is none.
	host func(g *Group, step int64) func(e *elements)
}

// StateTensor describes a tensor that a transform keeps for a parameter.
type StateTensor struct {
	Name  string
	Shape []int
	DType tensor.DType
	// NonNegative: no element is ever below zero, as a mean of squares. A saved state that breaks this is refused.
	NonNegative bool
	// Block: each element stands for so many elements of the parameter, in their order; the last may stand for fewer.
	// 0: the tensor is like the parameter, or belongs to all of it.
	Block int
}

// Place is what belongs to a part of the parameter, as name; the tensor described is that of the whole parameter.
func (s StateTensor) Place(name string, at tensor.Placement) tensor.Placement {
	switch {
	case s.Block > 1:
		up := func(n int) int { return (n + s.Block - 1) / s.Block }
		whole := tensor.WholePlacement(name, up(at.BoxNumel()))
		if at.Numel() == 0 { // it may lie at an end inside of a block
			return whole.Slice(0, 0)
		}
		return whole.Slice(at.Flat.Start/s.Block, up(at.Flat.Stop))
	case !at.WholeBox():
		return at.Of(name, at.Shape...)
	default:
		return at.Of(name, s.Shape...)
	}
}

// Bytes is the memory that the tensor takes.
func (s StateTensor) Bytes() int64 {
	n := int64(s.DType.Size())
	for _, d := range s.Shape {
		n *= int64(d)
	}
	return n
}

// Like describes tensors of the parameter's shape and dtype; float32 for a parameter of a half type, in which a mean
// over 1000 gradients would stand still.
func Like(p tensor.Named, names ...string) []StateTensor {
	dt := p.DType()
	if dt.IsHalf() {
		dt = tensor.Float32
	}
	list := make([]StateTensor, len(names))
	for i, name := range names {
		list[i] = StateTensor{Name: name, Shape: p.Shape(), DType: dt}
	}
	return list
}

// L2 adds WeightDecay·p to the gradient: decay coupled with what follows in the chain.
type L2 struct{}

// Traits has a pass for gradient descent without momentum.
func (L2) Traits() Traits {
	return Traits{Elementwise: true, OnDevice: true, Fused: descend([]Transform{L2{}}, nil), host: l2}
}

// State is empty.
func (L2) State(tensor.Named) []StateTensor { return nil }

func l2(g *Group, _ int64) func(e *elements) {
	return func(e *elements) {
		if g.WeightDecay != 0 {
			vecmath.Axpby(e.u, 1, e.u, float32(g.WeightDecay), e.p)
		}
	}
}

// Apply adds the decay term.
func (L2) Apply(c *tensor.Ctx, p tensor.Named, g *Group, _ *Slot, u *tensor.Tensor) {
	if g.WeightDecay != 0 {
		tensor.AxpbyInto(c, u, 1, u, g.WeightDecay, p.Tensor)
	}
}

// DecoupledDecay shrinks the parameter by 1 − lr·WeightDecay, apart from the update
// (Loshchilov & Hutter 2019).
type DecoupledDecay struct{}

// Traits promises all.
func (DecoupledDecay) Traits() Traits { return Traits{Elementwise: true, OnDevice: true, host: decay} }

// State is empty.
func (DecoupledDecay) State(tensor.Named) []StateTensor { return nil }

func decay(g *Group, _ int64) func(e *elements) {
	return func(e *elements) {
		if g.WeightDecay != 0 {
			vecmath.Affine(e.p, e.p, float32(1-g.LR*g.WeightDecay), 0)
		}
	}
}

// Apply shrinks p.
func (DecoupledDecay) Apply(c *tensor.Ctx, p tensor.Named, g *Group, _ *Slot, _ *tensor.Tensor) {
	if g.WeightDecay != 0 {
		tensor.ScaleInto(c, p.Tensor, 1-g.LR*g.WeightDecay)
	}
}
