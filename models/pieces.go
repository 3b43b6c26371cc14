// SPDX-License-Identifier: Apache-2.0

package models

import (
	"bytes"
	"fmt"

	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// SavedWeights are saved weights that fit a model and of which parts are read, so that a rank reads only what it holds.
type SavedWeights struct {
	set     *safetensors.Set
	arrays  map[string]array
	named   map[string]tensor.Named
	buffers map[string]bool
}

// FitWeights compares a saved set with m, as ReadWeights does, and reads no elements. The parameters of m may be on the
// meta device: only their shapes and dtypes count. The caller keeps the set open.
func FitWeights(set *safetensors.Set, m Model) (*SavedWeights, error) {
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

// ReadPiece fills into with the elements from lo on of the flat order of a parameter or buffer, as many as into has. It
// reads their bytes alone, and converts floating-point dtypes. Like tensor.WriteFrom it counts what is not finite, or
// is not any more: see ReadWeights for what that means.
func (w *SavedWeights) ReadPiece(c *tensor.Ctx, name string, lo int, into *tensor.Tensor) (tensor.Census, error) {
	p, ok := w.named[name]
	if !ok {
		return tensor.Census{}, fmt.Errorf("models: the model has no parameter or buffer %s", name)
	}
	hi := lo + into.Numel()
	if lo < 0 || hi > p.Numel() {
		return tensor.Census{}, fmt.Errorf("models: elements [%d, %d) of %s, which has %d", lo, hi, name, p.Numel())
	}
	if lo == hi {
		return tensor.Census{}, nil
	}
	n, err := w.readPiece(c, p, lo, hi, into)
	if err != nil {
		return n, fmt.Errorf("models: %s: %w", name, err)
	}
	return n, nil
}

func (w *SavedWeights) readPiece(c *tensor.Ctx, p tensor.Named, lo, hi int, into *tensor.Tensor) (tensor.Census,
	error) {
	a := w.arrays[p.Name]
	params, err := a.tensors(w.named)
	if err != nil {
		return tensor.Census{}, err
	}
	e, _ := w.set.Lookup(a.name)
	at, dim := 0, a.rule.Dim // where the parameter begins in the array, along dim
	for _, before := range params {
		if before.Name == p.Name {
			break
		}
		at += a.shape(before.Shape())[dim]
	}
	shape := p.Shape()
	row := 1 // elements of the parameter per index of its first dim
	if len(shape) > 0 {
		row = p.Numel() / shape[0]
	}
	if !a.rule.Transpose && (len(params) == 1 || dim == 0) {
		section, err := e.Section(at*row+lo, at*row+hi)
		if err != nil {
			return tensor.Census{}, err
		}
		return tensor.WriteFrom(c, into, e.DType, section)
	}
	// The rows of the parameter that have the elements, as they lie in the array.
	first, last := lo/row, (hi+row-1)/row
	saved := a.shape(shape)
	ranges := make([]safetensors.Range, len(saved))
	for d, n := range saved {
		ranges[d] = safetensors.Range{Stop: n}
	}
	rows := 0 // the dim of the array that is the parameter's first
	if a.rule.Transpose {
		rows = 1
	}
	ranges[rows] = safetensors.Range{Start: first, Stop: last}
	if len(params) > 1 {
		ranges[dim].Start, ranges[dim].Stop = ranges[dim].Start+at, ranges[dim].Stop+at
	}
	data, err := e.ReadSlice(ranges...)
	if err != nil {
		return tensor.Census{}, err
	}
	if a.rule.Transpose {
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			box := tensor.FromBytes(c, data, e.DType, saved[0], last-first)
			data = tensor.ReadBytes(c, tensor.Transpose(c, box, 0, 1))
			return nil
		})
	}
	width := e.DType.Size()
	return tensor.WriteFrom(c, into, e.DType, bytes.NewReader(data[(lo-first*row)*width:(hi-first*row)*width]))
}

// Part is the elements from Lo on of the flat order of a parameter or buffer, as many as Into has.
type Part struct {
	Name string
	Lo   int
	Into *tensor.Tensor
}

// ReadParts fills parts, as ReadWeights does whole parameters: NaN, infinities and numbers that the parts cannot hold
// are an error that names the weights, after all have been read; only what has such values already, as masks have, may
// have them if it is a buffer.
func (w *SavedWeights) ReadParts(c *tensor.Ctx, parts []Part) error {
	var bad []string
	for _, p := range parts {
		allowed := w.buffers[p.Name] && nonFinite(c, []tensor.Named{{Name: p.Name, Tensor: p.Into}}) > 0
		n, err := w.ReadPiece(c, p.Name, p.Lo, p.Into)
		if err != nil {
			return err
		}
		switch {
		case n.Overflowed > 0:
			bad = append(bad, fmt.Sprintf("%s has %d of %d that %v cannot hold", p.Name, n.Overflowed, p.Into.Numel(),
				p.Into.DType()))
		case n.NonFinite > 0 && !allowed:
			bad = append(bad, fmt.Sprintf("%s has %d of %d", p.Name, n.NonFinite, p.Into.Numel()))
		}
	}
	c.Sync() // before other contexts use it
	if len(bad) > 0 {
		return fmt.Errorf("models: the saved weights are not finite: %s", some(bad))
	}
	return nil
}
