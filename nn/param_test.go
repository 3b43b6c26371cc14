// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// A context may compute with casts of the parameters: outputs are of the lower dtype, gradients arrive at the float32
// parameters, and recomputation keeps all bits.
func TestParamCasts(t *testing.T) {
	run := func(recompute bool) (grads map[string][]byte, paths map[string]int) {
		s, root := newStack(tensor.CPU(), 2), tensor.NewCtx(tensor.CPU())
		paths = map[string]int{}
		c := nn.NewCtx(root.WithRandom(5, 40), nn.Walk(s), true)
		named := map[string]*tensor.Tensor{}
		for _, p := range nn.NamedParameters(s) {
			named[p.Name] = p.Tensor
		}
		c = c.WithParam(func(c *nn.Ctx, name string, v *tensor.Tensor) *tensor.Tensor {
			require.Same(t, named[name], v)
			require.True(t, strings.HasPrefix(name, c.Path()+"."), "%s asks for %s", c.Path(), name)
			paths[c.Path()]++
			return tensor.Cast(c.Ctx, v, tensor.BFloat16)
		})
		if recompute {
			c = c.WithRecompute(s.units())
		}
		c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
			y := s.Forward(c, tensor.Cast(c.Ctx, samples(root, 6), tensor.BFloat16))
			require.Equal(t, tensor.BFloat16, y.DType())
			tensor.Backward(c.Ctx, []*tensor.Tensor{tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, y, y), nil, false)}, nil, nil)
			return nil
		})
		for _, p := range nn.NamedParameters(s) {
			require.Equal(t, tensor.Float32, p.Grad().DType())
		}
		return gradients(root, s), paths
	}
	plain, asked := run(false)
	again, twice := run(true)
	require.Equal(t, plain, again)
	require.Equal(t, map[string]int{"h.0.up": 2, "h.0.down": 2, "h.1.up": 2, "h.1.down": 2}, asked, "weight and bias")
	require.Equal(t, map[string]int{"h.0.up": 4, "h.0.down": 4, "h.1.up": 4, "h.1.down": 4}, twice, "and once more")
}

// Functions run in the order in which contexts got them; contexts they were derived from stay as they were.
func TestParamFunctionsInOrder(t *testing.T) {
	c := env()
	affine := func(mul, add float64) nn.ParamFunc {
		return func(c *nn.Ctx, _ string, v *tensor.Tensor) *tensor.Tensor {
			return tensor.Affine(c.Ctx, v, mul, add)
		}
	}
	p := param(c, []float32{5}, 1)
	twice := c.WithParam(affine(2, 0))
	sum, product := twice.WithParam(affine(1, 1)), twice.WithParam(affine(3, 0))
	for want, c := range map[float32]*nn.Ctx{5: c, 10: twice, 11: sum, 30: product} {
		require.Equal(t, []float32{want}, tensor.ToSlice[float32](c.Ctx, c.Param(p)))
		require.Nil(t, c.Param(nil))
	}
}
