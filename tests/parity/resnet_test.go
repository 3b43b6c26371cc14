// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/resnet"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// eachResNet runs a test on transformers' small ResNets.
func eachResNet(t *testing.T, test func(t *testing.T, c *tensor.Ctx, m *resnet.Model, g golden, meta goldenMeta)) {
	for _, name := range []string{resnet.Basic, resnet.Bottleneck} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join("../../models/resnet/testdata", name)
			c := tensor.NewCtx(tensor.CPU())
			m, err := models.LoadPretrained(tensor.CPU(), dir)
			require.NoError(t, err)
			var meta goldenMeta
			readJSON(t, filepath.Join(dir, "golden.json"), &meta)
			test(t, c, m.(*resnet.Model), openGolden(t, c, filepath.Join(dir, "golden.safetensors")), meta)
		})
	}
}

func imageBatch(pixels, labels *tensor.Tensor) *data.Batch {
	return &data.Batch{Tensors: map[string]*tensor.Tensor{data.PixelValues: pixels, data.Labels: labels},
		Size: pixels.Size(0)}
}

func (g golden) floats(name string) []float32 { return tensor.ToSlice[float32](g.c, g.tensor(name)) }

// In evaluation the running statistics count, in training the batch's.
func TestResNetLogits(t *testing.T) {
	eachResNet(t, func(t *testing.T, c *tensor.Ctx, m *resnet.Model, g golden, meta goldenMeta) {
		b := imageBatch(g.tensor("pixels"), g.tensor("labels"))
		out := m.Forward(nn.NewCtx(c, nil, false), b)
		require.InDeltaSlice(t, g.floats("logits"), tensor.ToSlice[float32](c, out.Logits), 1e-5)
		require.InDelta(t, meta.Loss, tensor.Item(c, out.Loss)/3, 1e-5)
		require.InDeltaSlice(t, g.floats("trained_logits"),
			tensor.ToSlice[float32](c, m.Forward(nn.NewCtx(c, nil, true), b).Logits), 1e-5)
	})
}

// TestResNetFiveSGDSteps compares losses, gradients, final weights and running statistics.
func TestResNetFiveSGDSteps(t *testing.T) {
	eachResNet(t, func(t *testing.T, c *tensor.Ctx, m *resnet.Model, g golden, meta goldenMeta) {
		group := &optim.Group{LR: 0.05}
		group.Params = nn.NamedParameters(m)
		opt := optim.SGD{Momentum: 0.9}.New(c, []*optim.Group{group})
		pixels, labels := g.tensor("steps/pixels"), g.tensor("steps/labels")
		for s, want := range meta.Losses {
			opt.ZeroGrad()
			nn.NewCtx(c, nil, true).Scope(func(nc *nn.Ctx) []*tensor.Tensor {
				out := m.Forward(nc, imageBatch(tensor.Select(nc.Ctx, pixels, 0, s),
					tensor.Select(nc.Ctx, labels, 0, s)))
				require.InDelta(t, want, tensor.Item(nc.Ctx, out.Loss)/8, 1e-4, "step %d", s)
				tensor.Backward(nc.Ctx, []*tensor.Tensor{out.Loss},
					[]*tensor.Tensor{tensor.Full(nc.Ctx, tensor.Float32, 1.0/8)}, nil)
				return nil
			})
			if s == 0 {
				compareGradients(t, c, g, m)
			}
			opt.Step(c)
		}
		state := nn.Walk(m).State()
		for _, p := range state {
			if p.DType() == tensor.Int64 {
				require.Equal(t, tensor.ToSlice[int64](c, g.tensor("final/"+p.Name)),
					tensor.ToSlice[int64](c, p.Tensor), p.Name)
				continue
			}
			var d, n distance
			want := g.floats("final/" + p.Name)
			for i, v := range tensor.ToSlice[float32](c, p.Tensor) {
				d.add(float64(v) - float64(want[i]))
				n.add(float64(want[i]))
			}
			require.Less(t, d.norm(), 1e-4*n.norm(), p.Name)
		}
		out := m.Forward(nn.NewCtx(c, nil, false), imageBatch(g.tensor("pixels"), g.tensor("labels")))
		require.InDeltaSlice(t, g.floats("final_logits"), tensor.ToSlice[float32](c, out.Logits), 1e-3)
	})
}
