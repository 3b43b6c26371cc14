// SPDX-License-Identifier: Apache-2.0

package gpt2_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Under autocast in bfloat16 the activations of GPT-2 124M take at most 0.6 of float32's, and no copy of a weight is
// left when the last backward pass of a step ends.
func TestActivationsInBFloat16(t *testing.T) {
	run := func(lower tensor.DType, dropout float64) (activations, left int64) {
		dev := tensor.NewMeta()
		defer dev.Close()
		cfg := gpt2.DefaultConfig()
		cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = dropout, dropout, dropout
		m := newModel(t, dev, cfg)
		before := dev.MemStats().InUse
		c := nn.NewCtx(tensor.NewCtx(dev).WithRandom(1, 0).Autocast(lower), nn.Walk(m), true).WithLossOnly()
		c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
			out := m.Forward(c, m.ExampleBatch(c.Ctx, 2, 512))
			activations = dev.MemStats().InUse - before
			for _, p := range nn.NamedParameters(m) {
				activations -= int64(p.LoweredBytes())
			}
			// the gradient of the head, which is formed with the loss
			activations -= int64(4 * cfg.VocabSize * cfg.NEmbd)
			tensor.Backward(c.Ctx, []*tensor.Tensor{out.Loss}, nil, nil, tensor.DroppingLowered())
			return nil
		})
		return activations, dev.MemStats().InUse - before - int64(4*nn.NumParameters(m))
	}
	for _, dropout := range []float64{0, 0.1} {
		single, _ := run(tensor.Invalid, dropout)
		half, left := run(tensor.BFloat16, dropout)
		t.Logf("dropout %g: %.1f MiB in float32, %.1f in bfloat16: %.3f", dropout, float64(single)/(1<<20),
			float64(half)/(1<<20), float64(half)/float64(single))
		require.LessOrEqual(t, float64(half), 0.6*float64(single))
		require.Zero(t, left)
	}
}
