// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// alias returns a new window on t's memory, with no part in autograd yet.
func (t *Tensor) alias() *Tensor {
	return &Tensor{st: t.st, gen: t.gen, dtype: t.dtype, ndim: t.ndim, offset: t.offset, shape: t.shape,
		stride: t.stride}
}

// reshaped is a view of a contiguous t in another shape of as many elements.
func (t *Tensor) reshaped(shape []int) *Tensor {
	v := newTensor(t.st, t.dtype, shape)
	v.gen, v.offset = t.gen, t.offset
	return v
}

// Detach returns a view of x that takes no part in autograd.
func Detach(x *Tensor) *Tensor { return x.alias() }

// narrow shows n indices of dim d from start on, outside autograd. An empty view keeps
// the offset: it would otherwise begin behind the storage's end.
func (t *Tensor) narrow(d, start, n int) *Tensor {
	y := t.alias()
	y.shape[d] = n
	if y.Numel() > 0 {
		y.offset += start * t.stride[d]
	}
	return y
}

// materialize returns x if it is contiguous, else a contiguous copy, outside autograd.
func (c *Ctx) materialize(op string, x *Tensor) *Tensor {
	if x.IsContiguous() {
		return x
	}
	y := c.emptyLike(op, x)
	c.launch(backend.OpCopy, y, x)
	return y
}

// Contiguous returns x if its elements lie in row-major order, otherwise a copy.
func Contiguous(c *Ctx, x *Tensor) *Tensor {
	x.check(c, "Contiguous")
	if x.IsContiguous() {
		return x
	}
	return Clone(c, x)
}

// Clone returns a contiguous copy of x.
func Clone(c *Ctx, x *Tensor) *Tensor {
	x.check(c, "Clone")
	y := c.emptyLike("Clone", x)
	y.partOf(x)
	c.launch(backend.OpCopy, y, x)
	c.record("Clone", []*Tensor{y}, []*Tensor{x}, nil, func(b *Back) { b.Set(0, b.Grad(0)) })
	return y
}

// Cast returns x converted to dtype dt (x itself if it has it). Floats become
// integers by truncation toward zero, and true where they are not 0.
func Cast(c *Ctx, x *Tensor, dt DType) *Tensor {
	x.check(c, "Cast")
	if x.dtype == dt {
		return x
	}
	y := c.empty("Cast", dt, x.Shape()...)
	y.partOf(x)
	c.launch(backend.OpCopy, y, x)
	if dt.IsFloat() && x.dtype.IsFloat() {
		from := x.sumsIn()
		n := c.record("Cast", []*Tensor{y}, []*Tensor{x}, nil, func(b *Back) {
			if g := b.Grad(0); from == Float32 && g.dtype.IsHalf() {
				b.Set(0, g) // who takes it widens it
			} else {
				b.Set(0, b.convert("Cast", g, from))
			}
		})
		if source := x.recomputable(); source != nil && n != nil {
			n.source = source
			n.recomputes(y, func(c *Ctx) *Tensor { return c.convert("Cast", source.recompute(c), dt) })
		}
	}
	return y
}

// Reshape returns x in another shape with as many elements, in row-major order; one size
// may be −1 and is then derived. It is a view if x is contiguous, otherwise a copy.
func Reshape(c *Ctx, x *Tensor, shape ...int) *Tensor {
	x.check(c, "Reshape")
	shape = c.inferShape(x, shape)
	y := x.restrided(shape)
	if y == nil {
		x = Contiguous(c, x)
		y = x.reshaped(shape)
	}
	y.partAs(x)
	from := x.Shape()
	c.record("Reshape", []*Tensor{y}, []*Tensor{x}, nil, func(b *Back) {
		g := b.Arrived(0).restrided(from)
		if g == nil {
			g = b.materialize("Reshape", b.Arrived(0)).reshaped(from)
		}
		b.Set(0, g)
	})
	return y
}

