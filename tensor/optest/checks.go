// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/tensor"
)

// oracles compares float64 results (bool ones for ops on bool) with the rows' oracles.
func (r *runner) oracles(t *testing.T, op Op) {
	dt := op.DTypes[0]
	for _, s := range op.Samples {
		if s.Large || s.Want == nil {
			continue
		}
		in := s.values(op.Name, dt)
		res := r.run(&s, in, call{dt: dt, noGrad: true})
		want := s.Want(dt, in)
		require.Len(t, res.out, len(want), s.Name)
		for i := range want {
			requireClose(t, want[i], res.out[i], bound{1e-12, 1e-300}, fmt.Sprintf("%s: output %d", s.Name, i))
		}
	}
}

// gradients compares the gradient of every differentiable input with central finite
// differences, in float64.
func (r *runner) gradients(t *testing.T, op Op) {
	for _, s := range op.Samples {
		if s.Large || s.Rough || !slices.ContainsFunc(s.In, func(x Input) bool { return x.Diff }) ||
			op.DTypes[0] != tensor.Float64 {
			continue
		}
		in := s.values(op.Name, tensor.Float64)
		res := r.run(&s, in, call{dt: tensor.Float64})
		for i, x := range s.In {
			if !x.Diff {
				continue
			}
			got := res.grad[i]
			if got.V == nil { // no gradient flows
				got = Array{x.Shape, make([]float64, numel(x.Shape))}
			}
			requireClose(t, r.differences(&s, in, i, res.out), got, bound{2e-8, 2e-8},
				fmt.Sprintf("%s: gradient of input %d", s.Name, i))
		}
	}
}

// differences is the numeric gradient of Σ cotangent·output with respect to input i, of
// fourth order in the step.
func (r *runner) differences(s *Sample, in []Array, i int, out []Array) Array {
	weighted := func() float64 {
		sum := 0.0
		for k, y := range r.run(s, in, call{dt: tensor.Float64, noGrad: true}).out {
			for e, w := range cotangent(k, out[k]).V {
				if w != 0 {
					sum += w * y.V[e]
				}
			}
		}
		return sum
	}
	const h = 1e-3
	g := Array{in[i].Shape, make([]float64, len(in[i].V))}
	for e, x := range in[i].V {
		var f [4]float64
		for k, step := range []float64{-2 * h, -h, h, 2 * h} {
			in[i].V[e] = x + step
			f[k] = weighted()
		}
		in[i].V[e] = x
		g.V[e] = (f[0] - 8*f[1] + 8*f[2] - f[3]) / (12 * h)
	}
	return g
}

// layouts compares strided and broadcast operands and cotangents with contiguous ones.
func (r *runner) layouts(t *testing.T, op Op) {
	for _, s := range op.Samples {
		if s.Large {
			continue
		}
		for name, lay := range map[string]layout{"reversed": reversed{}, "window": window{},
			"every other": everyOther{}, "broadcast": broadcast{}} {
			in := s.values(op.Name, op.DTypes[0])
			for i := range in {
				if !s.In[i].None {
					in[i] = lay.prepare(in[i])
				}
			}
			want := r.wanted(&s, in, call{dt: op.DTypes[0], lay: prepareOnly{lay}})
			got := r.run(&s, in, call{dt: op.DTypes[0], lay: lay})
			requireSame(t, want, got, bound{1e-12, 1e-12}, s.Name+": "+name+" operands")
		}
	}
}

func requireSame(t *testing.T, want, got result, b bound, what string) {
	t.Helper()
	require.Len(t, got.out, len(want.out), what)
	for i := range want.out {
		requireClose(t, want.out[i], got.out[i], b, fmt.Sprintf("%s: output %d", what, i))
	}
	require.Len(t, got.grad, len(want.grad), what)
	for i := range want.grad {
		requireClose(t, want.grad[i], got.grad[i], b, fmt.Sprintf("%s: gradient of input %d", what, i))
	}
}

// tolerances of each dtype against float64, for results and for gradients, which go
// through several roundings.
var tolerances = map[tensor.DType]struct{ out, grad bound }{
	tensor.Float64:  {bound{1e-12, 1e-300}, bound{1e-12, 1e-300}},
	tensor.Float32:  {bound{2e-6, 1e-7}, bound{5e-6, 1e-6}},
	tensor.BFloat16: {bound{5e-3, 1e-3}, bound{2e-2, 1e-2}},
	tensor.Float16:  {bound{1e-3, 1e-4}, bound{4e-3, 2e-3}},
	tensor.Int32:    {},
	tensor.Int64:    {},
	tensor.Uint8:    {},
	tensor.Bool:     {},
}

// dtypes compares every supported dtype with the oracle or the float64 results on the
// same (rounded) inputs: floats within the dtype's tolerance, the others exactly.
// Unsupported dtypes must be refused.
func (r *runner) dtypes(t *testing.T, op Op) {
	for _, dt := range dtype.All() {
		if !slices.Contains(op.DTypes, dt) {
			r.refused(t, op, dt)
			continue
		}
		slack := max(op.Slack, 1)
		tol := tolerances[dt]
		tol.out.rel, tol.grad.rel = tol.out.rel*slack, tol.grad.rel*slack
		for _, s := range op.Samples {
			if s.Large || s.FloatsOnly && !dt.IsFloat() {
				continue
			}
			in := s.values(op.Name, dt)
			got := r.run(&s, in, call{dt: dt})
			want := result{}
			if slices.Contains(op.DTypes, tensor.Float64) {
				want = r.wanted(&s, in, call{dt: tensor.Float64})
			}
			if s.Want != nil {
				want.out = s.Want(dt, in)
			}
			for i := range want.out {
				if !dt.IsFloat() && dt != tensor.Bool {
					for k, v := range want.out[i].V {
						if op.Name != "Cast" {
							want.out[i].V[k] = convert(dt, v)
						}
					}
				}
				requireClose(t, want.out[i], got.out[i], tol.out, fmt.Sprintf("%s %s: output %d", s.Name, dt, i))
			}
			for i := range got.grad {
				requireClose(t, want.grad[i], got.grad[i], tol.grad,
					fmt.Sprintf("%s %s: gradient of input %d", s.Name, dt, i))
			}
		}
	}
}

