// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// A stage behind a part draws what it draws in the whole model.
func TestPartsDrawTheSameInStages(t *testing.T) {
	drops := []*nn.Dropout{{P: 0.5}, {P: 0.5}, {P: 0.5}}
	parts := []nn.Part{{drops[0], drops[1]}, {drops[2]}}
	forward := func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		x = c.Received(x)[0]
		x = nn.RunPart1(c, parts[0], func(x *tensor.Tensor) *tensor.Tensor {
			return drops[1].Forward(c, drops[0].Forward(c, x))
		}, x)
		return nn.RunPart1(c, parts[1], func(x *tensor.Tensor) *tensor.Tensor { return drops[2].Forward(c, x) }, x)
	}
	ctx := func() *nn.Ctx { return nn.NewCtx(tensor.NewCtx(tensor.CPU()).WithRandom(1, 0), nil, true) }
	x := tensor.Full(ctx().Ctx, tensor.Float32, 1, 1, 64)
	want := forward(ctx(), x)
	hidden := forward(ctx().WithStage(parts[:1]), x)
	got := forward(ctx().WithStage(parts[1:], hidden), x)
	bits := func(x *tensor.Tensor) []float32 { return tensor.ToSlice[float32](ctx().Ctx, x) }
	require.Equal(t, bits(want), bits(got))
	require.NotEqual(t, bits(want), bits(drops[2].Forward(ctx(), hidden)))
}

// A part that runs something else than its modules would shift what later stages draw.
func TestPartsRunTheirModulesOnce(t *testing.T) {
	d := &nn.Dropout{P: 0.5}
	c := nn.NewCtx(tensor.NewCtx(tensor.CPU()).WithRandom(1, 0), nil, true)
	x := tensor.Full(c.Ctx, tensor.Float32, 1, 1, 4)
	for _, p := range []nn.Part{{}, {d}, {d, d, d}} {
		err := tensor.Try(func() {
			nn.RunPart1(c, p, func(x *tensor.Tensor) *tensor.Tensor { return d.Forward(c, d.Forward(c, x)) }, x)
		})
		require.ErrorContains(t, err, "ran 2 modules and random ops: want each of its modules once, and no other")
	}
}
