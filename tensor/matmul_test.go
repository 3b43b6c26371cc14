// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// TestProductsAreAddedWhereTheGradientEnds compares the gradients that backward adds up in a leaf, which products write
// to at once where they can, with those that it returns. All values are whole numbers, so that the order of additions
// does not show.
func TestProductsAreAddedWhereTheGradientEnds(t *testing.T) {
	fixed := func(c *tensor.Ctx, shape ...int) *tensor.Tensor {
		return tensor.Reshape(c, tensor.Arange(c, tensor.Float32, -3, 1,
			tensor.Zeros(c, tensor.Float32, shape...).Numel()), shape...)
	}
	for name, f := range map[string]func(c *tensor.Ctx, w *tensor.Tensor) *tensor.Tensor{
		"AddMM": func(c *tensor.Ctx, w *tensor.Tensor) *tensor.Tensor {
			return tensor.AddMM(c, nil, fixed(c, 2, 3, 4), w)
		},
		"Linear": func(c *tensor.Ctx, w *tensor.Tensor) *tensor.Tensor {
			return tensor.Linear(c, fixed(c, 2, 3, 4), w, nil)
		},
		"left":  func(c *tensor.Ctx, w *tensor.Tensor) *tensor.Tensor { return tensor.MatMul(c, w, fixed(c, 4, 2)) },
		"right": func(c *tensor.Ctx, w *tensor.Tensor) *tensor.Tensor { return tensor.MatMul(c, fixed(c, 2, 4), w) },
		"batched": func(c *tensor.Ctx, w *tensor.Tensor) *tensor.Tensor {
			return tensor.MatMul(c, w, fixed(c, 3, 4, 2))
		},
		"viewed": func(c *tensor.Ctx, w *tensor.Tensor) *tensor.Tensor {
			return tensor.MatMul(c, fixed(c, 2, 4), tensor.Transpose(c, w, 0, 1))
		},
		"squared": func(c *tensor.Ctx, w *tensor.Tensor) *tensor.Tensor { return tensor.MatMul(c, w, w) },
		"twice": func(c *tensor.Ctx, w *tensor.Tensor) *tensor.Tensor {
			return tensor.Linear(c, tensor.AddMM(c, nil, fixed(c, 2, 4), w), w, nil)
		},
		"product first": func(c *tensor.Ctx, w *tensor.Tensor) *tensor.Tensor {
			return tensor.Add(c, tensor.AddMM(c, nil, fixed(c, 4, 4), w), tensor.Mul(c, w, w))
		},
		"product last": func(c *tensor.Ctx, w *tensor.Tensor) *tensor.Tensor {
			square := tensor.Mul(c, w, w)
			return tensor.Add(c, tensor.AddMM(c, nil, fixed(c, 4, 4), w), square)
		},
		"product between": func(c *tensor.Ctx, w *tensor.Tensor) *tensor.Tensor {
			sum := tensor.Add(c, tensor.Mul(c, w, w), w)
			sum = tensor.Add(c, sum, tensor.MatMul(c, w, fixed(c, 4, 4)))
			return tensor.Add(c, sum, tensor.Transpose(c, w, 0, 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCtx(t)
			w := fixed(c, 4, 4)
			w.SetRequiresGrad(true)
			expect := func(times float64) {
				want := tensor.Backward(c, []*tensor.Tensor{total(c, f(c, w))}, nil, []*tensor.Tensor{w})[0]
				require.Equal(t, tensor.ToSlice[float32](c, tensor.Affine(c, want, times, 0)),
					tensor.ToSlice[float32](c, w.Grad()))
			}
			run := func() {
				c.Scope(func(c *tensor.Ctx) []*tensor.Tensor { backward(c, total(c, f(c, w))); return nil })
			}
			var complete int
			w.OnGrad(func(*tensor.Ctx, *tensor.Tensor) { complete++ })
			run()
			expect(1)
			made, given := w.Grad(), tensor.Full(c, tensor.Float32, 3, 4, 4)
			run()
			expect(2)
			require.Same(t, made, w.Grad())
			w.SwapGrad(given, false)
			run()
			expect(1)
			require.Same(t, given, w.Grad())
			require.Equal(t, 3, complete)
		})
	}
}

// TestUnfinishedBackwardLeavesGradientsAlone: what had reached a leaf when backward failed is not part of its gradient.
func TestUnfinishedBackwardLeavesGradientsAlone(t *testing.T) {
	c := newCtx(t)
	w := tensor.Full(c, tensor.Float64, 2, 2, 2).SetRequiresGrad(true)
	fail := true
	broken := func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return tensor.Custom(c, tensor.CustomOp{
			Name: "broken",
			Forward: func(c *tensor.Ctx, in []*tensor.Tensor) (out, saved []*tensor.Tensor) {
				return []*tensor.Tensor{tensor.Affine(c, in[0], 1, 0)}, nil
			},
			Backward: func(c *tensor.Ctx, _, grads []*tensor.Tensor, _ []bool) []*tensor.Tensor {
				if fail {
					tensor.Reshape(c, grads[0], 3)
				}
				return grads
			},
		}, x)[0]
	}
	run := func() {
		old := broken(c, w)
		backward(c, total(c, tensor.Add(c, tensor.MatMul(c, w, w), old)))
	}
	misuse(t, run)
	require.Nil(t, w.Grad())
	fail = false
	run()
	want := gradOf(c, w)
	fail = true
	misuse(t, run)
	require.Equal(t, want, gradOf(c, w))
}

