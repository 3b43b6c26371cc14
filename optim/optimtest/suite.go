// SPDX-License-Identifier: Apache-2.0

// Package optimtest is the test suite that every optimizer passes. Use it to test your own chain of transforms: call
// [Run] from its tests. It checks that the optimizer converges, that its accounts of memory and state are exact, that
// it survives saving and loading bit for bit, and that it neither leaks nor writes out of bounds.
//
// It does not compare an optimizer with its paper or with PyTorch; golden files beside the optimizer do.
package optimtest

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Case is an optimizer under test.
type Case struct {
	Name string
	// New makes the optimizer over the given groups.
	New func(c *tensor.Ctx, groups []*optim.Group) *optim.Optimizer
	// LR is a learning rate at which it minimises a quadratic of curvatures 1 to 4 in 300
	// steps.
	LR float64
	// Silent is the number of first steps that change no parameter.
	Silent int
	// Allocs bounds the Go allocations of a step per parameter.
	Allocs float64
}

// Run checks the optimizer in subtests.
func Run(t *testing.T, k Case) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, k Case)
	}{
		{"Converges", converges},
		{"WeightDecayShrinks", decays},
		{"MissingGradients", missing},
		{"NoLearningRateNoChange", frozen},
		{"GroupsKeepTheirRates", groupRates},
		{"GradientsStay", gradientsStay},
		{"ScaleGrads", scaleGrads},
		{"StepBy", stepBy},
		{"FusedPass", fusedPass},
		{"SaveAndLoad", saveAndLoad},
		{"EvalAndTrain", evalAndTrain},
		{"LoadErrors", loadErrors},
		{"DTypes", dtypes},
		{"Workers", workers},
		{"Memory", memory},
		{"Allocations", allocations},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, k) })
	}
}

// groupRates gives two groups their own rates: a schedule's factor multiplies each, before and after a save and a load,
// and a step has the bits of one at the rates set by hand.
func groupRates(t *testing.T, k Case) {
	rates := []float64{k.LR, k.LR / 64}
	made := func() *rig {
		r := newRig(k, tensor.CPU(), tensor.Float32, 0, 0)
		groups := r.opt.Groups()
		for i, g := range groups {
			g.LR = rates[i]
		}
		r.opt = k.New(r.c, groups)
		return r
	}
	scaled, byHand := made(), made()
	require.Equal(t, rates, scaled.opt.BaseLRs())
	for n, factor := range []float64{1, 0.5, 0.25} {
		scaled.opt.ScaleLR(factor)
		for i, g := range byHand.opt.Groups() {
			g.LR = rates[i] * factor
			require.Equal(t, g.LR, scaled.opt.Groups()[i].LR)
		}
		scaled.steps(n, n+1)
		byHand.steps(n, n+1)
	}
	require.Equal(t, byHand.bits(), scaled.bits())

	resumed := made()
	require.NoError(t, resumed.opt.LoadState(resumed.c, scaled.opt.State()))
	resumed.opt.ScaleLR(0.125)
	for i, g := range resumed.opt.Groups() {
		require.Equal(t, rates[i]*0.125, g.LR)
	}
}

// shapes are those of the parameters that the suite trains, with a scalar and an empty one.
var shapes = map[string][]int{"matrix": {3, 5}, "vector": {7}, "scalar": {}, "empty": {0, 3}}

// order is the order of the parameters.
var order = []string{"matrix", "vector", "scalar", "empty"}

// rig is an optimizer with its parameters, the first in one group, the others in another.
type rig struct {
	c      *tensor.Ctx
	opt    *optim.Optimizer
	params []tensor.Named
}

func newRig(k Case, dev *tensor.Device, dt tensor.DType, lr, decay float64) *rig {
	c := tensor.NewCtx(dev)
	groups := []*optim.Group{{LR: lr, WeightDecay: decay}, {LR: lr}}
	r := &rig{c: c}
	for i, name := range order {
		x := tensor.Normal(c.NoGrad(), tensor.Float32, uint64(i+1), 0, 1, shapes[name]...)
		p := tensor.Named{Name: name, Tensor: tensor.Cast(c.NoGrad(), x, dt).SetRequiresGrad(true)}
		groups[min(i, 1)].Params = append(groups[min(i, 1)].Params, p)
		r.params = append(r.params, p)
	}
	r.opt = k.New(c, groups)
	return r
}

// give sets the gradients that step number n sees: pseudo-random, the same for every rig.
func (r *rig) give(n int) {
	for i, p := range r.params {
		p.SwapGrad(tensor.Normal(r.c.NoGrad(), p.GradDType(), uint64(1000*n+i), 0, 1, p.Shape()...), true)
	}
}

func (r *rig) steps(from, to int) {
	for n := from; n < to; n++ {
		r.give(n)
		r.opt.Step(r.c)
	}
}

