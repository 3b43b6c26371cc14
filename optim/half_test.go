// SPDX-License-Identifier: Apache-2.0

package optim_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// halfRun trains one parameter by AdamW at a learning rate that is small against the precision of bfloat16.
type halfRun struct {
	c     *tensor.Ctx
	p     tensor.Named
	opt   *optim.Optimizer
	begin []float64
}

const halfElements = 4096

// newHalfRun begins with weights that bfloat16 holds.
func newHalfRun(dt tensor.DType, h optim.HalfUpdate, lr float64) *halfRun {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	w := tensor.Cast(c, tensor.Normal(c, tensor.BFloat16, 1, 0, 0.02, halfElements), dt)
	r := &halfRun{c: c, p: tensor.Named{Name: "w", Tensor: w.SetRequiresGrad(true)}}
	r.opt = optim.DefaultAdamW().New(c, []*optim.Group{{Params: []tensor.Named{r.p}, LR: lr, WeightDecay: 0.01}})
	r.opt.SetHalfUpdate(h, 42)
	r.begin = r.values()
	return r
}

func (r *halfRun) values() []float64 {
	return tensor.ToSlice[float64](r.c, tensor.Cast(r.c, r.p.Tensor, tensor.Float64))
}

// steps takes steps from number from to number to: each element has its own direction, and noise.
func (r *halfRun) steps(from, to int) {
	drift := tensor.Normal(r.c, tensor.Float32, 2, 0, 1, halfElements)
	for n := from; n < to; n++ {
		g := tensor.Normal(r.c, tensor.Float32, uint64(100+n), 0, 0.5, halfElements)
		tensor.AddInto(r.c, g, drift)
		r.p.SwapGrad(g, true)
		r.opt.Step(r.c)
	}
}

// unchanged is the share of elements that have their first value.
func (r *halfRun) unchanged() float64 {
	n := 0
	for i, x := range r.values() {
		if x == r.begin[i] {
			n++
		}
	}
	return float64(n) / halfElements
}

// along is how far the run went in the direction of another, as a share of its way.
func (r *halfRun) along(other *halfRun) float64 {
	var dot, square float64
	a, b := r.values(), other.values()
	for i := range a {
		x, y := a[i]-r.begin[i], b[i]-other.begin[i]
		dot, square = dot+x*y, square+y*y
	}
	return dot / square
}

// Small updates of bfloat16 parameters are lost by plain rounding, which is the control, and not by the other two.
func TestSmallUpdatesOfHalfParameters(t *testing.T) {
	const lr, steps = 1e-5, 200
	exact := newHalfRun(tensor.Float32, optim.HalfPlain, lr)
	exact.steps(0, steps)
	runs := map[optim.HalfUpdate]*halfRun{}
	for _, h := range optim.HalfUpdates() {
		runs[h] = newHalfRun(tensor.BFloat16, h, lr)
		runs[h].steps(0, steps)
		t.Logf("%s: %.3f of the elements unchanged, %.4f of the way", h, runs[h].unchanged(), runs[h].along(exact))
	}
	require.Less(t, exact.unchanged(), 0.01)
	require.Greater(t, runs[optim.HalfPlain].unchanged(), 0.5)
	require.Less(t, runs[optim.HalfPlain].along(exact), 0.5)
	for _, h := range []optim.HalfUpdate{optim.HalfKahan, optim.HalfStochastic} {
		require.Less(t, runs[h].unchanged(), 0.2, h)
		require.InDelta(t, 1, runs[h].along(exact), 0.02, h)
	}

	// With what it keeps beside the parameter, the Kahan update follows float32 closely.
	k := runs[optim.HalfKahan]
	rest := tensor.ToSlice[float64](k.c, tensor.Cast(k.c, k.opt.State().Tensors["w.kahan_compensation"],
		tensor.Float64))
	for i, want := range exact.values() {
		require.InDelta(t, want, k.values()[i]+rest[i], 5e-6) // two bfloat16 numbers are 1e-4 apart here
	}
}

// A run that is saved and continued has the bits of one that is not, for each update and each kind of chain.
func TestHalfUpdatesResume(t *testing.T) {
	for _, h := range optim.HalfUpdates() {
		for _, dt := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
			t.Run(fmt.Sprint(h, " ", dt), func(t *testing.T) {
				whole, first, second := newHalfRun(dt, h, 1e-3), newHalfRun(dt, h, 1e-3), newHalfRun(dt, h, 1e-3)
				whole.steps(0, 9)
				first.steps(0, 4)
				tensor.CopyInto(second.c, second.p.Tensor, first.p.Tensor)
				require.NoError(t, second.opt.LoadState(second.c, first.opt.State()))
				second.steps(4, 9)
				require.Equal(t, whole.values(), second.values())
			})
		}
	}
}

// Random bits follow from the seed.
func TestStochasticUpdatesFollowTheSeed(t *testing.T) {
	a, b, other := newHalfRun(tensor.BFloat16, optim.HalfStochastic, 1e-3),
		newHalfRun(tensor.BFloat16, optim.HalfStochastic, 1e-3),
		newHalfRun(tensor.BFloat16, optim.HalfStochastic, 1e-3)
	other.opt.SetHalfUpdate(optim.HalfStochastic, 43)
	for _, r := range []*halfRun{a, b, other} {
		r.steps(0, 3)
	}
	require.Equal(t, a.values(), b.values())
	require.NotEqual(t, a.values(), other.values())
}

// A state with a compensation and one without do not fit each other.
func TestHalfUpdatesStateMustFit(t *testing.T) {
	kahan, plain := newHalfRun(tensor.BFloat16, optim.HalfKahan, 1e-3),
		newHalfRun(tensor.BFloat16, optim.HalfPlain, 1e-3)
	require.ErrorContains(t, kahan.opt.LoadState(kahan.c, plain.opt.State()), "w.kahan_compensation is missing")
	require.ErrorContains(t, plain.opt.LoadState(plain.c, kahan.opt.State()), "w.kahan_compensation is not known")
}

func TestSetHalfUpdateMisuse(t *testing.T) {
	r := newHalfRun(tensor.BFloat16, optim.HalfKahan, 1e-3)
	err := tensor.Try(func() { r.opt.SetHalfUpdate("exact", 0) })
	require.ErrorContains(t, err, `half update "exact": want one of ["plain" "kahan" "stochastic"]`)
	r.steps(0, 1)
	require.ErrorContains(t, tensor.Try(func() { r.opt.SetHalfUpdate(optim.HalfPlain, 0) }),
		"want the call before its first step")
}
