// SPDX-License-Identifier: Apache-2.0

package optim_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/backend/deferred"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// nothing is a link that promises nothing and does nothing.
type nothing struct{}

func (nothing) Traits() optim.Traits                                                       { return optim.Traits{} }
func (nothing) State(tensor.Named) []optim.StateTensor                                     { return nil }
func (nothing) Apply(*tensor.Ctx, tensor.Named, *optim.Group, *optim.Slot, *tensor.Tensor) {}

// stepper is an optimizer of three parameters on a device, of which one has no gradient in each second step.
type stepper struct {
	c      *tensor.Ctx
	params []tensor.Named
	opt    *optim.Optimizer
}

func newStepper(dev *tensor.Device, dt tensor.DType, half optim.HalfUpdate,
	make func(*tensor.Ctx, []*optim.Group) *optim.Optimizer) *stepper {
	s := &stepper{c: tensor.NewCtx(dev).NoGrad()}
	for i, shape := range [][]int{{70, 60}, {300}, {}} {
		p := tensor.Cast(s.c, tensor.Normal(s.c, tensor.Float32, uint64(i), 0, 1, shape...), dt).SetRequiresGrad(true)
		s.params = append(s.params, tensor.Named{Name: fmt.Sprint("p", i), Tensor: p})
	}
	s.opt = make(s.c, []*optim.Group{{Params: s.params[:1], LR: 0.01, WeightDecay: 0.1},
		{Params: s.params[1:], LR: 0.02}})
	s.opt.SetHalfUpdate(half, 3)
	return s
}

// give sets the gradients of step n, the last of them times the factor bad.
func (s *stepper) give(n int, bad float64) {
	for i, p := range s.params {
		p.ZeroGrad()
		if i == 1 && n%2 == 1 {
			continue
		}
		g := tensor.Normal(s.c, p.GradDType(), uint64(10*n+i+7), 0, 1, p.Shape()...)
		if i == 2 {
			tensor.ScaleInto(s.c, g, bad)
		}
		p.SwapGrad(g, true)
	}
}

// all are the bits of parameters and state, and the step counts.
func (s *stepper) all() map[string]any {
	out := map[string]any{}
	for _, p := range s.params {
		out[p.Name] = tensor.ReadBytes(s.c, p.Tensor)
	}
	st := s.opt.State()
	for k, t := range st.Tensors {
		out[k] = tensor.ReadBytes(s.c, t)
	}
	for k, n := range st.Steps {
		out["steps of "+k] = n
	}
	return out
}

// A step by the device has the bits of one by the host, and leaves everything alone where its gradients or losses are
// not finite.
func TestStepByIsStep(t *testing.T) {
	chains := map[string]func(*tensor.Ctx, []*optim.Group) *optim.Optimizer{
		"adamw": optim.DefaultAdamW().New, "adam": optim.Adam(optim.DefaultAdamW()).New, "sgd": optim.SGD{}.New,
		"momentum": optim.SGD{Momentum: 0.9}.New, "nesterov": optim.SGD{Momentum: 0.9, Nesterov: true}.New,
	}
	type kind struct {
		dt   tensor.DType
		half optim.HalfUpdate
	}
	for name, chain := range chains {
		for _, k := range []kind{{tensor.Float32, optim.HalfKahan}, {tensor.Float64, optim.HalfKahan},
			{tensor.BFloat16, optim.HalfKahan}, {tensor.BFloat16, optim.HalfStochastic},
			{tensor.Float16, optim.HalfPlain}} {
			for _, limit := range []float64{0, 0.5} {
				for _, scale := range []float64{1, 1024} {
					be := deferred.New(1)
					dev := joint.Device[*tensor.Device](be)
					host, device := newStepper(tensor.CPU(), k.dt, k.half, chain), newStepper(dev, k.dt, k.half, chain)
					require.True(t, device.opt.StepsAlone())
					what := fmt.Sprint(name, " ", k, " ", limit, " ", scale)
					for n := range 6 {
						bad, loss := 1.0, 2.0
						switch n {
						case 0, 3:
							bad = math.Inf(1)
						case 4:
							loss = math.NaN()
						}
						host.give(n, bad)
						norm := optim.GradNorm(host.c, host.params) / scale
						ok := !math.IsInf(norm, 0) && !math.IsNaN(norm) && !math.IsNaN(loss)
						if ok {
							host.opt.ScaleGrads(optim.ClipFactor(norm, limit) / scale)
							host.opt.Step(host.c)
						}

						device.give(n, bad)
						numbers := tensor.Zeros(device.c, tensor.Float64, tensor.ClipLen)
						losses := tensor.FromSlice(device.c, []float64{1, loss}, 2)
						waits := be.HostWaits()
						optim.MeasureGrads(device.c, numbers, device.params, losses, limit, scale)
						device.opt.StepBy(device.c, numbers, limit > 0 || scale != 1)
						if n > 1 {
							require.Equal(t, waits, be.HostWaits())
						}
						got := tensor.ToSlice[float64](device.c, numbers)
						require.Equal(t, math.Float64bits(norm), math.Float64bits(got[tensor.ClipNorm]), what)
						require.Equal(t, ok, got[tensor.ClipFinite] != 0, what)
						if !ok {
							device.opt.TakeBack()
						}
						require.Equal(t, host.all(), device.all(), "%s, step %d", what, n)
					}
					require.NoError(t, dev.Close())
				}
			}
		}
	}
}

