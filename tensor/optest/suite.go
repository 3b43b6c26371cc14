// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Run goes through the table on the device that open returns, once for each op.
func Run(t *testing.T, open func(t *testing.T) *tensor.Device) {
	dev := open(t)
	r := runner{dev: dev, c: tensor.NewCtx(dev)}
	r.table(t)
}

// RunLike is Run for a device that computes slowly, as a simulated one does. What Run computes on the device to compare
// with, float64 results and gradients of operands that lie contiguously, comes from a reference that passes Run; finite
// differences, which take hundreds of calls, then have nothing to add.
func RunLike(t *testing.T, open func(t *testing.T) *tensor.Device, reference *tensor.Device) {
	dev := open(t)
	like := runner{dev: reference, c: tensor.NewCtx(reference)}
	r := runner{dev: dev, c: tensor.NewCtx(dev), like: &like}
	r.table(t)
}

func (r *runner) table(t *testing.T) {
	for _, op := range Table() {
		t.Run(op.Name, func(t *testing.T) {
			before := r.dev.MemStats().InUse
			r.oracles(t, op)
			if r.like == nil {
				r.gradients(t, op)
			}
			r.layouts(t, op)
			r.dtypes(t, op)
			r.delayed(t, op)
			r.misuse(t, op)
			r.c.Sync()
			require.Equal(t, before, r.dev.MemStats().InUse, "device memory in use after %s", op.Name)
		})
	}
}

// runner calls ops on one device.
type runner struct {
	dev  *tensor.Device
	c    *tensor.Ctx
	like *runner // computes what is wanted; nil: the device itself
}

// wanted runs a sample to compare with.
func (r *runner) wanted(s *Sample, in []Array, how call) result {
	if r.like != nil {
		r = r.like
	}
	return r.run(s, in, how)
}

// result is what a sample computed.
type result struct {
	out, grad []Array // grad has one entry for each input; empty where it is not differentiable
	raw       []byte  // the bits of all of them
}

// values draws the inputs of a sample, the same for every device and dtype up to rounding.
func (s *Sample) values(op string, dt tensor.DType) []Array {
	h := fnv.New64a()
	_, _ = h.Write([]byte(op + "/" + s.Name))
	in := make([]Array, len(s.In))
	for i, x := range s.In {
		if x.None {
			continue
		}
		v := slices.Clone(x.Fill(rand.New(rand.NewPCG(h.Sum64(), uint64(i))), numel(x.Shape)))
		for k := range v {
			if x.DType == dtype.Invalid {
				v[k] = quantise(dt, v[k])
			}
		}
		in[i] = Array{slices.Clone(x.Shape), v}
	}
	return in
}

// quantise makes a drawn number one of dt's: for integers it is spread a little first.
func quantise(dt tensor.DType, v float64) float64 {
	switch {
	case dt == tensor.Bool:
		return truth(v > 0)
	case dt == tensor.Uint8:
		return math.Round(math.Abs(3 * v))
	case dt.IsInt():
		return math.Round(3 * v)
	}
	return convert(dt, v)
}

// convert rounds v to dt as Cast does; integers wrap around.
func convert(dt tensor.DType, v float64) float64 {
	switch dt {
	case tensor.Float32:
		return float64(float32(v))
	case tensor.BFloat16:
		return float64(dtype.ToBF16(float32(v)).Float32())
	case tensor.Float16:
		return float64(dtype.ToF16(float32(v)).Float32())
	case tensor.Int32, tensor.Int64:
		return math.Trunc(v)
	case tensor.Uint8:
		return float64(uint8(int64(v)))
	case tensor.Bool:
		return truth(v != 0)
	}
	return v
}

// call says how a sample is run.
type call struct {
	dt     tensor.DType
	lay    layout // nil: contiguous
	noGrad bool
	// delay computes the gradients of all inputs after the others, by DelayWeightGrads.
	delay bool
}