// bits are the exact values of the parameters.
func (r *rig) bits() map[string][]byte {
	out := map[string][]byte{}
	for _, p := range r.params {
		out[p.Name] = tensor.ReadBytes(r.c, p.Tensor)
	}
	return out
}

func (r *rig) values(name string) []float64 {
	for _, p := range r.params {
		if p.Name == name {
			return tensor.ToSlice[float64](r.c, tensor.Cast(r.c.NoGrad(), p.Tensor, tensor.Float64))
		}
	}
	return nil
}

// converges minimises ½Σ aᵢ(xᵢ−1)² with curvatures aᵢ from 1 to 4.
func converges(t *testing.T, k Case) {
	c := tensor.NewCtx(tensor.CPU())
	a := tensor.FromSlice(c, []float32{1, 1.5, 2, 3, 4}, 5)
	x := tensor.FromSlice(c, []float32{-2, 3, 0, 5, 0.5}, 5).SetRequiresGrad(true)
	group := &optim.Group{Params: []tensor.Named{{Name: "x", Tensor: x}}, LR: k.LR}
	opt := k.New(c, []*optim.Group{group})
	const steps = 300
	for n := range steps {
		group.LR = k.LR * (1 - float64(n)/steps)
		opt.ZeroGrad()
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			d := tensor.Affine(c, x, 1, -1)
			loss := tensor.Sum(c, tensor.Mul(c, a, tensor.Mul(c, d, d)), nil, false)
			tensor.Backward(c, []*tensor.Tensor{tensor.Affine(c, loss, 0.5, 0)}, nil, nil)
			return nil
		})
		opt.Step(c)
	}
	require.InDeltaSlice(t, []float32{1, 1, 1, 1, 1}, tensor.ToSlice[float32](c, x), 1e-2)
	require.EqualValues(t, steps, opt.State().Steps["x"])
}

// decays checks that without gradient signal only the group with weight decay shrinks.
func decays(t *testing.T, k Case) {
	r := newRig(k, tensor.CPU(), tensor.Float32, 0.1, 0.5)
	before, still := r.values("matrix"), r.bits()["vector"]
	for range 3 + k.Silent {
		for _, p := range r.params {
			p.SwapGrad(tensor.ZerosLike(r.c.NoGrad(), p.Tensor), true)
		}
		r.opt.Step(r.c)
	}
	for i, x := range r.values("matrix") {
		require.Less(t, x*x, before[i]*before[i])
	}
	require.Equal(t, still, r.bits()["vector"])
}

// missing leaves parameters without a gradient, and their step counts, alone.
func missing(t *testing.T, k Case) {
	r := newRig(k, tensor.CPU(), tensor.Float32, 0.1, 0.5)
	first := 2 + k.Silent
	r.steps(0, first)
	before := r.bits()
	r.give(first)
	for _, p := range r.params {
		if p.Name == "matrix" {
			p.ZeroGrad()
		}
	}
	r.opt.Step(r.c)
	after := r.bits()
	require.Equal(t, before["matrix"], after["matrix"])
	require.NotEqual(t, before["vector"], after["vector"])
	steps := r.opt.State().Steps
	require.EqualValues(t, first, steps["matrix"])
	require.EqualValues(t, first+1, steps["vector"])
	r.opt.ZeroGrad()
	r.opt.Step(r.c)
	require.Equal(t, after, r.bits())
	require.Equal(t, steps, r.opt.State().Steps)
}

// frozen takes steps at learning rate 0, as a schedule's warm-up does.
func frozen(t *testing.T, k Case) {
	r := newRig(k, tensor.CPU(), tensor.Float32, 0, 0.5)
	before := r.bits()
	r.steps(0, 3)
	require.Equal(t, before, r.bits())
	require.EqualValues(t, 3, r.opt.State().Steps["matrix"])
}

// gradientsStay checks that a step reads gradients and does not change them.
func gradientsStay(t *testing.T, k Case) {
	r := newRig(k, tensor.CPU(), tensor.Float32, 0.1, 0.5)
	r.steps(0, 1)
	r.give(1)
	before := tensor.ReadBytes(r.c, r.params[0].Grad())
	r.opt.Step(r.c)
	require.Equal(t, before, tensor.ReadBytes(r.c, r.params[0].Grad()))
}

// saveAndLoad continues from a saved state in a new optimizer with the same bits.
func saveAndLoad(t *testing.T, k Case) {
	whole := newRig(k, tensor.CPU(), tensor.Float32, 0.1, 0.01)
	whole.steps(0, 7)

	first := newRig(k, tensor.CPU(), tensor.Float32, 0.1, 0.01)
	first.steps(0, 3)
	saved := first.opt.State()
	require.Equal(t, first.opt.Name(), saved.Name)

	second := newRig(k, tensor.CPU(), tensor.Float32, 0.1, 0.01)
	second.steps(50, 52) // what it remembers must go
	for i, p := range second.params {
		tensor.CopyInto(second.c.NoGrad(), p.Tensor, first.params[i].Tensor)
	}
	require.NoError(t, second.opt.LoadState(second.c, saved))
	second.steps(3, 7)
	require.Equal(t, whole.bits(), second.bits())

	first.steps(3, 7) // the loaded state was a copy
	require.Equal(t, whole.bits(), first.bits())
}

