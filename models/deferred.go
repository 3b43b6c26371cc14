// SPDX-License-Identifier: Apache-2.0

package models

import (
	"github.com/lockstep-ml/lockstep/internal/placement"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// readLater makes the parameters of m, which are deferred, be read from the set when they are used, and reads the
// buffers. The set stays open as long as a parameter may be read.
func readLater(set *safetensors.Set, m Model, o loadOptions) error {
	saved, err := FitWeights(set, m)
	if err != nil {
		return err
	}
	saved.options = o
	tree := nn.Walk(m)
	var buffers []tensor.Placed
	for _, b := range tree.Buffers() {
		buffers = append(buffers, b.Placed())
	}
	tree.EachParameter(func(name string, p *nn.Parameter) {
		if p.Deferred() == nil { // it has no elements
			return
		}
		dt, whole := p.DType(), tensor.WholePlacement(name, p.Shape()...)
		part := func(c *tensor.Ctx, at tensor.Placement) *tensor.Tensor { return saved.make(c, dt, at) }
		p.DeferPart(part)
		p.Defer(func(c *tensor.Ctx) *tensor.Tensor { return part(c, whole) })
	})
	if len(buffers) == 0 {
		return nil
	}
	return saved.ReadAll(tensor.NewCtx(buffers[0].Tensor.Device()).NoGrad(), buffers)
}

// make reads a box of a parameter. It panics with a *tensor.Error if it cannot.
func (w *SavedWeights) make(c *tensor.Ctx, dt tensor.DType, at tensor.Placement) *tensor.Tensor {
	shape := make([]int, len(at.Box))
	for d, ranges := range at.Box {
		shape[d] = placement.Len(ranges)
	}
	t := tensor.Empty(c, dt, shape...)
	var bad []string
	err := w.check(c, tensor.Placed{Placement: at, Tensor: t}, &bad)
	if err == nil {
		err = notFinite(bad)
	}
	if err != nil {
		t.Free()
		panic(&tensor.Error{Op: "models.LoadPretrained", Msg: err.Error(), Cause: err})
	}
	return t
}

// closed closes a set that nothing will read.
func closed(set *safetensors.Set, o loadOptions) error {
	if !o.deferred {
		return nil // it is closed anyway
	}
	return set.Close()
}
