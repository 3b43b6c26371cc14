// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// TopK is the k largest elements along dim d, the largest first, and their int64 indices; with smallest the k smallest,
// the smallest first. For floats, int32 and int64. NaN counts as the largest of all, as in PyTorch; equal elements are
// in the order of their indices.
func TopK(c *Ctx, x *Tensor, k, d int, smallest bool) (values, indices *Tensor) {
	const name = "TopK"
	c.wantSigned(name, x)
	d = x.dimIndex(c, name, d)
	if x.ndim == 0 || k < 0 || k > x.shape[d] {
		c.fail(name, []*Tensor{x}, "k = %d of dim %d: want at least one dim, and 0 ≤ k ≤ its size", k, d)
	}
	c.wantFeaturesTogether(name, x, d)
	if last := x.ndim - 1; d != last {
		values, indices = TopK(c, Transpose(c, x, d, last), k, last, smallest)
		return Transpose(c, values, d, last), Transpose(c, indices, d, last)
	}
	x = Contiguous(c, x)
	shape := slices.Clone(x.Shape())
	shape[d] = k
	values, indices = c.empty(name, x.dtype, shape...), c.empty(name, Int64, shape...)
	a := attrs{}
	if smallest {
		a = ints(1)
	}
	c.launchMulti(backend.OpTopK, &a, []*Tensor{values, indices}, x)
	if x.dtype.IsFloat() {
		from, dt := x.Shape(), x.dtype
		c.record(name, []*Tensor{values}, []*Tensor{x}, []*Tensor{indices}, func(b *Back) {
			g, along := Zeros(b.Ctx, dt, from...), ints(d)
			b.launchAttrs(backend.OpScatterAdd, &along, g, b.materialize(name, b.Grad(0)), indices)
			b.Set(0, g)
		})
	}
	return values, indices
}

// CumSum adds up along dim d: y[i] = x[0] + … + x[i], for floats (summed in float64), int32 and int64.
func CumSum(c *Ctx, x *Tensor, d int) *Tensor {
	const name = "CumSum"
	c.wantSigned(name, x)
	c.autocast(name, &x)
	d = x.dimIndex(c, name, d)
	c.wantFeaturesTogether(name, x, d)
	if last := x.ndim - 1; x.ndim > 0 && d != last {
		return Transpose(c, CumSum(c, Transpose(c, x, d, last), last), d, last)
	}
	x = Contiguous(c, x)
	y := c.emptyLike(name, x)
	c.launch(backend.OpCumSum, y, x)
	if x.dtype.IsFloat() {
		c.record(name, []*Tensor{y}, []*Tensor{x}, nil, func(b *Back) {
			g, backward := b.emptyLike(name, y), ints(1)
			b.launchAttrs(backend.OpCumSum, &backward, g, b.materialize(name, b.Grad(0)))
			b.Set(0, g)
		})
	}
	return y
}