// evalAndTrain continues with the same bits after the weights of evaluation were in place, in the same optimizer and in
// one that loads what was saved meanwhile; neither keeps memory.
func evalAndTrain(t *testing.T, k Case) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	whole := newRig(k, dev, tensor.Float32, 0.1, 0.01)
	whole.steps(0, 7+k.Silent)

	first, second := newRig(k, dev, tensor.Float32, 0.1, 0.01), newRig(k, dev, tensor.Float32, 0.1, 0.01)
	second.steps(50, 52)
	first.opt.Eval(first.c) // before the first step
	first.opt.Train(first.c)
	first.steps(0, 3+k.Silent)
	dev.Collect()
	before := dev.MemStats().InUse
	trained := first.bits()
	first.opt.Eval(first.c)
	first.opt.Eval(first.c)
	require.Equal(t, first.opt.Averages(), !slices.Equal(trained["matrix"], first.bits()["matrix"]))
	second.opt.Eval(second.c)
	require.NoError(t, second.opt.LoadState(second.c, first.opt.State()))
	if first.opt.Averages() {
		require.Error(t, tensor.Try(func() { first.opt.Step(first.c) }), "a step by weights of evaluation")
	} else {
		for i, p := range second.params {
			tensor.CopyInto(second.c.NoGrad(), p.Tensor, first.params[i].Tensor)
		}
	}
	for _, r := range []*rig{first, second} {
		r.opt.Train(r.c)
		require.Equal(t, trained, r.bits())
	}
	require.Equal(t, before, dev.MemStats().InUse)
	for _, r := range []*rig{first, second} {
		r.steps(3+k.Silent, 7+k.Silent)
		require.Equal(t, whole.bits(), r.bits())
	}
}

// loadErrors hands in states that do not fit; the optimizer must not change.
func loadErrors(t *testing.T, k Case) {
	r := newRig(k, tensor.CPU(), tensor.Float32, 0.1, 0)
	r.steps(0, 2)
	st := r.opt.State()
	bad := optim.StateDict{Name: "else", Steps: map[string]int64{"matrix": -1, "vector": 5, "scalar": 5, "other": 1},
		Tensors: map[string]*tensor.Tensor{
			"other.state": tensor.Zeros(r.c, tensor.Float32, 1),
		}}
	want := []string{fmt.Sprintf("it was saved by optimizer %q, not %q", "else", r.opt.Name()),
		"other.state is not known",
		"the step count of matrix is -1: want 0 or more", "the step count of empty is missing",
		"the step count of other is not known"}
	for name := range st.Tensors {
		if name == "vector.exp_avg" {
			bad.Tensors[name] = tensor.Zeros(r.c, tensor.Float64, 7)
			want = append(want, "vector.exp_avg is float64[7]: want float32[7]")
			continue
		}
		want = append(want, name+" is missing")
	}
	err := r.opt.LoadState(r.c, bad)
	require.ErrorContains(t, err, "optim: the saved state does not fit: ")
	for _, w := range want {
		require.ErrorContains(t, err, w)
	}
	require.Equal(t, map[string]int64{"matrix": 2, "vector": 2, "scalar": 2, "empty": 2}, r.opt.State().Steps)
}

// dtypes trains parameters of each dtype; parameters keep it, and so do states of their shape, which are float32 for
// half types, and the low precisions follow the high one.
func dtypes(t *testing.T, k Case) {
	exact := newRig(k, tensor.CPU(), tensor.Float64, 0.05, 0.01)
	exact.steps(0, 5)
	for dt, tolerance := range map[tensor.DType]float64{tensor.Float32: 1e-5, tensor.BFloat16: 0.1,
		tensor.Float16: 0.02} {
		r := newRig(k, tensor.CPU(), dt, 0.05, 0.01)
		for n := range 5 { // the exact gradients, rounded
			exact.give(n)
			for i, p := range r.params {
				p.SwapGrad(tensor.Cast(r.c.NoGrad(), exact.params[i].Grad(), p.GradDType()), true)
			}
			r.opt.Step(r.c)
		}
		for name, s := range r.opt.State().Tensors {
			want := r.params[0].GradDType()
			if strings.HasSuffix(name, ".kahan_compensation") {
				want = dt
			}
			if of, _, _ := strings.Cut(name, "."); slices.Equal(s.Shape(), shapes[of]) {
				require.Equal(t, want, s.DType(), name)
			}
		}
		for _, name := range order {
			require.InDeltaSlice(t, exact.values(name), r.values(name), tolerance, "%v %s", dt, name)
		}
	}
}

