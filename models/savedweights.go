// SPDX-License-Identifier: Apache-2.0

package models

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/mapped"
	"github.com/lockstep-ml/lockstep/internal/placement"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// SavedWeights are saved weights that fit a model and can be read in parts, so that a rank reads only its own.
type SavedWeights struct {
	set     *safetensors.Set
	arrays  map[string]SavedArray
	named   map[string]tensor.Named
	buffers map[string]bool
	options loadOptions

	mapping sync.Mutex
	maps    map[*os.File]*mapped.Private // nil: it cannot be mapped
}

// FitWeights compares a saved set with m, as ReadWeights does, and reads no elements. The parameters of m may be on the
// meta device: only their shapes and dtypes count. The caller keeps the set open.
func FitWeights(set *safetensors.Set, m nn.Module) (*SavedWeights, error) {
	tree := nn.Walk(m)
	saved, err := fit(set, m, tree)
	if err != nil {
		return nil, err
	}
	buffers := map[string]bool{}
	for _, b := range tree.Buffers() {
		buffers[b.Name] = true
	}
	return &SavedWeights{set: set, arrays: saved, named: byName(tree), buffers: buffers}, nil
}

// Read fills p.Tensor with the elements of a part of a parameter or buffer. It reads only their bytes, except that for
// a matrix that is saved transposed it reads whole rows, and converts floating-point dtypes. Like tensor.WriteFrom it
// counts numbers that are not finite before or after the conversion: see ReadWeights for what that means.
func (w *SavedWeights) Read(c *tensor.Ctx, p tensor.Placed) (tensor.Census, error) {
	n, err := w.read(c, p)
	if err != nil {
		return n, fmt.Errorf("models: %s: %w", p.Name, err)
	}
	return n, nil
}

func (w *SavedWeights) read(c *tensor.Ctx, p tensor.Placed) (tensor.Census, error) {
	of, ok := w.named[p.Name]
	switch {
	case !ok:
		return tensor.Census{}, errors.New("the model has no such parameter or buffer")
	case !slices.Equal(of.Shape(), p.Shape):
		return tensor.Census{}, fmt.Errorf("a part of shape %v: the model has %v", p.Shape, of.Shape())
	case p.Numel() != p.Tensor.Numel():
		return tensor.Census{}, fmt.Errorf("a part of %d elements for a tensor of %d: want as many", p.Numel(),
			p.Tensor.Numel())
	}
	if err := p.Validate(); err != nil || p.Numel() == 0 {
		return tensor.Census{}, err
	}
	a := w.arrays[p.Name]
	params, err := a.tensors(w.named)
	if err != nil {
		return tensor.Census{}, err
	}
	e, _ := w.set.Lookup(a.Name)
	if a.Transpose && len(p.Shape) == 2 {
		return a.readTransposed(c, e, params, p)
	}
	section, err := e.Section(a.placed(e, params, p.Placement))
	if err != nil {
		return tensor.Census{}, err
	}
	return tensor.WriteFrom(c, p.Tensor, e.DType, section)
}

// placed is the part of the saved array that a part of one of its parameters is. It has the order of a transposed
// matrix as the array has it.
func (a SavedArray) placed(e *safetensors.Array, params []tensor.Named, p tensor.Placement) tensor.Placement {
	box := slices.Clone(p.Box)
	if a.Transpose && len(box) == 2 {
		slices.Reverse(box)
	}
	at := 0 // where the parameter begins in the array, along the rule's dim
	for _, before := range params {
		if before.Name == p.Name {
			break
		}
		at += a.shape(before.Shape())[a.Dim]
	}
	q := e.Placement()
	for d, ranges := range box {
		if at > 0 && d == a.Dim {
			ranges = slices.Clone(ranges)
			for i := range ranges {
				ranges[i].Start, ranges[i].Stop = ranges[i].Start+at, ranges[i].Stop+at
			}
		}
		q = q.Along(d, ranges...)
	}
	q.Flat = p.Flat
	return q
}

// readTransposed reads a part of a matrix of which the array has the transpose: the rows of the parameter's box that
// have elements of the part.
func (a SavedArray) readTransposed(c *tensor.Ctx, e *safetensors.Array, params []tensor.Named,
	p tensor.Placed) (tensor.Census, error) {
	rows := p.Box[0]
	columns := p.BoxNumel() / placement.Len(rows)
	first, last := p.Flat.Start/columns, (p.Flat.Stop+columns-1)/columns
	around := p.Along(0, placement.Sub(rows, first, last)...)
	section, err := e.Section(a.placed(e, params, around))
	if err != nil {
		return tensor.Census{}, err
	}
	data := make([]byte, section.Size())
	if _, err := io.ReadFull(section, data); err != nil {
		return tensor.Census{}, err
	}
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		saved := tensor.FromBytes(c, data, e.DType, columns, last-first)
		data = tensor.ReadBytes(c, tensor.Transpose(c, saved, 0, 1))
		return nil
	})
	data = data[(p.Flat.Start-first*columns)*e.DType.Size():]
	return tensor.WriteFrom(c, p.Tensor, e.DType, bytes.NewReader(data))
}

// ReadAll fills parts of parameters and buffers, and has the errors of ReadWeights.
func (w *SavedWeights) ReadAll(c *tensor.Ctx, parts []tensor.Placed) error {
	var bad []string
	for _, p := range parts {
		if err := w.check(c, p, &bad); err != nil {
			return err
		}
	}
	c.Sync() // before other contexts use it
	return notFinite(bad)
}

// check is Read that adds to bad what is not finite, if it may not be so.
func (w *SavedWeights) check(c *tensor.Ctx, p tensor.Placed, bad *[]string) error {
	allowed := w.options.allows(p.Name) || w.buffers[p.Name] && nonFinite(c, p.Tensor) > 0
	n, err := w.Read(c, p)
	if err != nil {
		return err
	}
	name, saved := p.Name, w.arrays[p.Name].Name
	if saved != name {
		name += " (" + saved + " in the file)"
	}
	switch {
	case n.Overflowed > 0:
		e, _ := w.set.Lookup(saved)
		*bad = append(*bad, fmt.Sprintf("%s has %d of %d that %v cannot hold (saved as %s)", name, n.Overflowed,
			p.Numel(), p.Tensor.DType(), e.TypeName()))
	case n.NonFinite > 0 && !allowed:
		*bad = append(*bad, fmt.Sprintf("%s has %d of %d", name, n.NonFinite, p.Numel()))
	}
	return nil
}

// nonFinite counts the elements that are NaN or infinite.
func nonFinite(c *tensor.Ctx, t *tensor.Tensor) int {
	n, _ := dtype.Census(t.DType(), tensor.ReadBytes(c, t))
	return n
}

// notFinite names weights that are not finite; nil if there are none.
func notFinite(bad []string) error {
	if len(bad) == 0 {
		return nil
	}
	return fmt.Errorf("models: the saved weights are not finite: %s", some(bad))
}
