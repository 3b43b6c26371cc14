// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// bitsOf runs f, which returns a loss, forward and backward under Autocast, and returns the bits of the loss and of the
// leaves' gradients, and how often which kernel ran.
func bitsOf(dt tensor.DType, leaves []*tensor.Tensor, f func(c *tensor.Ctx) *tensor.Tensor) (bits []string,
	ran map[string]int) {
	ran = map[string]int{}
	root := tensor.NewCtx(tensor.CPU()).Autocast(dt)
	root.Trace(context.Background(), func(s tensor.KernelSpan) { ran[s.Name]++ })
	root.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		loss := f(c)
		tensor.Backward(c, []*tensor.Tensor{loss}, nil, nil)
		bits = append(bits, string(tensor.ReadBytes(c, loss)))
		for _, l := range leaves {
			bits = append(bits, string(tensor.ReadBytes(c, l.Grad())))
			l.ZeroGrad()
		}
		return nil
	})
	return bits, ran
}

// A norm that is rounded where it is made has the results and gradients of one that each of its users rounds, however
// many these are, and through views: gradients of several users are added in float32.
func TestLoweredNormsHaveTheSameBits(t *testing.T) {
	n := tensor.NewCtx(tensor.CPU()).NoGrad()
	leaf := func(seed uint64, shape ...int) *tensor.Tensor {
		return tensor.Normal(n, tensor.Float32, seed, 0, 1, shape...).SetRequiresGrad(true)
	}
	x, scale, shift := leaf(1, 3, 5, 8), leaf(2, 8), leaf(3, 8)
	a, b := leaf(4, 6, 8), leaf(5, 6, 8)
	leaves := []*tensor.Tensor{x, scale, shift, a, b}
	norms := []func(c *tensor.Ctx, low bool) *tensor.Tensor{
		func(c *tensor.Ctx, low bool) *tensor.Tensor {
			if low {
				return tensor.LayerNormLowered(c, x, scale, shift, 1e-5)
			}
			return tensor.LayerNorm(c, x, scale, shift, 1e-5)
		},
		func(c *tensor.Ctx, low bool) *tensor.Tensor {
			if low {
				return tensor.RMSNormLowered(c, x, scale, 1e-5)
			}
			return tensor.RMSNorm(c, x, scale, 1e-5)
		},
	}
	users := map[string]func(c *tensor.Ctx, y *tensor.Tensor) *tensor.Tensor{
		"one": func(c *tensor.Ctx, y *tensor.Tensor) *tensor.Tensor { return tensor.Linear(c, y, a, nil) },
		"three": func(c *tensor.Ctx, y *tensor.Tensor) *tensor.Tensor {
			z := tensor.Add(c, tensor.Linear(c, y, a, nil), tensor.Linear(c, y, b, nil))
			return tensor.Add(c, z, tensor.Linear(c, y, tensor.Affine(c, a, 3, 0), nil))
		},
		"views": func(c *tensor.Ctx, y *tensor.Tensor) *tensor.Tensor {
			rows := tensor.Reshape(c, y, 15, 8)
			parts := tensor.Split(c, rows, 0, 7, 8)
			z := tensor.Concat(c, 0, tensor.Linear(c, parts[0], a, nil), tensor.Linear(c, parts[1], b, nil))
			z = tensor.Add(c, z, tensor.Linear(c, tensor.Slice(c, rows, 0, 0, 15), b, nil))
			turned := tensor.Transpose(c, rows, 0, 1)
			return tensor.Add(c, z, tensor.Transpose(c, tensor.MatMul(c, b, turned), 0, 1))
		},
	}
	for _, dt := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
		for i, norm := range norms {
			leaves := leaves
			if i == 1 {
				leaves = []*tensor.Tensor{x, scale, a, b}
			}
			for name, use := range users {
				if name == "one" {
					leaves = leaves[:len(leaves)-1]
				}
				loss := func(low bool) func(c *tensor.Ctx) *tensor.Tensor {
					return func(c *tensor.Ctx) *tensor.Tensor {
						z := use(c, norm(c, low))
						return tensor.Sum(c, tensor.Mul(c, z, z), nil, false)
					}
				}
				want, copies := bitsOf(dt, leaves, loss(false))
				got, fewer := bitsOf(dt, leaves, loss(true))
				require.Equal(t, want, got, "%s, norm %d, %s", dt, i, name)
				require.Less(t, fewer["copy"], copies["copy"], "%s, norm %d, %s", dt, i, name)
				for _, l := range []*tensor.Tensor{shift, b} {
					l.ZeroGrad()
				}
			}
		}
	}
}