// restrided shows x in another shape without a copy, or returns nil where no strides can do that. Runs of dims that are
// contiguous in memory can be cut differently.
func (x *Tensor) restrided(shape []int) *Tensor {
	if x.IsContiguous() {
		return x.reshaped(shape)
	}
	y := x.alias()
	y.ndim = len(shape)
	to := len(shape) - 1
	for d := x.ndim - 1; d >= 0; {
		inner, n := x.stride[d], x.shape[d] // the run of dims that ends at d
		for d--; d >= 0 && (x.shape[d] == 1 || x.stride[d] == n*inner); d-- {
			n *= x.shape[d]
		}
		run := 1
		for ; to >= 0 && (run < n || shape[to] == 1); to-- {
			y.shape[to], y.stride[to] = shape[to], run*inner
			run *= shape[to]
		}
		if run != n {
			return nil
		}
	}
	for ; to >= 0; to-- {
		y.shape[to], y.stride[to] = shape[to], 1
	}
	return y
}

// inferShape replaces a −1 in shape and checks the number of elements.
func (c *Ctx) inferShape(x *Tensor, shape []int) []int {
	out, n, hole := slices.Clone(shape), 1, -1
	for i, s := range out {
		switch {
		case s == -1 && hole < 0:
			hole = i
		case s < 0:
			c.fail("Reshape", []*Tensor{x}, "shape %v: want sizes ≥ 0 and at most one −1", slices.Clone(shape))
		default:
			n *= s
		}
	}
	if hole >= 0 {
		if n == 0 || x.Numel()%n != 0 {
			c.fail("Reshape", []*Tensor{x}, "no size for −1 makes %v hold %d elements", slices.Clone(shape), x.Numel())
		}
		out[hole] = x.Numel() / n
		n *= out[hole]
	}
	if n != x.Numel() || len(out) > MaxDims {
		c.fail("Reshape", []*Tensor{x}, "shape %v holds %d elements: want %d, in at most %d dims", slices.Clone(shape),
			n, x.Numel(), MaxDims)
	}
	return out
}

// Flatten merges the dims start to end (inclusive; negative ones count from the end).
func Flatten(c *Ctx, x *Tensor, start, end int) *Tensor {
	x.check(c, "Flatten")
	s, e := x.dimIndex(c, "Flatten", start), x.dimIndex(c, "Flatten", end)
	if s > e {
		c.fail("Flatten", []*Tensor{x}, "dims %d to %d: want start ≤ end", start, end)
	}
	n := 1
	for _, v := range x.Shape()[s:min(e+1, x.ndim)] {
		n *= v
	}
	shape := append(slices.Clone(x.Shape()[:s]), n)
	return Reshape(c, x, append(shape, x.Shape()[min(e+1, x.ndim):]...)...)
}

// Squeeze removes dim d, which must have size 1.
func Squeeze(c *Ctx, x *Tensor, d int) *Tensor {
	x.check(c, "Squeeze")
	d = x.dimIndex(c, "Squeeze", d)
	if x.ndim == 0 || x.shape[d] != 1 {
		c.fail("Squeeze", []*Tensor{x}, "dim %d does not have size 1", d)
	}
	return Reshape(c, x, slices.Delete(slices.Clone(x.Shape()), d, d+1)...)
}

// Unsqueeze inserts a dim of size 1 before dim d; d = −1 appends one.
func Unsqueeze(c *Ctx, x *Tensor, d int) *Tensor {
	x.check(c, "Unsqueeze")
	if d < 0 {
		d += x.ndim + 1
	}
	if d < 0 || d > x.ndim {
		c.fail("Unsqueeze", []*Tensor{x}, "dim %d: want one in [%d, %d]", d, -x.ndim-1, x.ndim)
	}
	return Reshape(c, x, slices.Insert(slices.Clone(x.Shape()), d, 1)...)
}

// Permute returns a view with reordered dims: dim i of the result is dim dims[i] of x.
func Permute(c *Ctx, x *Tensor, dims ...int) *Tensor {
	x.check(c, "Permute")
	if len(dims) != x.ndim {
		c.fail("Permute", []*Tensor{x}, "dims %v: want a permutation of %d dims", slices.Clone(dims), x.ndim)
	}
	y := x.alias()
	inverse, seen := make([]int, x.ndim), [MaxDims]bool{}
	for i, d := range dims {
		d = x.dimIndex(c, "Permute", d)
		if seen[d] {
			c.fail("Permute", []*Tensor{x}, "dims %v: dim %d twice", slices.Clone(dims), d)
		}
		seen[d], inverse[d] = true, i
		if int(x.part) == d+1 {
			y.part = uint8(i + 1)
		}
		y.shape[i], y.stride[i] = x.shape[d], x.stride[d]
	}
	c.record("Permute", []*Tensor{y}, []*Tensor{x}, nil, func(b *Back) {
		b.Set(0, Permute(b.Ctx, b.Arrived(0), inverse...))
	})
	return y
}