// TestProductsMakeNoSecondGradient: a weight's gradient takes the memory of the leaf's buffer and no more.
func TestProductsMakeNoSecondGradient(t *testing.T) {
	const n = 256
	c := newCtx(t)
	x := tensor.Full(c, tensor.Float32, 1, 1, n)
	v, w := tensor.Full(c, tensor.Float32, 1, n, n).SetRequiresGrad(true),
		tensor.Full(c, tensor.Float32, 1, n, n).SetRequiresGrad(true)
	before := inUse(c)
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		backward(c, total(c, tensor.Linear(c, tensor.AddMM(c, nil, x, v), w, nil)))
		return nil
	})
	matrix := int64(4 * n * n)
	require.Less(t, c.Device().MemStats().Peak, before+2*matrix+matrix/2)
}

// TestActivatedHasTheBitsOfSteps compares a linear layer with its activation to the two ops, forward and backward, with
// a graph and without.
func TestActivatedHasTheBitsOfSteps(t *testing.T) {
	type function = func(*tensor.Ctx, *tensor.Tensor) *tensor.Tensor
	for f, apply := range map[tensor.Activation]function{
		tensor.ActivationNone: func(_ *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return x },
		tensor.ActivationReLU: tensor.ReLU, tensor.ActivationGELU: tensor.GELU,
		tensor.ActivationGELUTanh: tensor.GELUTanh, tensor.ActivationSiLU: tensor.SiLU,
	} {
		for _, rows := range []int{1, 5, 130} {
			c := newCtx(t)
			leaf := func(key uint64, shape ...int) *tensor.Tensor {
				return tensor.Normal(c.NoGrad(), tensor.Float32, key, 0, 1, shape...).SetRequiresGrad(true)
			}
			x, w, bias := leaf(1, rows, 300), leaf(2, 300, 90), leaf(3, 90)
			wrt := []*tensor.Tensor{x, w, bias}
			bits := func(layer func(c *tensor.Ctx) *tensor.Tensor) []byte {
				y := layer(c)
				seed := tensor.Normal(c, tensor.Float32, 4, 0, 1, y.Shape()...)
				out := tensor.ReadBytes(c, y)
				require.Equal(t, out, tensor.ReadBytes(c, layer(c.NoGrad())))
				for _, g := range tensor.Backward(c, []*tensor.Tensor{y}, []*tensor.Tensor{seed}, wrt) {
					out = append(out, tensor.ReadBytes(c, g)...)
				}
				return out
			}
			want := bits(func(c *tensor.Ctx) *tensor.Tensor { return apply(c, tensor.AddMM(c, bias, x, w)) })
			require.Equal(t, want, bits(func(c *tensor.Ctx) *tensor.Tensor {
				return tensor.AddMMActivated(c, bias, x, w, f)
			}))
			require.Equal(t, want, bits(func(c *tensor.Ctx) *tensor.Tensor {
				return tensor.LinearActivated(c, x, tensor.Transpose(c, w, 0, 1), bias, f)
			}))
		}
	}
}

// What a layer norm or an activation made and a linear layer reads is not kept between the
// passes but computed once more, with the same bits.
func TestInputsOfLinearAreComputedAgain(t *testing.T) {
	const n, width = 64, 32
	cheap := map[string]func(c *tensor.Ctx, x, w *tensor.Tensor) *tensor.Tensor{
		"LayerNorm": func(c *tensor.Ctx, x, _ *tensor.Tensor) *tensor.Tensor {
			return tensor.LayerNorm(c, x, nil, nil, 1e-5)
		},
		"RMSNorm": func(c *tensor.Ctx, x, _ *tensor.Tensor) *tensor.Tensor { return tensor.RMSNorm(c, x, nil, 1e-5) },
		"GELU":    func(c *tensor.Ctx, x, _ *tensor.Tensor) *tensor.Tensor { return tensor.GELU(c, x) },
		"LinearActivated": func(c *tensor.Ctx, x, w *tensor.Tensor) *tensor.Tensor {
			return tensor.LinearActivated(c, x, w, nil, tensor.ActivationGELUTanh)
		},
	}
	for name, op := range cheap {
		for _, linear := range []func(c *tensor.Ctx, h, w *tensor.Tensor) *tensor.Tensor{
			func(c *tensor.Ctx, h, w *tensor.Tensor) *tensor.Tensor { return tensor.Linear(c, h, w, nil) },
			func(c *tensor.Ctx, h, w *tensor.Tensor) *tensor.Tensor { return tensor.AddMM(c, nil, h, w) },
		} {
			run := func(between func(c *tensor.Ctx, h *tensor.Tensor) *tensor.Tensor) (grads [2][]float32, kept int64) {
				root := newCtx(t)
				x := tensor.Normal(root.NoGrad(), tensor.Float32, 1, 0, 1, n, width).SetRequiresGrad(true)
				w := tensor.Normal(root.NoGrad(), tensor.Float32, 2, 0, 1, width, width).SetRequiresGrad(true)
				root.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
					before := inUse(c)
					y := c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
						return []*tensor.Tensor{linear(c, between(c, op(c, x, w)), w)}
					})
					kept = inUse(c) - before
					backward(c, total(c, tensor.Mul(c, y[0], y[0])))
					return nil
				})
				return [2][]float32{tensor.ToSlice[float32](root, x.Grad()), tensor.ToSlice[float32](root, w.Grad())},
					kept
			}
			again, less := run(func(_ *tensor.Ctx, h *tensor.Tensor) *tensor.Tensor { return h })
			saved, more := run(func(c *tensor.Ctx, h *tensor.Tensor) *tensor.Tensor {
				return tensor.Affine(c, h, 1, 0)
			})
			require.Equal(t, saved, again, name)
			require.Equal(t, int64(4*n*width), more-less, name)

			changed, _ := run(func(c *tensor.Ctx, h *tensor.Tensor) *tensor.Tensor {
				tensor.ScaleInto(c.NoGrad(), h, 2) // from here on it is not what the op made
				return h
			})
			require.NotEqual(t, saved[1], changed[1], name)
		}
	}
}