// run applies the sample to in, and computes gradients for random cotangents.
func (r *runner) run(s *Sample, in []Array, how call) (res result) {
	r.c.WithRandom(seed, position).Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		ts := make([]*tensor.Tensor, len(in))
		var wrt []*tensor.Tensor
		for i, x := range s.In {
			if x.None {
				continue
			}
			dt := x.DType
			if dt == dtype.Invalid {
				dt = how.dt
			}
			ts[i] = upload(c, in[i], dt, how.lay)
			if x.Diff && dt.IsFloat() && !how.noGrad {
				wrt = append(wrt, ts[i].SetRequiresGrad(true))
			}
		}
		outs := s.Apply(c, how.dt, ts)
		for _, y := range outs {
			res.add(c, &res.out, y)
		}
		if len(wrt) > 0 {
			grads := r.backward(c, s, outs, res.out, wrt, how)
			for i := range s.In {
				k := slices.Index(wrt, ts[i])
				if ts[i] == nil || k < 0 || grads[k] == nil {
					res.grad = append(res.grad, Array{})
					continue
				}
				res.add(c, &res.grad, grads[k])
				wrt[k].ZeroGrad()
			}
		}
		return nil
	})
	return res
}

func (r *runner) backward(c *tensor.Ctx, s *Sample, outs []*tensor.Tensor, values []Array, wrt []*tensor.Tensor,
	how call) []*tensor.Tensor {
	var roots, cots []*tensor.Tensor
	for i, y := range outs {
		if !y.RequiresGrad() {
			continue
		}
		w := cotangent(i, values[i])
		if how.lay != nil {
			w = how.lay.prepare(w)
		}
		roots, cots = append(roots, y), append(cots, upload(c, w, y.DType(), how.lay))
	}
	if len(roots) == 0 {
		return make([]*tensor.Tensor, len(wrt))
	}
	if !how.delay {
		return tensor.Backward(c, roots, cots, wrt)
	}
	var store tensor.WeightGradStore
	tensor.Backward(c, roots, cots, nil, tensor.DelayWeightGrads(&store))
	store.Pop(c)
	grads := make([]*tensor.Tensor, len(wrt))
	for i, x := range wrt {
		grads[i] = x.Grad()
	}
	return grads
}

// add downloads y.
func (res *result) add(c *tensor.Ctx, to *[]Array, y *tensor.Tensor) {
	res.raw = append(res.raw, tensor.ReadBytes(c, y)...)
	*to = append(*to, download(c, y))
}

// cotangent is the random weight of each element of output i; 0 where that is infinite.
func cotangent(i int, out Array) Array {
	w := Array{out.Shape, normal(rand.New(rand.NewPCG(99, uint64(i))), len(out.V))}
	for k, y := range out.V {
		if math.IsInf(y, 0) {
			w.V[k] = 0
		}
	}
	return w
}

// upload makes a tensor of a's values, laid out in memory as lay says.
func upload(c *tensor.Ctx, a Array, dt tensor.DType, lay layout) *tensor.Tensor {
	c = c.NoGrad()
	t := tensor.Cast(c, tensor.FromSlice(c, a.V, a.Shape...), dt)
	if lay != nil {
		t = lay.view(c, t)
	}
	return t
}

func download(c *tensor.Ctx, t *tensor.Tensor) Array {
	c = c.NoGrad()
	return Array{slices.Clone(t.Shape()), tensor.ToSlice[float64](c, tensor.Cast(c, tensor.Detach(t), tensor.Float64))}
}

// bound is how far apart two numbers may be.
type bound struct {
	rel float64 // of the number and of a tenth of the largest in its tensor
	abs float64
}

// requireClose compares arrays of one shape.
func requireClose(t *testing.T, want, got Array, b bound, what string) {
	t.Helper()
	require.Equal(t, append([]int{}, want.Shape...), append([]int{}, got.Shape...), "shape of %s", what)
	top := 0.0
	for _, x := range want.V {
		if !math.IsInf(x, 0) && !math.IsNaN(x) {
			top = max(top, math.Abs(x))
		}
	}
	for i, x := range want.V {
		y := got.V[i]
		if x == y || math.IsNaN(x) && math.IsNaN(y) {
			continue
		}
		if d := math.Abs(x - y); !(d <= b.abs+b.rel*max(math.Abs(x), top/10)) {
			require.Failf(t, "values differ", "%s: element %d is %v: want %v (difference %.3g)\nwant %v\ngot  %v", what,
				i, y, x, d, clip(want.V), clip(got.V))
		}
	}
}

func clip(v []float64) []float64 { return v[:min(len(v), 40)] }