// A transform that does not promise anything makes the host wait, and so does a device that lacks the kernel.
func TestWhoStepsAlone(t *testing.T) {
	chain := func(c *tensor.Ctx, g []*optim.Group) *optim.Optimizer { return optim.New(c, "mine", g, nothing{}) }
	require.False(t, newStepper(tensor.CPU(), tensor.Float32, optim.HalfKahan, chain).opt.StepsAlone())
	dev := joint.Device[*tensor.Device](old{deferred.New(1)})
	defer dev.Close()
	s := newStepper(dev, tensor.Float32, optim.HalfKahan, optim.DefaultAdamW().New)
	require.False(t, s.opt.StepsAlone())
	s.give(0, 1)
	err := tensor.Try(func() {
		optim.MeasureGrads(s.c, tensor.Zeros(s.c, tensor.Float64, tensor.ClipLen), s.params, nil, 1, 1)
	})
	require.ErrorContains(t, err, "device deferred cannot: see Device.StepsAlone")
}

// old is a backend without the clip factor.
type old struct{ backend.Backend }

func (b old) Supports(op backend.Op, dt dtype.DType) bool {
	return op != backend.OpClipFactor && b.Backend.Supports(op, dt)
}

// AdamW over many parameters is one launch on a device that takes lists, and so are the squares of their gradients.
func TestAStepOfManyParametersIsFewLaunches(t *testing.T) {
	be := deferred.New(1)
	dev := joint.Device[*tensor.Device](be)
	defer dev.Close()
	c := tensor.NewCtx(dev).NoGrad()
	g := &optim.Group{LR: 0.1}
	for i := range 20 {
		p := tensor.Ones(c, tensor.Float32, 3).SetRequiresGrad(true)
		p.SwapGrad(tensor.Ones(c, tensor.Float32, 3), true)
		g.Params = append(g.Params, tensor.Named{Name: fmt.Sprint(i), Tensor: p})
	}
	opt := optim.DefaultAdamW().New(c, []*optim.Group{g})
	numbers := tensor.Zeros(c, tensor.Float64, tensor.ClipLen)
	opt.Step(c)
	before := be.Launches()
	optim.MeasureGrads(c, numbers, g.Params, nil, 1, 1)
	opt.StepBy(c, numbers, true)
	require.EqualValues(t, 3, be.Launches()-before, "squares, factor, AdamW")
}

// Momentum without decay is two launches for each parameter, which read the gradient where it is, and one by one its
// links are four.
func TestMomentumIsTwoLaunches(t *testing.T) {
	launches := func(behind ...optim.Transform) int64 {
		be := deferred.New(1)
		dev := joint.Device[*tensor.Device](be)
		defer dev.Close()
		s := newStepper(dev, tensor.Float32, optim.HalfKahan, func(c *tensor.Ctx, g []*optim.Group) *optim.Optimizer {
			g[0].WeightDecay = 0
			chain := []optim.Transform{optim.L2{}, optim.Momentum{Momentum: 0.9}}
			return optim.New(c, "sgd", g, append(chain, behind...)...)
		})
		s.give(0, 1)
		s.opt.Step(s.c)
		before := be.Launches()
		s.opt.Step(s.c)
		return be.Launches() - before
	}
	require.EqualValues(t, 2*3, launches())
	require.EqualValues(t, 4*3, launches(nothing{}))
}