// scaleGrads has the bits of gradients scaled before, for one step, and none if they are forgotten.
func scaleGrads(t *testing.T, k Case) {
	for _, dt := range []tensor.DType{tensor.Float32, tensor.Float64, tensor.BFloat16} {
		ahead, within := newRig(k, tensor.CPU(), dt, 0.1, 0.1), newRig(k, tensor.CPU(), dt, 0.1, 0.1)
		for n := range 4 {
			ahead.give(n)
			within.give(n)
			switch n {
			case 1:
				for _, p := range ahead.params {
					tensor.ScaleInto(ahead.c.NoGrad(), p.Grad(), 0.3)
				}
				within.opt.ScaleGrads(0.3)
			case 2:
				within.opt.ScaleGrads(0.3)
				within.opt.ZeroGrad()
				within.give(n)
			}
			ahead.opt.Step(ahead.c)
			within.opt.Step(within.c)
			require.Equal(t, ahead.bits(), within.bits(), "%v, step %d", dt, n)
		}
	}
}

// stepBy steps by numbers on the device: with the bits of ScaleGrads and Step, and without any change if gradients are
// not finite.
func stepBy(t *testing.T, k Case) {
	for _, dt := range []tensor.DType{tensor.Float32, tensor.Float64, tensor.BFloat16} {
		host, device := newRig(k, tensor.CPU(), dt, 0.1, 0.1), newRig(k, tensor.CPU(), dt, 0.1, 0.1)
		if !device.opt.StepsAlone() {
			return // a transform is not OnDevice: the host waits, and the other tests are for that
		}
		numbers := tensor.Zeros(device.c, tensor.Float64, tensor.ClipLen)
		for n := range 5 {
			host.give(n)
			device.give(n)
			bad := n == 0 || n == 3
			if bad {
				tensor.FillInto(device.c.NoGrad(), device.params[1].Grad(), math.NaN())
			} else {
				host.opt.ScaleGrads(optim.ClipFactor(optim.GradNorm(host.c, host.params), 0.5))
				host.opt.Step(host.c)
			}
			optim.MeasureGrads(device.c, numbers, device.params, nil, 0.5, 1)
			device.opt.StepBy(device.c, numbers, true)
			if bad {
				device.opt.TakeBack()
			}
			require.Equal(t, host.bits(), device.bits(), "%v, step %d", dt, n)
			require.Equal(t, host.opt.State().Steps, device.opt.State().Steps)
			for name, s := range host.opt.State().Tensors {
				require.Equal(t, tensor.ReadBytes(host.c, s),
					tensor.ReadBytes(device.c, device.opt.State().Tensors[name]), "%v, step %d, %s", dt, n, name)
			}
		}
	}
}

// workers gives the same bits on any number of them; the parameter is large enough to be
// divided.
func workers(t *testing.T, k Case) {
	train := func(n int) []byte {
		dev := tensor.NewCPU(n)
		defer dev.Close()
		c := tensor.NewCtx(dev)
		p := tensor.Named{Name: "p", Tensor: tensor.Normal(c.NoGrad(), tensor.Float32, 1, 0, 1,
			50_001).SetRequiresGrad(true)}
		opt := k.New(c, []*optim.Group{{Params: []tensor.Named{p}, LR: 0.1, WeightDecay: 0.1}})
		for i := range 3 {
			p.SwapGrad(tensor.Normal(c.NoGrad(), tensor.Float32, uint64(i+2), 0, 1, 50_001), true)
			optim.ClipGradNorm(c, opt.Params(), 0.5)
			opt.Step(c)
		}
		return tensor.ReadBytes(c, p.Tensor)
	}
	want := train(1)
	for _, n := range []int{2, 3, 8} {
		require.Equal(t, want, train(n), "%d workers", n)
	}
}

// memory checks that a step gives back all device memory that it takes.
func memory(t *testing.T, k Case) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	r := newRig(k, dev, tensor.Float32, 0.1, 0.1)
	r.give(0)
	r.opt.Step(r.c)
	dev.Collect()
	before := dev.MemStats().InUse
	for range 10 {
		r.opt.Step(r.c)
	}
	require.Equal(t, before, dev.MemStats().InUse)
}

// allocations bounds the garbage of a step.
func allocations(t *testing.T, k Case) {
	r := newRig(k, tensor.CPU(), tensor.Float32, 0.1, 0.1)
	r.give(0)
	got := testing.AllocsPerRun(20, func() { r.opt.Step(r.c) })
	require.LessOrEqual(t, got, k.Allocs*float64(len(r.params)), "allocations of a step over %d parameters",
		len(r.params))
}
