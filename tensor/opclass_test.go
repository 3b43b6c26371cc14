// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

func TestOpDTypes(t *testing.T) {
	require.Equal(t, "products, attention, convolutions bfloat16; norms, softmax, losses, sums float32",
		tensor.OpDTypes(tensor.BFloat16))
}

// oneOfEach runs an op of each class, forward and backward.
func oneOfEach(c *tensor.Ctx) {
	x := tensor.Full(c, tensor.Float32, 0.5, 4, 8)
	w := tensor.Full(c, tensor.Float32, 0.5, 8, 8).SetRequiresGrad(true)
	scale := tensor.Ones(c, tensor.Float32, 8).SetRequiresGrad(true)
	h := tensor.LayerNorm(c, tensor.Linear(c, x, w, nil), scale, nil, 1e-5)
	q := tensor.Reshape(c, h, 1, 1, 4, 8)
	seen, _ := tensor.Attention(c, q, q, q, tensor.AttentionOptions{})
	h = tensor.Reshape(c, seen, 4, 8)
	image := tensor.Reshape(c, h, 1, 2, 4, 4)
	h = tensor.Reshape(c, tensor.Conv2D(c, image, tensor.Ones(c, tensor.Float32, 2, 2, 1, 1), nil,
		tensor.Conv2DOptions{}), 4, 8)
	labels := tensor.Zeros(c, tensor.Int32, 4)
	loss := tensor.Add(c, tensor.Sum(c, tensor.CrossEntropy(c, h, labels, -1), nil, false),
		tensor.Sum(c, tensor.Softmax(c, h, -1), nil, false))
	backward(c, tensor.Add(c, loss, tensor.LinearCrossEntropy(c, h, w, nil, labels, -1)))
}

// TestCountDTypes: what a step computes in is what Autocast means for it; that of another context is not, and is found.
func TestCountDTypes(t *testing.T) {
	for _, lower := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
		var n tensor.DTypeCounts
		oneOfEach(newCtx(t).Autocast(lower).CountDTypes(&n))
		for k := tensor.Products; k <= tensor.Sums; k++ {
			require.Positive(t, n.Count(k, k.DType(lower)), k)
		}
		require.NoError(t, n.Check(lower))
		require.Error(t, n.Check(tensor.Float16+tensor.BFloat16-lower), "the other half type")
	}
	var n tensor.DTypeCounts
	c := newCtx(t).CountDTypes(&n)
	oneOfEach(c.Sub("h.0"))
	require.EqualError(t, n.Check(tensor.BFloat16),
		"tensor: products ran in float32 in h.0: want bfloat16 under Autocast(bfloat16)")

	n = tensor.DTypeCounts{}
	c = c.Autocast(tensor.BFloat16)
	c = c.CountDTypes(&n)
	oneOfEach(c.Autocast(tensor.Float32)) // a part that asks for it
	require.Zero(t, n)
	tensor.MatMul(c, tensor.Ones(c, tensor.Float64, 2, 2), tensor.Ones(c, tensor.Float64, 2, 2))
	require.NoError(t, n.Check(tensor.BFloat16), "float64 is left alone")
}

// TestAutocastToFloat32: a part of an autocasting computation has float32's bits, whatever comes into it.
func TestAutocastToFloat32(t *testing.T) {
	root := newCtx(t)
	x, w := tensor.Normal(root, tensor.Float32, 1, 0, 1, 5, 7), tensor.Normal(root, tensor.Float32, 2, 0, 1, 3, 7)
	c := root.Autocast(tensor.BFloat16).Autocast(tensor.Float32)
	require.Equal(t, values(root, tensor.Cast(root, tensor.Linear(root, x, w, nil), tensor.Float64)),
		values(root, tensor.Cast(root, tensor.Linear(c, x, w, nil), tensor.Float64)))
	half := tensor.Cast(root, x, tensor.BFloat16)
	y := tensor.Linear(c, half, w, nil)
	require.Equal(t, tensor.Float32, y.DType())
	require.Equal(t, tensor.ReadBytes(root, tensor.Linear(root, tensor.Cast(root, half, tensor.Float32), w, nil)),
		tensor.ReadBytes(root, y))
}
