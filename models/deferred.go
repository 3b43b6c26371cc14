// SPDX-License-Identifier: Apache-2.0

package models

import (
	"os"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-ml/lockstep/internal/mapped"
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
	if w.options.mapped {
		if t := w.mappedPart(c, dt, at, shape); t != nil {
			return t
		}
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

// mapNow is readLater, and then makes all parameters. Those that are read are read by several goroutines.
func mapNow(set *safetensors.Set, m Model, o loadOptions) error {
	if err := readLater(set, m, o); err != nil {
		return err
	}
	var readers errgroup.Group
	readers.SetLimit(min(runtime.GOMAXPROCS(0), maxReaders))
	nn.Walk(m).EachParameter(func(_ string, p *nn.Parameter) {
		fill := p.Deferred()
		if fill == nil {
			return
		}
		readers.Go(func() error {
			return tensor.Try(func() {
				c := tensor.NewCtx(p.Device()).NoGrad()
				elements := fill(c)
				c.Sync()
				p.Reload(elements)
				p.OnMissing(nil)
				p.DeferPart(nil)
			})
		})
	})
	return readers.Wait()
}

// mappedPart is a part of a parameter in the memory of its file; nil if it has to be read.
func (w *SavedWeights) mappedPart(c *tensor.Ctx, dt tensor.DType, at tensor.Placement, shape []int) *tensor.Tensor {
	a := w.arrays[at.Name]
	params, err := a.tensors(w.named)
	e, ok := w.set.Lookup(a.Name)
	if err != nil || !ok || e.DType != dt || a.Transpose && len(at.Shape) == 2 {
		return nil
	}
	file, begin, n, ok := e.Region(a.placed(e, params, at))
	if !ok || n == 0 {
		return nil
	}
	m := w.mapOf(file)
	if m == nil || begin%8 != 0 || begin+int64(n) > int64(len(m.Memory)) {
		return nil
	}
	t, ok := tensor.FromOwner(c, m.Memory[begin:begin+int64(n)], m, dt, shape...)
	if !ok {
		return nil
	}
	return t
}

// mapOf is a file in memory; nil if it cannot be there.
func (w *SavedWeights) mapOf(file *os.File) *mapped.Private {
	w.mapping.Lock()
	defer w.mapping.Unlock()
	m, known := w.maps[file]
	if !known {
		m, _ = mapped.MapPrivate(file) // it is read then
		if w.maps == nil {
			w.maps = map[*os.File]*mapped.Private{}
		}
		w.maps[file] = m
	}
	return m
}

// closed closes a set that nothing will read.
func closed(set *safetensors.Set, o loadOptions) error {
	if !o.deferred {
		return nil // it is closed anyway
	}
	return set.Close()
}
