// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
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
	if op == backend.OpArgMax || op == backend.OpArgMin {
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
	if c.lower != Invalid {
		plain, x, _, _ := c.cast("Sum", x, nil, nil)
		return Sum(plain, x, dims, keep)
	}
	if x.dtype == Bool || x.dtype == Uint8 {
		c.fail("Sum", []*Tensor{x}, "want a floating-point dtype, int32 or int64: convert with Cast")
	}
	ds := x.dims(c, "Sum", dims)
	if c.records([]*Tensor{x}) { // figures of what a rank has may be wanted
		c.wantFeaturesTogether("Sum", x, ds...)
	}
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
	c.autocast("Mean", &x)
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
	if c.records([]*Tensor{x}) { // as Sum
		c.wantFeaturesTogether(name, x, ds...)
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

// ArgMax is the int64 index of the first maximum along dim d; a NaN counts as the maximum.
func ArgMax(c *Ctx, x *Tensor, d int, keep bool) *Tensor {
	return argExtreme(c, "ArgMax", backend.OpArgMax, x, d, keep)
}

// ArgMin is the int64 index of the first minimum along dim d; a NaN counts as the minimum.
func ArgMin(c *Ctx, x *Tensor, d int, keep bool) *Tensor {
	return argExtreme(c, "ArgMin", backend.OpArgMin, x, d, keep)
}

func argExtreme(c *Ctx, name string, op backend.Op, x *Tensor, d int, keep bool) *Tensor {
	x.check(c, name)
	ds := x.dims(c, name, []int{d})
	if x.ndim == 0 {
		return Zeros(c, Int64)
	}
	if x.shape[ds[0]] == 0 {
		c.fail(name, []*Tensor{x}, "dim %d is empty: it has no extreme value", d)
	}
	c.wantFeaturesTogether(name, x, ds...)
	y := c.reduce(op, name, x, ds, Int64)
	if !keep {
		y = y.reshaped(dropDims(x.Shape(), ds))
	}
	return y
}

// LogSumExp is the logarithm of the sum of eˣ over dims (nil: all), which does not overflow; it is −Inf for an empty
// slice, and if all elements are −Inf.
func LogSumExp(c *Ctx, x *Tensor, dims []int, keep bool) *Tensor {
	const name = "LogSumExp"
	x.check(c, name)
	c.wantFloat(name, x)
	c.autocast(name, &x)
	if x.dtype.IsHalf() {
		return Cast(c, LogSumExp(c, Cast(c, x, Float32), dims, keep), x.dtype)
	}
	ds, infinite := x.dims(c, name, dims), math.Inf(-1)
	for _, d := range ds {
		if x.shape[d] == 0 {
			return Full(c, x.dtype, infinite, keptOrDropped(x.Shape(), ds, keep)...)
		}
	}
	n := c.NoGrad()
	// An infinite maximum is not subtracted: Inf − Inf would be NaN.
	top := n.reduce(backend.OpMax, name, x, ds, x.dtype)
	shift := Where(n, Lt(n, Abs(n, top), Scalar(n, x.dtype, math.Inf(1))), top, Scalar(n, x.dtype, 0))
	lse := Add(n, Log(n, n.reduce(backend.OpSum, name, Exp(n, Sub(n, Detach(x), shift)), ds, x.dtype)), shift)
	y := lse.reshaped(keptOrDropped(x.Shape(), ds, keep))
	c.record(name, []*Tensor{y}, []*Tensor{x}, []*Tensor{x, lse}, func(b *Back) {
		none := Eq(b.Ctx, lse, Scalar(b.Ctx, x.dtype, infinite)) // all of x is −Inf: no element has a share
		share := Exp(b.Ctx, Sub(b.Ctx, x, Where(b.Ctx, none, Scalar(b.Ctx, x.dtype, 0), lse)))
		b.Set(0, Mul(b.Ctx, share, b.materialize(name, b.Grad(0)).reshaped(lse.Shape())))
	})
	return y
}

// keptOrDropped is the shape of a reduction's result.
func keptOrDropped(shape, dims []int, keep bool) []int {
	if !keep {
		return dropDims(shape, dims)
	}
	shape = slices.Clone(shape)
	for _, d := range dims {
		shape[d] = 1
	}
	return shape
}

// Var is the variance over dims (nil: all): the sum of the squared distances from the mean, divided by the number of
// elements less correction. 1 is the unbiased variance, torch.var's default, and 0 the population variance. If the
// divisor is not positive, the result is NaN or infinite.
func Var(c *Ctx, x *Tensor, dims []int, correction int, keep bool) *Tensor {
	return spread(c, "Var", x, dims, correction, keep, false)
}

// Std is the square root of Var; its gradient is 0 where all elements are equal.
func Std(c *Ctx, x *Tensor, dims []int, correction int, keep bool) *Tensor {
	return spread(c, "Std", x, dims, correction, keep, true)
}

func spread(c *Ctx, name string, x *Tensor, dims []int, correction int, keep, root bool) *Tensor {
	x.check(c, name)
	c.wantFloat(name, x)
	c.autocast(name, &x)
	if x.dtype.IsHalf() {
		return Cast(c, spread(c, name, Cast(c, x, Float32), dims, correction, keep, root), x.dtype)
	}
	ds, n := x.dims(c, name, dims), c.NoGrad()
	count := 1
	for _, d := range ds {
		count *= x.shape[d]
	}
	divisor := float64(max(count-correction, 0))
	mean := Mean(n, Detach(x), ds, true)
	// that of equal elements has no rounding error any more
	mean = Add(n, mean, Mean(n, Sub(n, Detach(x), mean), ds, true))
	away := Sub(n, Detach(x), mean)
	kept := Affine(n, n.reduce(backend.OpSum, name, Mul(n, away, away), ds, x.dtype), 1/divisor, 0)
	if root {
		kept = Sqrt(n, kept)
	}
	y := kept.reshaped(keptOrDropped(x.Shape(), ds, keep))
	c.record(name, []*Tensor{y}, []*Tensor{x}, []*Tensor{x, mean, kept}, func(b *Back) {
		g, scale := b.materialize(name, b.Grad(0)).reshaped(kept.Shape()), 2/divisor
		if root {
			zero := Scalar(b.Ctx, x.dtype, 0)
			g, scale = Where(b.Ctx, Eq(b.Ctx, kept, zero), zero, Div(b.Ctx, g, kept)), 1/divisor
		}
		b.Set(0, Mul(b.Ctx, Affine(b.Ctx, g, scale, 0), Sub(b.Ctx, x, mean)))
	})
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
