// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// convolve returns a convolution of some samples, and the gradients of its inputs for a seed of them.
func convolve(c *tensor.Ctx, x, w, bias, seed *tensor.Tensor, first, n int, opt tensor.Conv2DOptions) [][]float32 {
	part := tensor.Contiguous(c, tensor.Slice(c.NoGrad(), x, 0, first, first+n)).SetRequiresGrad(true)
	y := tensor.Conv2D(c, part, w, bias, opt)
	grads := tensor.Backward(c, []*tensor.Tensor{y},
		[]*tensor.Tensor{tensor.Slice(c.NoGrad(), seed, 0, first, first+n)}, []*tensor.Tensor{part, w, bias})
	out := [][]float32{tensor.ToSlice[float32](c, y)}
	for _, g := range grads {
		out = append(out, tensor.ToSlice[float32](c, g))
	}
	return out
}

// A convolution works on pieces, some rows of some samples. Sample by sample, where a piece is all there is, results
// and gradients of images have the same bits.
func TestConv2DPieces(t *testing.T) {
	pair := func(n int) [2]int { return [2]int{n, n} }
	for _, k := range []struct {
		kernel int
		opt    tensor.Conv2DOptions
	}{
		{3, tensor.Conv2DOptions{Padding: pair(1)}},
		{3, tensor.Conv2DOptions{Padding: pair(3), Dilation: pair(2), Groups: 2}},
		{3, tensor.Conv2DOptions{Padding: pair(1), Stride: pair(2)}},
		{5, tensor.Conv2DOptions{Padding: [2]int{0, 4}, Stride: [2]int{1, 2}}},
		{1, tensor.Conv2DOptions{}},
		{1, tensor.Conv2DOptions{Stride: pair(2)}},
	} {
		if testing.Short() && k.opt.Groups == 0 && k.kernel != 5 {
			continue
		}
		t.Run(fmt.Sprintf("%d %+v", k.kernel, k.opt), func(t *testing.T) {
			const samples, channels, out = 35, 32, 18 // a block of 32 samples and one of 3
			size := 36
			if testing.Short() {
				size = 12
			}
			c := tensor.NewCtx(tensor.CPU())
			x := tensor.Normal(c, tensor.Float32, 1, 0, 1, samples, channels, size, size)
			w := tensor.Normal(c, tensor.Float32, 2, 0, 1, out, channels/max(k.opt.Groups, 1), k.kernel,
				k.kernel).SetRequiresGrad(true)
			bias := tensor.Normal(c, tensor.Float32, 3, 0, 1, out).SetRequiresGrad(true)
			seed := tensor.Normal(c, tensor.Float32, 4, 0, 1, tensor.Conv2D(c.NoGrad(), x, w, bias, k.opt).Shape()...)
			all := convolve(c, x, w, bias, seed, 0, samples, k.opt)
			dw, db := make([]float64, len(all[2])), make([]float64, len(all[3]))
			for i := range samples {
				one := convolve(c, x, w, bias, seed, i, 1, k.opt)
				for kind, name := range []string{"result", "gradient of the images"} {
					n := len(one[kind])
					require.Equal(t, one[kind], all[kind][i*n:(i+1)*n], "%s, sample %d", name, i)
				}
				for j, v := range one[2] {
					dw[j] += float64(v)
				}
				for j, v := range one[3] {
					db[j] += float64(v)
				}
			}
			for j, v := range dw {
				require.InDelta(t, v, all[2][j], 5e-3)
			}
			for j, v := range db {
				require.InDelta(t, v, all[3][j], 5e-3)
			}
		})
	}
}
