// SPDX-License-Identifier: Apache-2.0

package gpt2_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// The passes over memory that autocast adds to a step of GPT-2 124M on 16 × 1,024 tokens: residuals are added as they
// are, norms write what products read, and their gradients read what products write. Only weights, biases and the
// head's gradient are converted by separate kernels.
func TestTrafficOfAutocast(t *testing.T) {
	const samples, length, gigabyte = 16, 1024, 1e9
	dev := tensor.NewMeta()
	defer dev.Close()
	cfg := gpt2.DefaultConfig()
	cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = 0, 0, 0
	m := newModel(t, dev, cfg)
	launches, bytes := map[string]int{}, map[string]float64{}
	c := nn.NewCtx(tensor.NewCtx(dev).WithRandom(1, 0).Autocast(tensor.BFloat16), nn.Walk(m), true).WithLossOnly()
	c.Trace(context.Background(), func(s tensor.KernelSpan) {
		name := s.Name
		if name == "copy" && s.Shape[0] != samples && s.Shape[0] != samples*length {
			name = "copy of a parameter"
		}
		launches[name]++
		bytes[name] += s.Bytes / gigabyte
	})
	c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
		out := m.Forward(c, m.ExampleBatch(c.Ctx, samples, length))
		tensor.Backward(c.Ctx, []*tensor.Tensor{out.Loss}, nil, nil, tensor.DroppingLowered())
		return nil
	})
	layers := cfg.NLayer
	hidden := float64(samples*length*cfg.NEmbd) / gigabyte // bytes of a hidden state, per byte of an element
	require.Equal(t, 2, launches["copy"], "of the gradient of the head's input, to scale it")
	require.InDelta(t, 2*6*hidden, bytes["copy"], 1e-6)
	require.InDelta(t, float64(2*layers)*10*hidden, bytes["add"], 0.2, "of residuals")
	// The second norm of each block reads its rows as the two summands that are kept. Gradients of norms are added to
	// those of residuals, and written rounded as well.
	require.InDelta(t, float64(3*layers+1)*6*hidden+float64(layers)*8*hidden, bytes["layer_norm"], 0.02)
	require.InDelta(t, float64(2*layers+1)*10*hidden+float64(2*layers)*(4+2)*hidden+float64(layers)*2*hidden,
		bytes["layer_norm_grad"], 0.02)
}
