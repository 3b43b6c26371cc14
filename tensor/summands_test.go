// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// TestNormOfASumKeepsItsHalfPart: where a residual stream is normalised, its sum is formed again for the gradient, with
// the same bits and in less memory.
func TestNormOfASumKeepsItsHalfPart(t *testing.T) {
	const rows, width = 64, 32
	run := func(cast bool) (grads [][]float32, kept int64) {
		root := newCtx(t).Autocast(tensor.BFloat16)
		x := tensor.Normal(root.NoGrad(), tensor.Float32, 1, 0, 1, rows, width).SetRequiresGrad(true)
		w := tensor.Normal(root.NoGrad(), tensor.Float32, 2, 0, 1, width, width).SetRequiresGrad(true)
		scale := tensor.Ones(root.NoGrad(), tensor.Float32, width).SetRequiresGrad(true)
		before := inUse(root)
		root.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			y := c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				h := tensor.Affine(c, x, 2, 0)
				f := tensor.Linear(c, tensor.LayerNorm(c, h, scale, nil, 1e-5), w, nil)
				if cast { // then there is nothing to save
					f = tensor.Cast(c, f, tensor.Float32)
				}
				h = tensor.Add(c, h, f)
				return []*tensor.Tensor{tensor.Linear(c, tensor.LayerNorm(c, h, scale, nil, 1e-5), w, nil)}
			})
			kept = inUse(root) - before
			backward(c, total(c, y[0]))
			return nil
		})
		for _, l := range []*tensor.Tensor{x, w, scale} {
			grads = append(grads, tensor.ToSlice[float32](root.NoGrad(), l.Grad()))
		}
		return grads, kept
	}
	want, more := run(true)
	got, less := run(false)
	require.Equal(t, want, got)
	require.EqualValues(t, 2*rows*width, more-less)
}

// TestASumThatChangedIsNotFormedAgain: a summand that is gone, or a sum that was written to, is kept as it is.
func TestASumThatChangedIsNotFormedAgain(t *testing.T) {
	c := newCtx(t).Autocast(tensor.BFloat16)
	x := tensor.Normal(c.NoGrad(), tensor.Float32, 1, 0, 1, 4, 8).SetRequiresGrad(true)
	scale := tensor.Ones(c.NoGrad(), tensor.Float32, 8)
	grad := func(write bool) []float32 {
		x.ZeroGrad()
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			h := tensor.Affine(c, x, 2, 0)
			f := tensor.Cast(c, tensor.LayerNorm(c, h, scale, nil, 1e-5), tensor.BFloat16)
			z := tensor.Add(c, h, f)
			if write {
				tensor.FillInto(c.NoGrad(), tensor.Slice(c.NoGrad(), z, 0, 0, 1), 3)
			}
			backward(c, tensor.Sum(c, tensor.Mul(c, tensor.LayerNorm(c, z, scale, nil, 1e-5), z), nil, false))
			return nil
		})
		return tensor.ToSlice[float32](c.NoGrad(), x.Grad())
	}
	plain, written := grad(false), grad(true)
	require.NotEqual(t, plain[:8], written[:8])
	require.Equal(t, plain[8:], written[8:], "other rows")
}
