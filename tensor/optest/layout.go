// SPDX-License-Identifier: Apache-2.0

package optest

import "github.com/lockstep-ml/lockstep/tensor"

// layout is a way in which elements lie in memory.
type layout interface {
	// prepare changes values to some that can lie so.
	prepare(a Array) Array
	// view returns a tensor of t's elements that lies so.
	view(c *tensor.Ctx, t *tensor.Tensor) *tensor.Tensor
}

// reversed stores the dims in reverse order, as a transposed matrix does.
type reversed struct{}

func (reversed) prepare(a Array) Array { return a }

func (reversed) view(c *tensor.Ctx, t *tensor.Tensor) *tensor.Tensor {
	dims := make([]int, t.Dim())
	for i := range dims {
		dims[i] = len(dims) - 1 - i
	}
	return tensor.Permute(c, tensor.Clone(c, tensor.Permute(c, t, dims...)), dims...)
}

// window is a part of a larger tensor, in every dim.
type window struct{}

func (window) prepare(a Array) Array { return a }

func (window) view(c *tensor.Ctx, t *tensor.Tensor) *tensor.Tensor {
	shape := make([]int, t.Dim())
	for d, s := range t.Shape() {
		shape[d] = s + 2
	}
	w := tensor.Ones(c, t.DType(), shape...)
	for d, s := range t.Shape() {
		w = tensor.Slice(c, w, d, 1, s+1)
	}
	tensor.CopyInto(c, w, t)
	return w
}

// everyOther leaves a gap after each element.
type everyOther struct{}

func (everyOther) prepare(a Array) Array { return a }

func (everyOther) view(c *tensor.Ctx, t *tensor.Tensor) *tensor.Tensor {
	w := tensor.Select(c, tensor.Ones(c, t.DType(), append(append([]int{}, t.Shape()...), 2)...), -1, 1)
	tensor.CopyInto(c, w, t)
	return w
}

// broadcast repeats one index along the first dim that is larger than 1, with stride 0.
type broadcast struct{}

func (broadcast) prepare(a Array) Array {
	a, _ = a.collapse()
	return a
}

func (broadcast) view(c *tensor.Ctx, t *tensor.Tensor) *tensor.Tensor {
	for d, s := range t.Shape() {
		if s > 1 && t.Numel() > 0 {
			return tensor.Expand(c, tensor.Clone(c, tensor.Slice(c, t, d, 0, 1)), t.Shape()...)
		}
	}
	return t
}

// prepareOnly has the values of a layout, and lies contiguously.
type prepareOnly struct{ layout }

func (prepareOnly) view(_ *tensor.Ctx, t *tensor.Tensor) *tensor.Tensor { return t }