// refused checks that the first sample of an op gives an error in a dtype that it does
// not support.
func (r *runner) refused(t *testing.T, op Op, dt tensor.DType) {
	s := op.Samples[0]
	for _, s = range op.Samples {
		if !s.Large && len(s.values(op.Name, dt)) == len(s.In) && !emptySample(s) {
			break
		}
	}
	in := s.values(op.Name, dt)
	err := tensor.Try(func() {
		r.run(&s, in, call{dt: dt, noGrad: true})
		r.c.Sync()
	})
	require.Error(t, err, "%s in %s", op.Name, dt)
}

func emptySample(s Sample) bool {
	return slices.ContainsFunc(s.In, func(x Input) bool { return numel(x.Shape) == 0 })
}

// delayed compares gradients that DelayWeightGrads puts off with those of one Backward, bit for bit.
func (r *runner) delayed(t *testing.T, op Op) {
	for _, s := range op.Samples {
		for _, dt := range []tensor.DType{tensor.Float64, tensor.BFloat16} {
			if s.Large || !slices.Contains(op.DTypes, dt) {
				continue
			}
			in := s.values(op.Name, dt)
			want, got := r.run(&s, in, call{dt: dt}), r.run(&s, in, call{dt: dt, delay: true})
			requireSame(t, want, got, bound{}, fmt.Sprintf("%s %v: delayed", s.Name, dt))
			require.Equal(t, want.raw, got.raw, "%s %v: bits of delayed gradients", s.Name, dt)
		}
	}
}

// misuse makes the row's forbidden calls, and those that no op may accept: an operand
// that is nil, freed or lives on another device.
func (r *runner) misuse(t *testing.T, op Op) {
	for _, m := range op.Misuse {
		err := tensor.Try(func() {
			r.c.Scope(func(c *tensor.Ctx) []*tensor.Tensor { m.Call(c); c.Sync(); return nil })
		})
		require.Error(t, err, "%s: %s", op.Name, m.Name)
		if !m.Fault {
			var misuse *tensor.Error
			require.ErrorAs(t, err, &misuse, m.Name)
			require.Equal(t, op.Name, misuse.Op, m.Name)
		}
		require.Contains(t, err.Error(), m.Want, m.Name)
	}
	s := op.Samples[0]
	in := s.values(op.Name, op.DTypes[0])
	for i, x := range s.In {
		for what, spoil := range map[string]func(*tensor.Tensor) *tensor.Tensor{
			"freed": func(x *tensor.Tensor) *tensor.Tensor { x.Free(); return x },
			"nil":   func(*tensor.Tensor) *tensor.Tensor { return nil },
		} {
			if x.None || what == "nil" && optional(op, i) {
				continue
			}
			err := tensor.Try(func() {
				r.c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
					ts := make([]*tensor.Tensor, len(s.In))
					for k, y := range s.In {
						if !y.None {
							ts[k] = upload(c, in[k], pick(y.DType, op.DTypes[0]), nil)
						}
					}
					ts[i] = spoil(ts[i])
					s.Apply(c, op.DTypes[0], ts)
					return nil
				})
			})
			var misuse *tensor.Error
			require.ErrorAs(t, err, &misuse, "%s: operand %d %s", op.Name, i, what)
			require.Contains(t, misuse.Msg, what)
		}
	}
}

// optional reports whether some sample leaves out input i.
func optional(op Op, i int) bool {
	return slices.ContainsFunc(op.Samples, func(s Sample) bool { return i < len(s.In) && s.In[i].None })
}

func pick(fixed, tested tensor.DType) tensor.DType {
	if fixed == dtype.Invalid {
		return tested
	}
	return fixed
}

// RunBits compares the results of all ops in float32 (or what they support) on several
// devices, bit for bit: with any number of workers, and on every backend of the same
// kernels.
func RunBits(t *testing.T, reference *tensor.Device, others ...*tensor.Device) {
	ref := runner{dev: reference, c: tensor.NewCtx(reference)}
	var runners []runner
	for _, dev := range others {
		runners = append(runners, runner{dev: dev, c: tensor.NewCtx(dev)})
	}
	for _, op := range Table() {
		dt := tensor.Float32
		if !slices.Contains(op.DTypes, dt) {
			dt = op.DTypes[0]
		}
		for _, s := range op.Samples {
			in := s.values(op.Name, dt)
			want := ref.run(&s, in, call{dt: dt})
			for i, r := range runners {
				got := r.run(&s, in, call{dt: dt})
				if string(want.raw) != string(got.raw) {
					what := fmt.Sprintf("%s %s on device %d (%s)", op.Name, s.Name, i, r.dev.Name())
					requireSame(t, want, got, bound{}, what)
					require.Fail(t, "bits differ", "%s: signs of zeros, or NaNs", what)
				}
			}
		}
	}
}
