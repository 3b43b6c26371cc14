// SPDX-License-Identifier: Apache-2.0

package tensor

import "github.com/lockstep-ml/lockstep/internal/backend"

// BatchNorm normalises each channel (dim 1) of x [N,C,...] to mean 0 and variance 1 over the
// batch and all further dims, then scales by weight and shifts by bias, both of shape [C] or
// nil (Ioffe & Szegedy 2015): like torch.nn.functional.batch_norm in training. It also
// returns the mean and the biased variance, to which eps is added, of each channel [C], in
// float32 (float64 for float64 x); no gradient flows through these.
//
// y has the dtype of x. The parameters have it too, or are float32 with x of a half type: intermediate values are
// float32. Autocast does not convert x.
func BatchNorm(c *Ctx, x, weight, bias *Tensor, eps float64) (y, mean, variance *Tensor) {
	const name = "BatchNorm"
	x, weight, bias = c.batch(name, x, weight, bias)
	mean, variance = c.empty(name, statDType(x), x.shape[1]), c.empty(name, statDType(x), x.shape[1])
	c.launchMulti(backend.OpBatchStats, &attrs{}, []*Tensor{mean, variance}, channels(x))
	return c.batchNorm(name, x, mean, variance, weight, bias, eps, false), mean, variance
}

// BatchNormWith is BatchNorm with given statistics, constants of shape [C] and of the dtype
// that BatchNorm returns: y = (x − mean)/√(variance + eps)·weight + bias, like
// torch.nn.functional.batch_norm in evaluation.
func BatchNormWith(c *Ctx, x, mean, variance, weight, bias *Tensor, eps float64) *Tensor {
	const name = "BatchNormWith"
	x, weight, bias = c.batch(name, x, weight, bias)
	for _, s := range []*Tensor{mean, variance} {
		s.check(c, name)
		if s.dtype != statDType(x) || s.ndim != 1 || s.shape[0] != x.shape[1] {
			c.fail(name, []*Tensor{x, mean, variance}, "want statistics of %v and shape [%d]", statDType(x), x.shape[1])
		}
	}
	return c.batchNorm(name, x, Contiguous(c, mean), Contiguous(c, variance), weight, bias, eps, true)
}

// batch checks the operands of a batch norm and makes them contiguous.
func (c *Ctx) batch(op string, x, weight, bias *Tensor) (_, _, _ *Tensor) {
	x.check(c, op)
	c.wantFloat(op, x)
	if x.ndim < 2 {
		c.fail(op, []*Tensor{x}, "want at least two dims, [N C ...]")
	}
	if (weight == nil) != (bias == nil) {
		c.fail(op, []*Tensor{x}, "want weight and bias, or neither")
	}
	if c.lower == Float32 && x.dtype.IsHalf() {
		x = Cast(c, x, Float32)
	}
	return Contiguous(c, x), c.channelParam(op, x, weight), c.channelParam(op, x, bias)
}

// channelParam checks a weight or bias and makes it contiguous; nil stays nil.
func (c *Ctx) channelParam(op string, x, p *Tensor) *Tensor {
	if p == nil {
		return nil
	}
	p.check(c, op)
	if c.lower != Invalid && p.dtype.IsHalf() && p.dtype != x.dtype {
		p = Cast(c, p, Float32)
	}
	if !x.dtype.IsHalf() || p.dtype != Float32 {
		c.sameDType(op, x, p)
	}
	if p.ndim != 1 || p.shape[0] != x.shape[1] {
		c.fail(op, []*Tensor{x, p}, "want a parameter of shape [%d]", x.shape[1])
	}
	return Contiguous(c, p)
}

// channels shows contiguous x [N,C,...] as [N,C,L].
func channels(x *Tensor) *Tensor {
	area := 1
	for _, s := range x.Shape()[2:] {
		area *= s
	}
	return x.reshaped([]int{x.shape[0], x.shape[1], area})
}

// batchNorm normalises with statistics that are constants or those of x.
func (c *Ctx) batchNorm(name string, x, mean, variance, weight, bias *Tensor, eps float64, constant bool) *Tensor {
	planes := channels(x)
	out := c.emptyLike(name, planes)
	a := floats(eps)
	if constant {
		a.ints[0] = 1
	}
	c.launchMulti(backend.OpBatchNorm, &a, []*Tensor{out}, planes, mean, variance, weight, bias)
	y := out.reshaped(x.Shape())
	c.record(name, []*Tensor{y}, []*Tensor{x, weight, bias}, []*Tensor{x, mean, variance, weight}, func(b *Back) {
		dy := channels(b.materialize(name, b.Grad(0)))
		dx := b.emptyLike(name, planes)
		dt := x.dtype
		if weight != nil {
			dt = weight.dtype
		}
		dweight, dbias := b.empty(name, dt, x.shape[1]), b.empty(name, dt, x.shape[1])
		b.launchMulti(backend.OpBatchNormGrad, &a, []*Tensor{dx, dweight, dbias}, planes, mean, variance, dy, weight)
		b.Set(0, dx.reshaped(x.Shape()))
		if weight != nil {
			b.Set(1, dweight)
			b.Set(2, dbias)
		}
	})
	return y
}