// Under Autocast the sum of a float32 and a half tensor is formed by one kernel, with the bits of a conversion and an
// addition. The gradients have the operands' dtypes.
func TestMixedAdditionsAreOneKernel(t *testing.T) {
	n := tensor.NewCtx(tensor.CPU()).NoGrad()
	for _, dt := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
		for _, shapes := range [][2][]int{{{4, 6}, {4, 6}}, {{4, 6}, {6}}, {{4, 1}, {4, 6}}, {{3, 4, 6}, {4, 1}}} {
			for _, swap := range []bool{false, true} {
				x := tensor.Normal(n, tensor.Float32, 1, 0, 1, shapes[0]...).SetRequiresGrad(true)
				y := tensor.Normal(n, tensor.Float32, 2, 0, 1, shapes[1]...).SetRequiresGrad(true)
				loss := func(cast bool) func(c *tensor.Ctx) *tensor.Tensor {
					return func(c *tensor.Ctx) *tensor.Tensor {
						half := tensor.Cast(c, y, dt)
						if cast {
							half = tensor.Cast(c, half, tensor.Float32)
						}
						a, b := x, half
						if swap {
							a, b = b, a
						}
						z := tensor.Add(c, a, b)
						require.Equal(t, tensor.Float32, z.DType())
						return tensor.Sum(c, tensor.Mul(c, z, z), nil, false)
					}
				}
				leaves := []*tensor.Tensor{x, y}
				want, more := bitsOf(dt, leaves, loss(true))
				got, fewer := bitsOf(dt, leaves, loss(false))
				name := fmt.Sprint(dt, shapes, swap)
				require.Equal(t, want, got, name)
				require.Less(t, fewer["copy"], more["copy"], name)
				require.Equal(t, more["add"], fewer["add"], name)
			}
		}
	}
	err := tensor.Try(func() {
		tensor.Add(n, tensor.Ones(n, tensor.Float32, 2), tensor.Ones(n, tensor.BFloat16, 2))
	})
	require.ErrorContains(t, err, "operands must have one dtype", "without Autocast")
}

