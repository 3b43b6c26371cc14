package tensor

import (
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// reduce runs a reduction kernel over dims (normalised), which stay with size 1.
func (c *Ctx) reduce(op backend.Op, name string, x *Tensor, dims []int, out DType) *Tensor {
	shape := slices.Clone(x.Shape())
	for _, d := range dims {
		shape[d] = 1
	}
	y := c.empty(name, out, shape...)
	a := attrs{}
	if op == backend.OpArgMax {
		a.ints[0] = dims[0]
	}
	c.launchAttrs(op, &a, y, x)
	return y
}

// dims normalises a list of dims; nil means all.
func (t *Tensor) dims(c *Ctx, op string, dims []int) []int {
	if dims == nil {
		dims = make([]int, t.ndim)
		for i := range dims {
			dims[i] = i
		}
		return dims
	}
	out := make([]int, len(dims))
	for i, d := range dims {
		out[i] = t.dimIndex(c, op, d)
		if slices.Contains(out[:i], out[i]) {
			c.fail(op, []*Tensor{t}, "dim %d is named twice", d)
		}
	}
	if t.ndim == 0 {
		return nil
	}
	return out
}

// drop is the shape without dims.
func dropDims(shape, dims []int) []int {
	var out []int
	for d, s := range shape {
		if !slices.Contains(dims, d) {
			out = append(out, s)
		}
	}
	return out
}

// Sum adds over dims (nil: all), in float64 for floats of up to 32 bits. With keep the
// dims remain with size 1.
func Sum(c *Ctx, x *Tensor, dims []int, keep bool) *Tensor {
	x.check(c, "Sum")
	if x.dtype == Bool || x.dtype == Uint8 {
		c.fail("Sum", []*Tensor{x}, "want a floating-point dtype, int32 or int64: convert with Cast")
	}
	ds := x.dims(c, "Sum", dims)
	y := c.reduce(backend.OpSum, "Sum", x, ds, x.dtype)
	kept := y.Shape()
	if !keep {
		y = y.reshaped(dropDims(x.Shape(), ds))
	}
	from := x.Shape()
	c.record("Sum", []*Tensor{y}, []*Tensor{x}, nil, func(b *Back) {
		b.Set(0, Expand(b.Ctx, b.materialize("Sum", b.Grad(0)).reshaped(kept), from...))
	})
	return y
}

// Mean is the average over dims (nil: all). It is NaN if there are no elements.
func Mean(c *Ctx, x *Tensor, dims []int, keep bool) *Tensor {
	x.check(c, "Mean")
	c.wantFloat("Mean", x)
	if x.dtype.IsHalf() { // the sum may be larger than the dtype's largest number
		return Cast(c, Mean(c, Cast(c, x, Float32), dims, keep), x.dtype)
	}
	n := 1
	for _, d := range x.dims(c, "Mean", dims) {
		n *= x.shape[d]
	}
	return Affine(c, Sum(c, x, dims, keep), 1/float64(n), 0)
}

// Max is the maximum along dim d, NaN if there is one. The gradient is shared evenly
// among equal maxima.
func Max(c *Ctx, x *Tensor, d int, keep bool) *Tensor {
	return extreme(c, "Max", backend.OpMax, x, d, keep)
}

// Min is the minimum along dim d, with Max's rules.
func Min(c *Ctx, x *Tensor, d int, keep bool) *Tensor {
	return extreme(c, "Min", backend.OpMin, x, d, keep)
}

func extreme(c *Ctx, name string, op backend.Op, x *Tensor, d int, keep bool) *Tensor {
	x.check(c, name)
	if x.dtype == Bool || x.dtype == Uint8 {
		c.fail(name, []*Tensor{x}, "want a floating-point dtype, int32 or int64: convert with Cast")
	}
	ds := x.dims(c, name, []int{d})
	if len(ds) > 0 && x.shape[ds[0]] == 0 {
		c.fail(name, []*Tensor{x}, "dim %d is empty: it has no extreme value", d)
	}
	m := c.reduce(op, name, x, ds, x.dtype)
	y := m
	if !keep {
		y = m.reshaped(dropDims(x.Shape(), ds))
	}
	if x.dtype.IsFloat() {
		c.record(name, []*Tensor{y}, []*Tensor{x}, []*Tensor{x, m}, func(b *Back) {
			hit := Cast(b.Ctx, Eq(b.Ctx, x, Detach(m)), x.dtype)
			share := Div(b.Ctx, hit, Sum(b.Ctx, hit, ds, true))
			b.Set(0, Mul(b.Ctx, share, b.materialize(name, b.Grad(0)).reshaped(m.Shape())))
		})
	}
	return y
}

// ArgMax is the int64 index of the first maximum along dim d.
func ArgMax(c *Ctx, x *Tensor, d int, keep bool) *Tensor {
	x.check(c, "ArgMax")
	ds := x.dims(c, "ArgMax", []int{d})
	if x.ndim == 0 {
		return Zeros(c, Int64)
	}
	if x.shape[ds[0]] == 0 {
		c.fail("ArgMax", []*Tensor{x}, "dim %d is empty: it has no maximum", d)
	}
	y := c.reduce(backend.OpArgMax, "ArgMax", x, ds, Int64)
	if !keep {
		y = y.reshaped(dropDims(x.Shape(), ds))
	}
	return y
}

// SumSquares is the sum of x² over all elements as float64 partials, one for each
// block of 4096 elements in row-major order. Added in order they give the squared
// norm that gradient clipping uses, in an order that sharding does not change.
func SumSquares(c *Ctx, x *Tensor) *Tensor {
	x.check(c, "SumSquares")
	c.wantFloat("SumSquares", x)
	x = c.materialize("SumSquares", x)
	y := c.empty("SumSquares", Float64, (x.Numel()+4095)/4096)
	c.launch(backend.OpSumSq, y, x)
	return y
}
