// SPDX-License-Identifier: Apache-2.0

package resnet_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models/resnet"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Where convolutions multiply half numbers, a step of ResNet-18 under autocast moves images of the half type alone:
// the only ones that are converted are those that come in and those whose mean is taken.
func TestTrafficOfAutocast(t *testing.T) {
	const images, side, gigabyte = 128, 224, 1e9
	dev := tensor.NewMeta()
	defer dev.Close()
	m, err := resnet.New(nn.NewInit(dev, 1), resnet.ResNet18("cat", "dog"))
	require.NoError(t, err)
	converted, bytes, total := 0, map[string]float64{}, 0.0
	c := nn.NewCtx(tensor.NewCtx(dev).WithRandom(1, 0).Autocast(tensor.BFloat16), nn.Walk(m), true).WithLossOnly()
	c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
		batch := m.ExampleBatch(c.Ctx, images, side)
		defer c.Trace(context.Background(), func(s tensor.KernelSpan) {
			if s.Name == "copy" && s.Bytes > 15e6 { // more than any weight
				converted++
			}
			bytes[s.Name] += s.Bytes / gigabyte
			total += s.Bytes / gigabyte
		})()
		out := m.Forward(c, batch)
		tensor.Backward(c.Ctx, []*tensor.Tensor{out.Loss}, nil, nil, tensor.DroppingLowered())
		return nil
	})
	require.Equal(t, 2, converted, "the images, and the last features for a float32 mean")
	require.InDelta(t, 1.22, bytes["conv2d"], 0.01, "half of float32's")
	require.InDelta(t, 1.91, bytes["batch_norm_grad"], 0.01)
	require.Less(t, total, 12.7)
}
