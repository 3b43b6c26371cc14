// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

type twoLinears struct {
	First  *nn.Linear `nn:"first"`
	Second *nn.Linear `nn:"second"`
	seen   []tensor.DType
}

func (m *twoLinears) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, m, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		h := m.First.Forward(c, x)
		y := m.Second.Forward(c, h)
		m.seen = []tensor.DType{h.DType(), y.DType()}
		return y
	}, x)
}

// A module may compute in its own precision.
func TestModuleInItsOwnPrecision(t *testing.T) {
	in := nn.NewInit(tensor.CPU(), 1)
	m := &twoLinears{First: nn.NewLinear(in.Sub("first"), nn.LinearConfig{In: 4, Out: 4}),
		Second: nn.NewLinear(in.Sub("second"), nn.LinearConfig{In: 4, Out: 2})}
	const half, full = tensor.BFloat16, tensor.Float32
	for _, k := range []struct {
		lower tensor.DType
		set   func(c *nn.Ctx) *nn.Ctx
		want  []tensor.DType
	}{
		{half, func(c *nn.Ctx) *nn.Ctx { return c }, []tensor.DType{half, half}},
		{half, func(c *nn.Ctx) *nn.Ctx { return c.WithPrecision("second", full) }, []tensor.DType{half, full}},
		{half, func(c *nn.Ctx) *nn.Ctx {
			return c.WithPrecision("first", tensor.Float16).WithPrecision("second", full)
		},
			[]tensor.DType{tensor.Float16, full}},
		{tensor.Invalid, func(c *nn.Ctx) *nn.Ctx {
			return c.WithPrecision("first", half).WithPrecision("second", full)
		}, []tensor.DType{half, full}},
		{half, func(c *nn.Ctx) *nn.Ctx { return c.WithPrecision("", full).WithPrecision("second", half) },
			[]tensor.DType{full, half}},
	} {
		c := k.set(nn.NewCtx(tensor.NewCtx(tensor.CPU()).Autocast(k.lower), nil, true))
		m.Forward(c, tensor.Full(c.Ctx, full, 0.1, 3, 4))
		require.Equal(t, k.want, m.seen)
	}
}
