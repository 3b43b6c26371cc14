// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"fmt"
	"maps"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// TestPaddingIsNotRead: keys that a padding mask hides at the ends, or that lie outside the window of all queries, take
// part in nothing: what stands there may be anything, NaN too, and the gradient there is 0.
func TestPaddingIsNotRead(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	const keys, d = 40, 4
	for name, visible := range map[string]func(j int) bool{
		"right": func(j int) bool { return j < 23 },
		"left":  func(j int) bool { return j >= 17 },
		"both":  func(j int) bool { return j >= 5 && j < 9 },
	} {
		for _, windowed := range []bool{false, true} {
			opt := tensor.AttentionOptions{}
			mask, x := make([]bool, keys), make([]float32, keys*d)
			first, last := keys, 0
			for j := range mask {
				mask[j] = visible(j)
				if mask[j] {
					first, last = min(first, j), j
				}
				for e := range d {
					x[j*d+e] = float32((j*d+e)%7) / 7
					if !mask[j] {
						x[j*d+e] = float32(math.NaN())
					}
				}
			}
			if windowed { // of a query in the middle of what is visible
				opt.QueryOffset, opt.Window = (first+last)/2, (last-first)/2+1
			} else {
				opt.Mask = tensor.FromSlice(c, mask, 1, 1, 1, keys)
			}
			q := tensor.Full(c, tensor.Float32, 0.5, 1, 1, 1, d).SetRequiresGrad(true)
			kv := tensor.FromSlice(c, x, 1, 1, keys, d).SetRequiresGrad(true)
			out, _ := tensor.Attention(c, q, kv, kv, opt)
			grads := tensor.Backward(c, []*tensor.Tensor{total(c, out)}, nil, []*tensor.Tensor{q, kv})
			for _, y := range []*tensor.Tensor{out, grads[0], grads[1]} {
				for _, v := range tensor.ToSlice[float32](c, y) {
					require.False(t, math.IsNaN(float64(v)), "%s, windowed %v", name, windowed)
				}
			}
			for j, v := range tensor.ToSlice[float32](c, grads[1]) {
				if !mask[j/d] {
					require.Zero(t, v)
				}
			}
		}
	}
}

// A context that refuses attention names its reason; those derived from it refuse it too.
func TestWithoutAttention(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	x := tensor.Zeros(c, tensor.Float32, 1, 1, 2, 4)
	attend := func(c *tensor.Ctx) error {
		return tensor.Try(func() { tensor.Attention(c, x, x, x, tensor.AttentionOptions{}) })
	}
	refusing := c.WithoutAttention("some tokens are elsewhere")
	require.ErrorContains(t, attend(refusing.NoGrad().Sub("block")), "some tokens are elsewhere")
	require.NoError(t, attend(refusing.WithoutAttention("")))
	require.NoError(t, attend(c))
}

// A part of the heads drops what attention of all heads drops for them, forward and backward.
func TestDropoutOfAPartOfTheHeads(t *testing.T) {
	for _, dt := range []tensor.DType{tensor.Float32, tensor.Float64, tensor.BFloat16} {
		for _, keys := range []int{4, 2} {
			root := newCtx(t)
			// attend is attention of heads first to first+heads of 4: the bits of outputs and gradients, head by head.
			attend := func(first, heads int) map[string][]byte {
				c, off := root.WithRandom(7, 30), root.NoGrad()
				part := func(key uint64, all int) *tensor.Tensor {
					x := tensor.Normal(off, dt, key, 0, 1, 2, all, 9, 8)
					from, n := first*all/4, heads*all/4
					return tensor.Contiguous(off, tensor.Slice(off, x, 1, from, from+n)).SetRequiresGrad(true)
				}
				q, k, v := part(1, 4), part(2, keys), part(3, keys)
				y, _ := tensor.Attention(c, q, k, v, tensor.AttentionOptions{Causal: true, Dropout: 0.4,
					FirstHead: first})
				ones := tensor.Full(off, dt, 1, y.Shape()...)
				g := tensor.Backward(c, []*tensor.Tensor{y}, []*tensor.Tensor{ones}, []*tensor.Tensor{q, k, v})
				bits := map[string][]byte{}
				for i, x := range append(g, y) {
					for h := range x.Size(1) {
						at := fmt.Sprint(i, first*x.Size(1)/heads+h)
						bits[at] = tensor.ReadBytes(off, tensor.Contiguous(off, tensor.Slice(off, x, 1, h, h+1)))
					}
				}
				return bits
			}
			whole, halves := attend(0, 4), attend(0, 2)
			maps.Copy(halves, attend(2, 2))
			require.Equal(t, whole, halves, "%v, %d key heads", dt, keys)
		}
	}
	c := newCtx(t)
	q := tensor.Zeros(c, tensor.Float32, 1, 2, 3, 4)
	require.ErrorContains(t, tensor.Try(func() {
		tensor.Attention(c, q, q, q, tensor.AttentionOptions{FirstHead: -1})
	}), "first head -1")
}
