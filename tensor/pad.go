// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// PadMode says what Pad puts around a tensor.
type PadMode uint8

// The modes, as torch.nn.functional.pad names them.
const (
	PadConstant  PadMode = iota // a number
	PadReflect                  // the elements mirrored at the outermost ones, which are not repeated
	PadReplicate                // the outermost element
	PadCircular                 // the elements from the other end
)

// Pad puts elements around x. pads are pairs of the numbers of elements before and after, from the last dim on, as for
// torch.nn.functional.pad: {left, right, top, bottom} for images. PadConstant pads with value, and its numbers may be
// negative, which crops. The other modes require value 0, and pads less than the dim's size for PadReflect, or at most
// its size for PadCircular; they keep an index of each element for the gradient.
func Pad(c *Ctx, x *Tensor, pads []int, mode PadMode, value float64) *Tensor {
	const name = "Pad"
	x.check(c, name)
	if len(pads)%2 != 0 || len(pads) > 2*x.ndim {
		c.fail(name, []*Tensor{x}, "pads %v: want a pair for each of at most %d dims", slices.Clone(pads), x.ndim)
	}
	if mode > PadCircular || mode != PadConstant && value != 0 {
		c.fail(name, []*Tensor{x}, "mode %d with value %g: want one of the modes, and a value for PadConstant alone",
			mode, value)
	}
	before, after := make([]int, x.ndim), make([]int, x.ndim)
	for i := 0; i < len(pads); i += 2 {
		d := x.ndim - 1 - i/2
		before[d], after[d] = pads[i], pads[i+1]
		most, least := max(before[d], after[d]), min(before[d], after[d])
		crop := -min(before[d], 0) - min(after[d], 0)
		if most > mode.most(x.shape[d]) || mode != PadConstant && least < 0 || crop > x.shape[d] {
			c.fail(name, []*Tensor{x}, "%d before and %d behind dim %d do not go with its size in this mode",
				before[d], after[d], d)
		}
	}
	if mode == PadConstant {
		return padConstant(c, x, before, after, value)
	}
	y := x
	for d := range before {
		if before[d] > 0 || after[d] > 0 {
			y = Gather(c, y, d, mode.index(c, y, d, before[d], after[d]))
		}
	}
	if y == x {
		return Clone(c, x)
	}
	return y
}

// most is the largest pad of a dim of size n.
func (m PadMode) most(n int) int {
	switch {
	case m == PadReflect:
		return max(n-1, 0)
	case m == PadCircular:
		return n
	case m == PadReplicate && n == 0:
		return 0
	}
	return math.MaxInt
}

// index says for each element of the padded x where in dim d it comes from.
func (m PadMode) index(c *Ctx, x *Tensor, d, before, after int) *Tensor {
	n := x.shape[d]
	from := make([]int64, before+n+after)
	for i := range from {
		at := i - before
		switch {
		case m == PadReplicate:
			at = min(max(at, 0), n-1)
		case m == PadCircular:
			at = (at + n) % n
		case at < 0:
			at = -at
		case at >= n:
			at = 2*(n-1) - at
		}
		from[i] = int64(at)
	}
	shape, column := slices.Clone(x.Shape()), make([]int, x.ndim)
	for k := range column {
		column[k] = 1
	}
	shape[d], column[d] = len(from), len(from)
	return Expand(c, FromSlice(c, from, column...), shape...)
}

func padConstant(c *Ctx, x *Tensor, before, after []int, value float64) *Tensor {
	const name = "Pad"
	from, to, crops := x.Shape(), slices.Clone(x.Shape()), false
	for d := range to {
		to[d] += before[d] + after[d]
		crops = crops || before[d] < 0 || after[d] < 0
	}
	inner := func(t *Tensor, sign int) *Tensor { // what x and the result share, as a window on t
		for d, n := range from {
			lo, hi := min(before[d], 0), min(after[d], 0)
			t = t.narrow(d, max(sign*before[d], 0), n+lo+hi)
		}
		return t
	}
	y := c.full(name, x.dtype, value, to)
	c.launch(backend.OpCopy, inner(y, 1), inner(x, -1))
	if x.dtype.IsFloat() {
		dt := x.dtype
		c.record(name, []*Tensor{y}, []*Tensor{x}, nil, func(b *Back) {
			g := inner(b.Grad(0), 1)
			if crops {
				whole := Zeros(b.Ctx, dt, from...)
				b.launch(backend.OpCopy, inner(whole, -1), g)
				g = whole
			}
			b.Set(0, g)
		})
	}
	return y
}
