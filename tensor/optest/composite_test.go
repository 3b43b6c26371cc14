// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/backend/deferred"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/tensor"
)

// without is a backend that lacks kernels.
type without struct {
	backend.Backend
	ops []backend.Op
}

func (b without) Supports(op backend.Op, dt dtype.DType) bool {
	return !slices.Contains(b.ops, op) && b.Backend.Supports(op, dt)
}

// NewStream returns a stream on which a kernel that is lacking is a fault.
func (b without) NewStream() backend.Stream { return refusing{b.Backend.NewStream(), b} }

type refusing struct {
	backend.Stream
	b without
}

func (s refusing) Launch(k *backend.Call) {
	if slices.Contains(s.b.ops, k.Op) {
		panic(&backend.Fault{Backend: s.b.Name(), Op: k.Op, Msg: "no kernel"})
	}
	s.Stream.Launch(k)
}

// composable are the kernels that a backend need not have, by the op of the table that launches them.
var composable = map[string][]backend.Op{
	"GELU": {backend.OpGELU, backend.OpGELUGrad}, "GELUTanh": {backend.OpGELUTanh, backend.OpGELUTanhGrad},
	"SiLU": {backend.OpSiLU, backend.OpSiLUGrad}, "SwiGLU": {backend.OpSwiGLU, backend.OpSwiGLUGrad},
	"Softmax":    {backend.OpSoftmax, backend.OpSoftmaxGrad},
	"LogSoftmax": {backend.OpLogSoftmax, backend.OpLogSoftmaxGrad},
	"LayerNorm":  {backend.OpLayerNorm, backend.OpLayerNormGrad},
	"RMSNorm":    {backend.OpRMSNorm, backend.OpRMSNormGrad},
	"Attention":  {backend.OpAttention, backend.OpAttentionGrad},
	"Linear":     {backend.OpLinear}, "AdamW": {backend.OpAdamW},
}

// uncapped is a backend whose attention has no soft caps.
type uncapped struct{ without }

func (uncapped) Traits() backend.Traits { return backend.Traits{NoSoftCap: true} }

func (b uncapped) NewStream() backend.Stream { return refusingCaps{b.without.NewStream()} }

type refusingCaps struct{ backend.Stream }

func (s refusingCaps) Launch(k *backend.Call) {
	if (k.Op == backend.OpAttention || k.Op == backend.OpAttentionGrad) && k.Floats[2] != 0 {
		panic(&backend.Fault{Backend: "uncapped", Op: k.Op, Msg: "soft cap"})
	}
	s.Stream.Launch(k)
}

// A device whose kernels have no soft caps composes attention that has one, and no other.
func TestCompositesOfSoftCaps(t *testing.T) {
	dev := closed(t, joint.Device[*tensor.Device](uncapped{without{deferred.New(1), nil}}))
	row(t, dev, "Attention")
	require.Len(t, dev.Composed(), 2)
	capped := dev.Composed()["attention"]
	c := tensor.NewCtx(dev)
	q := tensor.Zeros(c, tensor.Float32, 1, 1, 2, 4)
	tensor.Attention(c, q, q, q, tensor.AttentionOptions{})
	require.Equal(t, capped, dev.Composed()["attention"])
	tensor.Attention(c, q, q, q, tensor.AttentionOptions{SoftCap: 1})
	require.Equal(t, capped+1, dev.Composed()["attention"])
}

// The table holds on a device that lacks a kernel, for each kernel in turn, and for all together.
func TestComposites(t *testing.T) {
	var all []backend.Op
	for name, ops := range composable {
		all = append(all, ops...)
		if testing.Short() {
			continue // all of them together are enough for the race detector
		}
		t.Run(name, func(t *testing.T) {
			for _, op := range ops {
				dev := closed(t, joint.Device[*tensor.Device](without{deferred.New(1), []backend.Op{op}}))
				row(t, dev, name)
				require.Positive(t, dev.Composed()[op.String()], "%s was not composed", op)
				require.Len(t, dev.Composed(), 1)
			}
		})
	}
	dev := closed(t,
		joint.Device[*tensor.Device](without{deferred.New(1),
			append(all, backend.OpLayerNormParamGrad, backend.OpRMSNormParamGrad)}))
	for name := range composable {
		row(t, dev, name)
	}
	require.Greater(t, len(dev.Composed()), len(all)-1)
	require.Empty(t, openCPU(t, 1).Composed())
}

// Under Autocast norms read sums of which one part is of a half type, round what they write, and add their gradients to
// others: without kernels for it the results are those of the CPU, nearly.
func TestCompositesOfMixedNorms(t *testing.T) {
	norms := []backend.Op{backend.OpLayerNorm, backend.OpLayerNormGrad, backend.OpLayerNormParamGrad, backend.OpRMSNorm,
		backend.OpRMSNormGrad, backend.OpRMSNormParamGrad}
	lacking := closed(t, joint.Device[*tensor.Device](without{deferred.New(1), norms}))
	grads := func(dev *tensor.Device) (all [][]float32) {
		n := tensor.NewCtx(dev).NoGrad()
		leaf := func(seed uint64, shape ...int) *tensor.Tensor {
			return tensor.Normal(n, tensor.Float32, seed, 0, 1, shape...).SetRequiresGrad(true)
		}
		x, w, scale, shift := leaf(1, 6, 8), leaf(2, 8, 8), leaf(3, 8), leaf(4, 8)
		n.EnableGrad().Autocast(tensor.BFloat16).Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			h := tensor.Affine(c, x, 2, 0)
			for range 2 {
				h = tensor.Add(c, h, tensor.Linear(c, tensor.LayerNormLowered(c, h, scale, shift, 1e-5), w, nil))
				h = tensor.Add(c, h, tensor.Linear(c, tensor.RMSNormLowered(c, h, scale, 1e-5), w, nil))
			}
			tensor.Backward(c, []*tensor.Tensor{tensor.Sum(c, tensor.Mul(c, h, h), nil, false)}, nil, nil)
			for _, l := range []*tensor.Tensor{x, w, scale, shift} {
				all = append(all, tensor.ToSlice[float32](c, l.Grad()))
			}
			return nil
		})
		return all
	}
	want := grads(tensor.CPU())
	for i, g := range grads(lacking) {
		scale := 0.0
		for _, v := range want[i] {
			scale = max(scale, math.Abs(float64(v)))
		}
		for j := range g {
			require.InDelta(t, want[i][j], g[j], 0.01*scale, "leaf %d, element %d", i, j)
		}
	}
	require.Len(t, lacking.Composed(), 4)
}

// row is Run for one op of the table.
func row(t *testing.T, dev *tensor.Device, name string) {
	t.Helper()
	r := runner{dev: dev, c: tensor.NewCtx(dev)}
	at := slices.IndexFunc(Table(), func(op Op) bool { return op.Name == name })
	require.GreaterOrEqual(t, at, 0, "no row %s", name)
	op := Table()[at]
	r.oracles(t, op)
	r.gradients(t, op)
	r.layouts(t, op)
	r.dtypes(t, op)
	r.misuse(t, op)
}
