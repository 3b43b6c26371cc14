// SPDX-License-Identifier: Apache-2.0

package models

import (
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
	for _, p := range tree.Parameters() {
		if p.Deferred() == nil { // it has no elements
			continue
		}
		name, dt, shape := p.Name, p.DType(), p.Shape()
		p.Defer(func(c *tensor.Ctx) *tensor.Tensor {
			t := tensor.Empty(c, dt, shape...)
			if err := saved.fill(c, name, t); err != nil {
				t.Free()
				panic(&tensor.Error{Op: "models.LoadPretrained", Msg: err.Error(), Cause: err})
			}
			return t
		})
	}
	if len(buffers) == 0 {
		return nil
	}
	return saved.ReadAll(tensor.NewCtx(buffers[0].Tensor.Device()).NoGrad(), buffers)
}

// fill reads a whole parameter.
func (w *SavedWeights) fill(c *tensor.Ctx, name string, into *tensor.Tensor) error {
	var bad []string
	if err := w.check(c, tensor.Named{Name: name, Tensor: into}.Placed(), &bad); err != nil {
		return err
	}
	return notFinite(bad)
}

// closed closes a set that nothing will read.
func closed(set *safetensors.Set, o loadOptions) error {
	if !o.deferred {
		return nil // it is closed anyway
	}
	return set.Close()
}
