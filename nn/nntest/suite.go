// SPDX-License-Identifier: Apache-2.0

// Package nntest is the test suite that every layer passes. Use it to test your own layer: call [Run] from its tests.
// It checks gradients against finite differences, that the layer gets its parameters from the context and runs in a
// Unit, and that recomputation, copies and hooks change no bit.
//
// It does not compare a layer with its paper or with PyTorch; golden files do.
package nntest

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Case is a layer under test.
type Case struct {
	Name string
	New  func(in *nn.Init) nn.Layer
	// In is the shape of its input. Dim 0 counts samples.
	In []int
	// Training is true for layers whose gradients in training are not those of an evaluation.
	Training bool
}

// Run checks the layer in subtests.
func Run(t *testing.T, k Case) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, k Case)
	}{{"Gradients", differences}, {"Parameters", parameters}, {"SameBits", sameBits}, {"Memory", memory}} {
		t.Run(test.name, func(t *testing.T) { test.run(t, k) })
	}
}

// rig is a layer with an input and the weights of its loss, the weighted sum of its outputs.
type rig struct {
	layer  nn.Layer
	c      *nn.Ctx
	x      *tensor.Tensor
	leaves []tensor.Named // the input and the parameters
}

func newRig(k Case, dev *tensor.Device, dt tensor.DType, training bool) *rig {
	r := &rig{layer: k.New(nn.NewInit(dev, 1).As(dt))}
	root := tensor.NewCtx(dev)
	r.x = tensor.Normal(root, dt, 2, 0, 1, k.In...).SetRequiresGrad(true)
	r.c = nn.NewCtx(root, nn.Walk(r.layer), training)
	r.leaves = append([]tensor.Named{{Name: "input", Tensor: r.x}}, nn.NamedParameters(r.layer)...)
	return r
}

// step is the loss of a forward pass; it adds its gradients to those of the leaves.
func (r *rig) step(c *nn.Ctx) (loss float64) {
	c.With(c.WithRandom(3, 0)).Scope(func(c *nn.Ctx) []*tensor.Tensor { // every step draws the same numbers
		y := r.layer.Forward(c, r.x)
		sum := tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, y, tensor.Normal(c.Ctx, y.DType(), 4, 0, 1, y.Shape()...)), nil,
			false)
		loss = tensor.Item(c.Ctx, sum)
		if sum.RequiresGrad() {
			tensor.Backward(c.Ctx, []*tensor.Tensor{sum}, nil, nil)
		}
		return nil
	})
	return loss
}

// bits are the loss and the gradients of one step.
func (r *rig) bits(c *nn.Ctx) map[string][]byte {
	loss := r.step(c)
	out := map[string][]byte{"loss": tensor.ReadBytes(c.Ctx, tensor.Full(c.NoGrad(), tensor.Float64, loss))}
	for _, l := range r.leaves {
		if g := l.Grad(); g != nil {
			out[l.Name] = tensor.ReadBytes(c.Ctx, g)
			l.ZeroGrad()
		}
	}
	return out
}

// differences compares up to 12 elements of each gradient with central differences.
func differences(t *testing.T, k Case) {
	r := newRig(k, tensor.CPU(), tensor.Float64, k.Training)
	r.step(r.c)
	still := r.c.With(r.c.NoGrad())
	for _, l := range r.leaves {
		require.NotNil(t, l.Grad(), "%s has no gradient", l.Name)
		values, got := tensor.ToSlice[float64](still.Ctx, l.Tensor), tensor.ToSlice[float64](still.Ctx, l.Grad())
		for i := 0; i < len(values); i += 1 + len(values)/12 {
			at := func(d float64) float64 {
				moved := append([]float64(nil), values...)
				moved[i] += d
				tensor.CopyInto(still.Ctx, l.Tensor, tensor.FromSlice(still.Ctx, moved, l.Shape()...))
				return r.step(still)
			}
			const h = 1e-5
			want := (at(h) - at(-h)) / (2 * h)
			at(0)
			require.InDelta(t, want, got[i], 1e-6*max(1, math.Abs(want)), "%s[%d]", l.Name, i)
		}
	}
}

// parameters asks whether the layer computes with what the context gives it, in its own Unit.
func parameters(t *testing.T, k Case) {
	r := newRig(k, tensor.CPU(), tensor.Float32, true)
	asked, ran := map[string]bool{}, 0
	c := r.c.WithParam(func(_ *nn.Ctx, name string, v *tensor.Tensor) *tensor.Tensor {
		asked[name] = true
		return v
	})
	tree := nn.Walk(r.layer)
	tree.AddHooks(r.layer, &nn.Hooks{PreForward: func(*nn.Ctx) { ran++ }})
	r.layer.Forward(c, r.x)
	require.Len(t, asked, len(r.leaves)-1, "parameters that the layer asked its context for")
	r.layer.Forward(nn.NewCtx(r.c.Ctx, tree, true), r.x)
	require.Equal(t, 1, ran, "Units of the layer")
}

// sameBits runs the layer again, with recomputation, with hooks and as a copy.
func sameBits(t *testing.T, k Case) {
	r := newRig(k, tensor.CPU(), tensor.Float32, true)
	want := r.bits(r.c)
	require.Equal(t, want, r.bits(r.c), "the same again")
	require.Equal(t, want, r.bits(r.c.WithRecompute([]nn.Module{r.layer})), "with recomputation")
	tree, nothing := nn.Walk(r.layer), func(*tensor.Ctx) {}
	same := func(_ *nn.Ctx, ts []*tensor.Tensor) []*tensor.Tensor { return ts }
	tree.AddHooks(r.layer, &nn.Hooks{PreBackward: nothing, PostBackward: nothing, Inputs: same, Outputs: same})
	hooked := nn.NewCtx(r.c.Ctx, tree, true)
	require.Equal(t, want, r.bits(hooked), "with hooks")
	twin := newRig(k, tensor.CPU(), tensor.Float32, true)
	layer, err := nn.Clone(twin.layer, tensor.CPU())
	require.NoError(t, err)
	r.layer, r.c = layer, nn.NewCtx(r.c.Ctx, nn.Walk(layer), true)
	r.leaves = append(r.leaves[:1], nn.NamedParameters(layer)...)
	require.Equal(t, want, r.bits(r.c), "a copy")
}

// memory checks that a step leaves nothing but gradients.
func memory(t *testing.T, k Case) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	r := newRig(k, dev, tensor.Float32, true)
	dev.Collect()
	before := dev.MemStats().InUse
	for range 2 {
		r.step(r.c)
		for _, l := range r.leaves {
			l.ZeroGrad()
		}
		require.Equal(t, before, dev.MemStats().InUse)
	}
}
