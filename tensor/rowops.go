// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
)

// lastDim moves dim d to the end, runs f on a contiguous tensor, and moves it back.
func lastDim(c *Ctx, name string, x *Tensor, d int, f func(c *Ctx, x *Tensor) *Tensor) *Tensor {
	x.check(c, name)
	c.wantFloat(name, x)
	c.autocast(name, &x)
	d = x.dimIndex(c, name, d)
	c.wantFeaturesTogether(name, x, d)
	switch {
	case x.ndim == 0:
		return Reshape(c, f(c, Reshape(c, x, 1)))
	case d == x.ndim-1:
		return f(c, Contiguous(c, x))
	}
	return Transpose(c, f(c, Contiguous(c, Transpose(c, x, d, -1))), d, -1)
}

// Softmax is eˣ/Σeˣ along dim d.
func Softmax(c *Ctx, x *Tensor, d int) *Tensor {
	return lastDim(c, "Softmax", x, d, func(c *Ctx, x *Tensor) *Tensor {
		return rowOp(c, "Softmax", backend.OpSoftmax, backend.OpSoftmaxGrad, x)
	})
}

// LogSoftmax is x − log Σeˣ along dim d.
func LogSoftmax(c *Ctx, x *Tensor, d int) *Tensor {
	return lastDim(c, "LogSoftmax", x, d, func(c *Ctx, x *Tensor) *Tensor {
		return rowOp(c, "LogSoftmax", backend.OpLogSoftmax, backend.OpLogSoftmaxGrad, x)
	})
}

// rowOp runs a row kernel whose gradient kernel takes (y, dy).
func rowOp(c *Ctx, name string, op, grad backend.Op, x *Tensor) *Tensor {
	y := c.emptyLike(name, x)
	c.launch(op, y, x)
	c.record(name, []*Tensor{y}, []*Tensor{x}, []*Tensor{y}, func(b *Back) {
		dx := b.emptyLike(name, y)
		b.launch(grad, dx, y, b.materialize(name, b.Grad(0)))
		b.Set(0, dx)
	})
	return y
}

// statDType is the dtype in which row statistics of x are kept.
func statDType(x *Tensor) DType {
	if x.dtype == Float64 {
		return Float64
	}
	return Float32
}

// IgnoreIndex marks labels that do not count, as in PyTorch and transformers.
const IgnoreIndex = -100

// CrossEntropy is −log softmax(logits)[target] for each row of logits [N,V] and targets
// [N] (int32 or int64): the losses [N], in float32 (float64 for float64 logits), 0 where
// the target is ignoreIndex. A target outside [0,V) is a fault. The caller divides the
// sum by the number of rows that count, because a mean of means would be wrong.
func CrossEntropy(c *Ctx, logits, targets *Tensor, ignoreIndex int) *Tensor {
	ins := []*Tensor{logits, targets}
	logits.check(c, "CrossEntropy")
	targets.check(c, "CrossEntropy")
	c.wantFloat("CrossEntropy", logits)
	if logits.ndim != 2 || targets.ndim != 1 || targets.shape[0] != logits.shape[0] {
		c.fail("CrossEntropy", ins, "want logits [N V] and targets [N]")
	}
	c.wantIndex("CrossEntropy", targets)
	x, ids := Contiguous(c, logits), c.materialize("CrossEntropy", targets)
	loss := c.empty("CrossEntropy", statDType(x), x.shape[0])
	lse := c.emptyLike("CrossEntropy", loss)
	a := ints(ignoreIndex)
	c.launchMulti(backend.OpCrossEntropy, &a, []*Tensor{loss, lse}, x, ids)
	c.record("CrossEntropy", []*Tensor{loss}, []*Tensor{x}, []*Tensor{x, ids, lse}, func(b *Back) {
		dx := b.emptyLike("CrossEntropy", x)
		b.launchAttrs(backend.OpCrossEntropyGrad, &a, dx, x, ids, lse, b.Grad(0))
		b.Set(0, dx)
	})
	return loss
}

func (c *Ctx) wantIndex(op string, t *Tensor) {
	t.check(c, op)
	if t.dtype != Int32 && t.dtype != Int64 {
		c.fail(op, []*Tensor{t}, "indices must be int32 or int64")
	}
}

// affine checks an optional weight or bias of a norm over the last dim of x and makes
// it contiguous.
func (c *Ctx) affine(op string, x, p *Tensor) *Tensor {
	if p == nil {
		return nil
	}
	p.check(c, op)
	c.sameDType(op, x, p)
	if p.ndim != 1 || p.shape[0] != x.Size(-1) {
		c.fail(op, []*Tensor{x, p}, "want a parameter of shape [%d]", x.Size(-1))
	}
	return Contiguous(c, p)
}