// What several layers read is computed again for the first of them alone.
func TestInputsOfSeveralLinearsAreComputedAgainOnce(t *testing.T) {
	const n, width = 64, 32
	root := newCtx(t)
	x := tensor.Normal(root.NoGrad(), tensor.Float32, 1, 0, 1, n, width).SetRequiresGrad(true)
	weights := make([]*tensor.Tensor, 3)
	for i := range weights {
		weights[i] = tensor.Normal(root.NoGrad(), tensor.Float32, 2, 0, 1, width, width).SetRequiresGrad(true)
	}
	var norms int
	before := inUse(root)
	root.Trace(context.Background(), func(k tensor.KernelSpan) {
		if k.Name == "rms_norm" {
			norms++
		}
	})
	root.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		h := tensor.RMSNorm(c, x, nil, 1e-5)
		sum := tensor.Linear(c, h, weights[0], nil)
		for _, w := range weights[1:] {
			sum = tensor.Mul(c, sum, tensor.Linear(c, h, w, nil))
		}
		backward(c, total(c, sum))
		return nil
	})
	require.Equal(t, 2, norms)
	require.EqualValues(t, before+4*(n*width+3*width*width), inUse(root)) // gradients alone are left
}

// Gradients that linear layers pass through an activation themselves are added to those that reach its result.
func TestActivationWithSeveralReaders(t *testing.T) {
	const n, width = 16, 8
	run := func(between func(c *tensor.Ctx, h *tensor.Tensor) *tensor.Tensor,
		opts ...tensor.BackwardOption) (grads [][]float32) {
		c := newCtx(t)
		var leaves []*tensor.Tensor
		for key := range uint64(4) {
			shape := []int{width, width}
			if key == 0 {
				shape[0] = n
			}
			leaves = append(leaves, tensor.Normal(c.NoGrad(), tensor.Float32, key, 0, 1,
				shape...).SetRequiresGrad(true))
		}
		y := tensor.LinearActivated(c, leaves[0], leaves[1], nil, tensor.ActivationGELUTanh)
		a, b := tensor.Linear(c, between(c, y), leaves[2], nil), tensor.Linear(c, between(c, y), leaves[3], nil)
		backward(c, total(c, tensor.Mul(c, tensor.Mul(c, a, b), y)), opts...)
		for _, x := range leaves {
			grads = append(grads, tensor.ToSlice[float32](c, x.Grad()))
		}
		return grads
	}
	want := run(func(c *tensor.Ctx, h *tensor.Tensor) *tensor.Tensor { return tensor.Affine(c, h, 1, 0) })
	for _, opts := range [][]tensor.BackwardOption{nil, {tensor.RetainGraph()}} {
		got := run(func(_ *tensor.Ctx, h *tensor.Tensor) *tensor.Tensor { return h }, opts...)
		for i := range want {
			require.InDeltaSlice(t, want[i], got[i], 1e-3)
		}
		require.Equal(t, want[2:], got[2:], "what is computed again has the same bits")
	}
}

// What is computed again is checked as if it had been saved.
func TestComputedAgainFromWhatChanged(t *testing.T) {
	c := newCtx(t)
	x, w := leaf(c, 1, 2), tensor.FromSlice(c, []float64{3, 4}, 1, 2).SetRequiresGrad(true)
	z := tensor.Affine(c, x, 1, 0)
	y := tensor.Linear(c, tensor.GELU(c, z), w, nil)
	tensor.ScaleInto(c.NoGrad(), z, 2)
	e := misuse(t, func() { backward(c, y) })
	require.Contains(t, e.Msg, "a tensor that GELU saved for its gradient was changed in place since")
}