// Transpose returns a view with two dims exchanged.
func Transpose(c *Ctx, x *Tensor, d0, d1 int) *Tensor {
	x.check(c, "Transpose")
	d0, d1 = x.dimIndex(c, "Transpose", d0), x.dimIndex(c, "Transpose", d1)
	dims := make([]int, x.ndim)
	for i := range dims {
		dims[i] = i
	}
	if x.ndim > 0 {
		dims[d0], dims[d1] = d1, d0
	}
	return Permute(c, x, dims...)
}

// Expand broadcasts x to shape, a view with stride 0 in the new or enlarged dims.
func Expand(c *Ctx, x *Tensor, shape ...int) *Tensor {
	x.check(c, "Expand")
	ok := len(shape) >= x.ndim && len(shape) <= MaxDims && !slices.ContainsFunc(shape, negative)
	for d := 0; ok && d < x.ndim; d++ {
		ok = x.shape[d] == shape[len(shape)-x.ndim+d] || x.shape[d] == 1
	}
	if !ok {
		c.fail("Expand", []*Tensor{x}, "does not broadcast to %v", slices.Clone(shape))
	}
	v := x.broadcastView(shape)
	y := x.alias()
	y.ndim, y.shape, y.stride = v.NDim, v.Shape, v.Stride
	from := x.Shape()
	c.record("Expand", []*Tensor{y}, []*Tensor{x}, nil, func(b *Back) { b.Set(0, b.sumTo(b.Grad(0), from)) })
	return y
}

func negative(n int) bool { return n < 0 }

// Slice returns the indices start ≤ i < end of dim d as a view; negative bounds count
// from the end.
func Slice(c *Ctx, x *Tensor, d, start, end int) *Tensor {
	x.check(c, "Slice")
	d = x.dimIndex(c, "Slice", d)
	if x.ndim == 0 {
		c.fail("Slice", []*Tensor{x}, "a 0-D tensor has no dim to slice")
	}
	n, s, e := x.shape[d], start, end
	if s < 0 {
		s += n
	}
	if e < 0 {
		e += n
	}
	if s < 0 || e > n || s > e {
		c.fail("Slice", []*Tensor{x}, "[%d:%d] of dim %d: want 0 ≤ start ≤ end ≤ %d", start, end, d, n)
	}
	if e-s < n {
		c.wantAllFeatures("Slice", x, d)
	}
	y := x.narrow(d, s, e-s)
	y.part = x.part
	from := x.Shape()
	c.record("Slice", []*Tensor{y}, []*Tensor{x}, nil, func(b *Back) {
		g := Zeros(b.Ctx, b.Grad(0).dtype, from...)
		b.launch(backend.OpCopy, g.narrow(d, s, e-s), b.Grad(0))
		b.Set(0, g)
	})
	return y
}

// Select returns index i of dim d as a view without that dim.
func Select(c *Ctx, x *Tensor, d, i int) *Tensor {
	x.check(c, "Select")
	d = x.dimIndex(c, "Select", d)
	if x.ndim == 0 || i < -x.shape[d] || i >= x.shape[d] {
		c.fail("Select", []*Tensor{x}, "index %d of dim %d is out of range", i, d)
	}
	if i < 0 {
		i += x.shape[d]
	}
	s := Slice(c, x, d, i, i+1)
	y := s.alias()
	copy(y.shape[d:], s.shape[d+1:s.ndim])
	copy(y.stride[d:], s.stride[d+1:s.ndim])
	y.ndim--
	if y.part = s.part; int(s.part) > d {
		y.part--
	}
	from := s.Shape()
	c.record("Select", []*Tensor{y}, []*Tensor{s}, nil, func(b *Back) {
		b.Set(0, b.materialize("Select", b.Grad(0)).reshaped(from))
	})
	return y
}