// normRows prepares the operand of a norm: a contiguous matrix of rows.
func (c *Ctx) normRows(op string, x *Tensor) (in, rows *Tensor) {
	x.check(c, op)
	c.wantFloat(op, x)
	if x.ndim == 0 {
		c.fail(op, []*Tensor{x}, "want at least one dim")
	}
	in = Contiguous(c, x)
	return in, c.rows(op, in, x.Size(-1))
}

// keptRows is what a norm keeps of its rows [N,C]: themselves, or two tensors whose sum they are.
type keptRows struct {
	rows *Tensor // nil where sum is kept
	sum  *sumOf
	n, c int
}

// keep keeps rows, which show in.
func keep(in, rows *Tensor) *keptRows {
	k := &keptRows{rows: rows, n: rows.shape[0], c: rows.shape[1]}
	if k.sum = in.summands(); k.sum != nil {
		k.rows = nil
	}
	return k
}

// saved lists the tensors.
func (k *keptRows) saved() []*Tensor {
	if k.sum != nil {
		return []*Tensor{k.sum.parts[0], k.sum.parts[1]}
	}
	return []*Tensor{k.rows}
}

// read returns the rows, or two tensors whose sum they are if the second one is of dtype half, which kernels add.
func (k *keptRows) read(c *Ctx, half DType) (rows, part *Tensor) {
	shape := []int{k.n, k.c}
	switch {
	case k.sum == nil:
		return k.rows, nil
	case k.sum.parts[1].dtype == half:
		return k.sum.parts[0].reshaped(shape), k.sum.parts[1].reshaped(shape)
	}
	return k.sum.again(c).reshaped(shape), nil
}

// normAttrs are the attributes of a norm's kernel: part is added to the rows, dx to more, and low gets that rounded,
// unless they are nil.
func normAttrs(eps float64, part, more, low *Tensor) *attrs {
	a := floats(eps)
	for i, t := range []*Tensor{more, part, low} {
		if t != nil {
			a.ints[i] = 1
		}
	}
	return &a
}

// normInto is where the gradient of a norm's input 0, in, is written as rows, what the kernel adds to it, the gradient
// that arrived before, and where it is written rounded to half as well; nil where it is not.
func (b *Back) normInto(op string, in, rows *Tensor, half DType) (dx, more, low *Tensor) {
	if !in.dtype.IsHalf() { // which would be rounded before
		more = b.arrivedBefore(0)
	}
	if in.dtype == Float32 && half.IsHalf() {
		if low = b.lowOf(op, half, in.Shape()); low != nil {
			low = low.reshaped(rows.Shape())
		}
	}
	if more != nil {
		return b.totalOf(op, 0, more).reshaped(rows.Shape()), more.reshaped(rows.Shape()), low
	}
	dx = b.emptyLike(op, rows)
	b.Set(0, dx.reshaped(in.Shape()))
	return dx, nil, low
}

// LayerNorm normalises the last dim to mean 0 and variance 1, then scales by weight and
// shifts by bias, both of shape [C] or nil (Ba et al. 2016). The variance is the biased
// one; eps is added to it.
func LayerNorm(c *Ctx, x, weight, bias *Tensor, eps float64) *Tensor {
	return c.layerNorm("LayerNorm", x, weight, bias, eps, Invalid)
}

// LayerNormLowered is LayerNorm for results that only ops of precision Lower read: under Autocast it has its dtype at
// once. Results and gradients have the bits of those ops' own conversions, which each take a pass over memory.
func LayerNormLowered(c *Ctx, x, weight, bias *Tensor, eps float64) *Tensor {
	return c.layerNorm("LayerNormLowered", x, weight, bias, eps, c.lower)
}