// A batch norm of half numbers has float32 statistics and parameters: its result and gradients are those of a float32
// one, each rounded once to the dtype of what it belongs to.
func TestBatchNormsOfHalfNumbers(t *testing.T) {
	n := tensor.NewCtx(tensor.CPU()).NoGrad()
	for _, dt := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
		weight := tensor.Normal(n, tensor.Float32, 2, 1, 1, 3).SetRequiresGrad(true)
		bias := tensor.Normal(n, tensor.Float32, 3, 0, 1, 3).SetRequiresGrad(true)
		half := tensor.Cast(n, tensor.Normal(n, tensor.Float32, 1, 0, 1, 4, 3, 5, 2), dt)
		dy := tensor.Cast(n, tensor.Normal(n, tensor.Float32, 4, 0, 1, 4, 3, 5, 2), dt)
		run := func(c *tensor.Ctx, x, dy *tensor.Tensor, to tensor.DType) (bits []string) {
			x = tensor.Detach(x).SetRequiresGrad(true)
			y, mean, variance := tensor.BatchNorm(c, x, weight, bias, 1e-5)
			with := tensor.BatchNormWith(c, x, mean, variance, weight, bias, 1e-5)
			require.Equal(t, x.DType(), y.DType())
			require.Equal(t, tensor.Float32, mean.DType())
			all := []*tensor.Tensor{y, with}
			for _, root := range []*tensor.Tensor{y, with} {
				all = append(all, tensor.Backward(c, []*tensor.Tensor{root}, []*tensor.Tensor{dy},
					[]*tensor.Tensor{x, weight, bias})...)
			}
			for _, r := range all {
				if len(r.Shape()) > 1 {
					r = tensor.Cast(n, r, to)
				}
				bits = append(bits, string(tensor.ReadBytes(n, r)))
			}
			return append(bits, string(tensor.ReadBytes(n, mean)), string(tensor.ReadBytes(n, variance)))
		}
		root := tensor.NewCtx(tensor.CPU())
		want := run(root, tensor.Cast(n, half, tensor.Float32), tensor.Cast(n, dy, tensor.Float32), dt)
		for _, c := range []*tensor.Ctx{root, root.Autocast(dt)} {
			require.Equal(t, want, run(c, half, dy, dt))
		}
		y, _, _ := tensor.BatchNorm(root.Autocast(tensor.Float32), half, weight, bias, 1e-5)
		require.Equal(t, tensor.Float32, y.DType(), "what asks for float32 gets it")
	}
	err := tensor.Try(func() {
		tensor.BatchNorm(n, tensor.Ones(n, tensor.Float64, 2, 3), tensor.Ones(n, tensor.Float32, 3),
			tensor.Ones(n, tensor.Float32, 3), 1e-5)
	})
	require.ErrorContains(t, err, "operands must have one dtype")
}

// The gradient of a norm is added to that of the residual beside it by the norm's own kernel, with the bits of an
// addition. A caller who needs to see the gradient of the residual stream gets it.
func TestGradientsOfNormsAreAddedByTheirKernels(t *testing.T) {
	n := tensor.NewCtx(tensor.CPU()).NoGrad()
	leaf := func(seed uint64, shape ...int) *tensor.Tensor {
		return tensor.Normal(n, tensor.Float32, seed, 0, 1, shape...).SetRequiresGrad(true)
	}
	x, scale, w := leaf(1, 5, 8), leaf(2, 8), leaf(3, 8, 8)
	norms := []func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor{
		func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.LayerNorm(c, x, scale, nil, 1e-5) },
		func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
			return tensor.LayerNormLowered(c, x, scale, nil, 1e-5)
		},
		func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.RMSNorm(c, x, scale, 1e-5) },
		func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.RMSNormLowered(c, x, scale, 1e-5) },
	}
	for _, dt := range []tensor.DType{tensor.Invalid, tensor.BFloat16, tensor.Float16} {
		for i, norm := range norms {
			grads := func(named bool) (bits []string, adds int) {
				root := tensor.NewCtx(tensor.CPU()).Autocast(dt)
				root.Trace(context.Background(), func(s tensor.KernelSpan) {
					if s.Name == "add" {
						adds++
					}
				})
				root.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
					var stream []*tensor.Tensor
					h := tensor.Affine(c, x, 2, 0)
					for range 3 {
						stream = append(stream, h)
						h = tensor.Add(c, h, tensor.Linear(c, norm(c, h), w, nil))
					}
					wrt := []*tensor.Tensor{x, scale, w}
					if named {
						wrt = append(wrt, stream...)
					}
					loss := tensor.Sum(c, tensor.Mul(c, h, h), nil, false)
					for _, g := range tensor.Backward(c, []*tensor.Tensor{loss}, nil, wrt)[:3] {
						bits = append(bits, string(tensor.ReadBytes(c, g)))
					}
					return nil
				})
				return bits, adds
			}
			want, more := grads(true)
			got, fewer := grads(false)
			require.Equal(t, want, got, "%s, norm %d", dt, i)
			require.Equal(t, 6, more-fewer, "%s, norm %d: each was formed twice", dt, i)
		}
	}
}
