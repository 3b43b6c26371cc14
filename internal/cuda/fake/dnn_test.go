// SPDX-License-Identifier: Apache-2.0

package fake_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
)

// small is a convolution of 2×3 pixels with a kernel of 1×2, which moves by two columns over one column of padding.
func small(way cuda.Direction) cuda.Convolution {
	return cuda.Convolution{Direction: way, Type: cuda.R32F, N: 1, C: 1, H: 2, W: 3, K: 1, R: 1, S: 2, P: 2, Q: 2,
		Stride: [2]int{1, 2}, Padding: [2]int{0, 1}, Dilation: [2]int{1, 1}, Align: 4}
}

// What cuDNN refuses is refused with its status.
func TestConvolutionsThatAreRefused(t *testing.T) {
	n, err := device(t, fake.Options{}).Dnn()
	require.NoError(t, err)
	for name, k := range map[string]struct {
		change func(*cuda.Convolution)
		status int
	}{
		"places":  {func(c *cuda.Convolution) { c.P++ }, 2008},
		"none":    {func(c *cuda.Convolution) { c.N = 0 }, 2000},
		"stride":  {func(c *cuda.Convolution) { c.Stride[1] = 0 }, 2000},
		"padding": {func(c *cuda.Convolution) { c.Padding[0] = -1 }, 2000},
		"kernel":  {func(c *cuda.Convolution) { c.S = 6 }, 2008},
		"type":    {func(c *cuda.Convolution) { c.Type = 3 }, 3000},
		"TF32":    {func(c *cuda.Convolution) { c.Type, c.TF32 = cuda.R64F, true }, 3000},
		"align":   {func(c *cuda.Convolution) { c.Align = 2 }, 2000},
	} {
		c := small(cuda.Forward)
		_, err := n.Workspace(c)
		require.NoError(t, err)
		k.change(&c)
		_, err = n.Workspace(c)
		e, ok := err.(*cuda.Error)
		require.True(t, ok, "%s: %v", name, err)
		require.Equal(t, k.status, e.Code, "%s: %v", name, err)
	}
	_, err = device(t, fake.Options{NoDnn: true}).Dnn()
	require.ErrorIs(t, err, cuda.ErrNotFound)
	n, err = device(t, fake.Options{NoAlgorithm: 1}).Dnn()
	require.NoError(t, err)
	c := small(cuda.Forward)
	_, err = n.Workspace(c)
	require.NoError(t, err)
	c.K = 2
	_, err = n.Workspace(c)
	require.ErrorIs(t, err, cuda.ErrNoAlgorithm)
}

// Each direction computes its operand of the other two. The workspace is overwritten, and operands must be defined.
func TestConvolutions(t *testing.T) {
	d := device(t, fake.Options{})
	s := stream(t, d)
	n, err := d.Dnn()
	require.NoError(t, err)
	host := pinned(t, d, 24)
	put := func(p cuda.Ptr, x ...float32) {
		for i, v := range x {
			binary.LittleEndian.PutUint32(host[4*i:], math.Float32bits(v))
		}
		require.NoError(t, s.CopyToDevice(p, host[:4*len(x)]))
		require.NoError(t, s.Sync())
	}
	get := func(p cuda.Ptr, n int) (x []float32) {
		require.NoError(t, s.CopyToHost(host[:4*n], p))
		require.NoError(t, s.Sync())
		for i := range n {
			x = append(x, math.Float32frombits(binary.LittleEndian.Uint32(host[4*i:])))
		}
		return x
	}
	o := cuda.ConvolutionOperands{X: alloc(t, d, 24), W: alloc(t, d, 8), Y: alloc(t, d, 16)}
	space := alloc(t, d, 1024)
	fill := func() {
		put(o.X, 1, 2, 3, 4, 5, 6)
		put(o.W, 10, 1)
		put(o.Y, 1, 2, 3, 4)
	}
	for _, k := range []struct {
		way        cuda.Direction
		accumulate bool
		at         cuda.Ptr
		want       []float32
	}{
		// The windows' columns are (−, 0) and (1, 2): 10·0 + 1·1, 10·2 + 1·3, …
		{cuda.Forward, false, o.Y, []float32{1, 23, 4, 56}},
		{cuda.Forward, true, o.Y, []float32{2, 25, 7, 60}},
		{cuda.DataGrad, false, o.X, []float32{1, 20, 2, 3, 40, 4}},
		{cuda.FilterGrad, false, o.W, []float32{2*2 + 4*5, 1*1 + 2*3 + 3*4 + 4*6}},
	} {
		fill()
		require.NoError(t, s.Fill(space, 0, 1024))
		c := small(k.way)
		c.Accumulate = k.accumulate
		require.NoError(t, n.Convolve(s, c, o, space))
		require.Equal(t, k.want, get(k.at, len(k.want)), k.way)
	}
	require.ErrorContains(t, n.Convolve(s, small(cuda.Forward), o, 0), "workspace at 0x0")
	odd := o
	odd.X += 2
	require.ErrorContains(t, n.Convolve(s, small(cuda.Forward), odd, space), "no multiple of 4")

	fill()
	inside := o
	inside.X = space
	require.NoError(t, n.Convolve(s, small(cuda.Forward), inside, space))
	require.ErrorContains(t, s.Sync(), "x: some of 24 bytes")
}