// layerNorm is LayerNorm with a result of dtype to if that is a half type and x, under Autocast, is computed with in
// float32.
func (c *Ctx) layerNorm(name string, x, weight, bias *Tensor, eps float64, to DType) *Tensor {
	if c.lower != Invalid {
		plain, x, weight, bias := c.cast(name, x, weight, bias)
		return plain.layerNorm(name, x, weight, bias, eps, to)
	}
	x.check(c, name)
	c.wantFeaturesTogether(name, x, x.ndim-1)
	in, rows := c.normRows(name, x)
	weight, bias = c.affine(name, x, weight), c.affine(name, x, bias)
	if weight == nil && bias != nil {
		c.fail(name, []*Tensor{x, bias}, "a bias needs a weight")
	}
	n, width := rows.shape[0], rows.shape[1]
	kept := keep(in, rows)
	to = normResult(x, to)
	forward := func(c *Ctx, rows, part *Tensor) (y, mean, rstd *Tensor) {
		y = c.empty(name, to, rows.Shape()...)
		mean, rstd = c.empty(name, statDType(x), n), c.empty(name, statDType(x), n)
		a := normAttrs(eps, part, nil, nil)
		c.launchMulti(backend.OpLayerNorm, a, []*Tensor{y, mean, rstd}, rows, weight, bias, part)
		return y, mean, rstd
	}
	y, mean, rstd := forward(c, rows, nil)
	out := y.reshaped(x.Shape())
	node := c.record(name, []*Tensor{out}, []*Tensor{in, weight, bias}, append(kept.saved(), mean, rstd, weight, bias),
		func(b *Back) {
			g := b.materialize(name, b.Arrived(0))
			rows, part := kept.read(b.Ctx, g.dtype)
			g = g.reshaped(rows.Shape())
			var outs []*Tensor
			var dx, more, low *Tensor
			if b.Need(0) {
				dx, more, low = b.normInto(name, in, rows, g.dtype)
				outs = append(outs, dx)
			}
			if b.Need(1) || b.Need(2) {
				dw := b.empty(name, x.dtype, width)
				b.Set(1, dw)
				outs = append(outs, dw)
				if bias != nil {
					db := b.empty(name, x.dtype, width)
					b.Set(2, db)
					outs = append(outs, db)
				}
			}
			if low != nil {
				outs = append(outs, low)
			}
			a := normAttrs(eps, part, more, low)
			if b.Need(0) {
				b.launchMulti(backend.OpLayerNormGrad, a, outs, rows, mean, rstd, g, weight, part, more)
			} else if len(outs) > 0 {
				b.launchMulti(backend.OpLayerNormParamGrad, a, outs, rows, mean, rstd, g, part)
			}
		})
	node.roundsTo(to, x.dtype)
	node.recomputes(y, func(c *Ctx) *Tensor {
		rows, part := kept.read(c, to)
		y, _, _ := forward(c, rows, part)
		return y
	})
	return out
}

// normResult is the dtype of a norm of x: to, if that is a half type and x is float32, else x's.
func normResult(x *Tensor, to DType) DType {
	if x.dtype == Float32 && to.IsHalf() {
		return to
	}
	return x.dtype
}

// roundsTo notes that the results of n, which were computed in dtype from, were rounded to another; n may be nil.
func (n *Node) roundsTo(to, from DType) {
	if n != nil {
		n.rounded = to != from
	}
}

// RMSNorm divides the last dim by its root mean square, √(mean x² + eps), and scales by
// weight [C] or nil (Zhang & Sennrich 2019).
func RMSNorm(c *Ctx, x, weight *Tensor, eps float64) *Tensor {
	return c.rmsNorm("RMSNorm", x, weight, eps, Invalid)
}

// RMSNormLowered is RMSNorm as LayerNormLowered is LayerNorm.
func RMSNormLowered(c *Ctx, x, weight *Tensor, eps float64) *Tensor {
	return c.rmsNorm("RMSNormLowered", x, weight, eps, c.lower)
}

func (c *Ctx) rmsNorm(name string, x, weight *Tensor, eps float64, to DType) *Tensor {
	if c.lower != Invalid {
		plain, x, weight, _ := c.cast(name, x, weight, nil)
		return plain.rmsNorm(name, x, weight, eps, to)
	}
	x.check(c, name)
	c.wantFeaturesTogether(name, x, x.ndim-1)
	in, rows := c.normRows(name, x)
	weight = c.affine(name, x, weight)
	to = normResult(x, to)
	a := floats(eps)
	y, rrms := c.rmsRows(name, to, rows, weight, &a)
	out := y.reshaped(x.Shape())
	node := c.record(name, []*Tensor{out}, []*Tensor{in, weight}, []*Tensor{rows, rrms, weight}, func(b *Back) {
		g := b.materialize(name, b.Arrived(0)).reshaped(rows.Shape())
		var outs []*Tensor
		var dx, more, low *Tensor
		if b.Need(0) {
			dx, more, low = b.normInto(name, in, rows, g.dtype)
			outs = append(outs, dx)
		}
		if b.Need(1) {
			dw := b.empty(name, x.dtype, rows.shape[1])
			b.Set(1, dw)
			outs = append(outs, dw)
		}
		if low != nil {
			outs = append(outs, low)
		}
		if b.Need(0) {
			b.launchMulti(backend.OpRMSNormGrad, normAttrs(eps, nil, more, low), outs, rows, rrms, g, weight, more)
		} else if len(outs) > 0 {
			b.launchMulti(backend.OpRMSNormParamGrad, &a, outs, rows, rrms, g)
		}
	})
	node.roundsTo(to, x.dtype)
	if node != nil {
		node.recomputes(y, func(c *Ctx) *Tensor {
			y, _ := c.rmsRows(name, to, rows, weight, &a)
			return y
		})
	}
	return out
}

// rmsRows normalises rows [N,C] into y of dtype to, and gives the reciprocals of their root mean squares.
func (c *Ctx) rmsRows(name string, to DType, rows, weight *Tensor, a *attrs) (y, rrms *Tensor) {
	y = c.empty(name, to, rows.Shape()...)
	rrms = c.empty(name, statDType(rows), rows.shape[0])
	c.launchMulti(backend.OpRMSNorm, a, []*Tensor{y, rrms}, rows, weight)
	return y, rrms
}