// Split cuts dim d into views of the given sizes, which must add up to its size.
func Split(c *Ctx, x *Tensor, d int, sizes ...int) []*Tensor {
	x.check(c, "Split")
	d = x.dimIndex(c, "Split", d)
	total := 0
	for _, s := range sizes {
		total += s
	}
	if x.ndim == 0 || total != x.shape[d] || slices.ContainsFunc(sizes, negative) {
		c.fail("Split", []*Tensor{x}, "sizes %v add up to %d: want sizes ≥ 0 that add up to the size of dim %d",
			slices.Clone(sizes), total, d)
	}
	if len(sizes) > 1 {
		c.wantAllFeatures("Split", x, d)
	}
	out, at := make([]*Tensor, len(sizes)), 0
	for i, s := range sizes {
		out[i] = x.narrow(d, at, s)
		out[i].part = x.part
		at += s
	}
	from := x.Shape()
	c.record("Split", out, []*Tensor{x}, nil, func(b *Back) {
		if g := b.joined(d, from, sizes); g != nil {
			b.Set(0, g)
			return
		}
		g, at := b.empty("Split", x.sumsIn(), from...), 0
		for i, s := range sizes {
			part := g.narrow(d, at, s)
			if p := b.Grad(i); p != nil {
				b.launch(backend.OpCopy, part, p)
			} else {
				b.fill(part, 0)
			}
			at += s
		}
		b.Set(0, g)
	})
	return out
}

// joined shows the gradients of all outputs, pieces of the given sizes of dim d, as one contiguous tensor of the shape,
// if they lie in memory that way; else it is nil.
func (b *Back) joined(d int, shape, sizes []int) *Tensor {
	if len(sizes) == 0 || b.Grad(0) == nil {
		return nil
	}
	first := b.Grad(0)
	g, at := first.alias(), 0
	copy(g.shape[:], shape)
	if !g.IsContiguous() {
		return nil
	}
	for i, s := range sizes {
		p := b.Grad(i)
		if p == nil || p.st != first.st || !slices.Equal(p.stride[:p.ndim], first.stride[:p.ndim]) ||
			p.offset != first.offset+at*first.stride[d] {
			return nil
		}
		at += s
	}
	return g
}

// Concat joins tensors along dim d; all other sizes must agree.
func Concat(c *Ctx, d int, xs ...*Tensor) *Tensor {
	if len(xs) == 0 {
		c.fail("Concat", nil, "no tensors to join")
	}
	for _, x := range xs {
		x.check(c, "Concat")
	}
	if c.lower != Invalid {
		xs = slices.Clone(xs)
		each := make([]**Tensor, len(xs))
		for i := range xs {
			each[i] = &xs[i]
		}
		c.autocast("Concat", each...)
	}
	c.sameDType("Concat", xs...)
	d = xs[0].dimIndex(c, "Concat", d)
	shape, total := slices.Clone(xs[0].Shape()), 0
	for _, x := range xs {
		if x.ndim != len(shape) || x.ndim == 0 {
			c.fail("Concat", xs, "want equal numbers of dims, at least 1")
		}
		for i := range shape {
			if i != d && x.shape[i] != shape[i] {
				c.fail("Concat", xs, "sizes of dim %d differ", i)
			}
		}
		total += x.shape[d]
	}
	shape[d] = total
	y, at := c.empty("Concat", xs[0].dtype, shape...), 0
	sizes := make([]int, len(xs))
	for i, x := range xs {
		sizes[i] = x.shape[d]
		c.launch(backend.OpCopy, y.narrow(d, at, sizes[i]), x)
		at += sizes[i]
	}
	c.record("Concat", []*Tensor{y}, xs, nil, func(b *Back) {
		at := 0
		for i, s := range sizes {
			if b.Need(i) {
				b.Set(i, b.Grad(0).narrow(d, at, s))
			}
			at += s
		}
	})
	return y
}

// Stack joins tensors of one shape along a new dim d.
func Stack(c *Ctx, d int, xs ...*Tensor) *Tensor {
	rows := make([]*Tensor, len(xs))
	for i, x := range xs {
		x.check(c, "Stack")
		if !slices.Equal(x.Shape(), xs[0].Shape()) {
			c.fail("Stack", xs, "want operands of one shape")
		}
		rows[i] = Unsqueeze(c, x, d)
	}
	return Concat(c, d, rows...)
}
