// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

var convolutionOps = []backend.Op{backend.OpConv2D, backend.OpConv2DGrad, backend.OpConv2DParamGrad}

// withoutDnn opens a device of a machine that has no cuDNN, or does as if it had none.
func withoutDnn(t *testing.T, o fake.Options) *Device {
	o.NoDnn = true
	d := fakeDevice(t, o)
	lib, _, err := d.dnn.need(d, cuda.Convolution{})
	if lib != nil || err != nil { // a real device
		require.NoError(t, d.dnn.close())
	}
	d.dnn.none = true
	return d
}

// simulated opens a device of a fake machine, for what a real one would answer in another way.
func simulated(t *testing.T, o fake.Options) *Device {
	d, err := Open(fake.New(o), 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// askedDnn is a library of convolutions that notes what it is asked for.
type askedDnn struct {
	cuda.Dnn
	list   []cuda.Convolution
	spaces []cuda.Ptr
	refuse error // of Workspace
}

func (a *askedDnn) Workspace(c cuda.Convolution) (int, error) {
	if a.refuse != nil {
		return 0, a.refuse
	}
	return a.Dnn.Workspace(c)
}

func (a *askedDnn) Convolve(s cuda.Stream, c cuda.Convolution, o cuda.ConvolutionOperands, workspace cuda.Ptr) error {
	a.list, a.spaces = append(a.list, c), append(a.spaces, workspace)
	return a.Dnn.Convolve(s, c, o, workspace)
}

// listenDnn notes what a device asks cuDNN for.
func listenDnn(t *testing.T, d *Device) *askedDnn {
	lib, err := d.dev.Dnn()
	require.NoError(t, err)
	a := &askedDnn{Dnn: lib}
	d.dnn.lib, d.dnn.spaces = a, map[cuda.Convolution]*plannedConvolution{}
	return a
}

// convolutionCalls are a convolution and its gradients, with skip elements before each operand.
func convolutionCalls(dt dtype.DType, bias bool, skip int) (calls []backend.Call, outs, ins [][]array) {
	r := rand.New(rand.NewPCG(1, 2))
	at := func(shape ...int) array {
		a := drawn(r, dt, -1, 1, shape...)
		a.skip = skip
		return a
	}
	x, w, y := at(3, 2, 6, 5), at(4, 2, 3, 2), at(3, 4, 4, 2)
	ints := [8]int{2, 3, 2, 1, 1, 2}
	for _, op := range convolutionOps {
		calls = append(calls, backend.Call{Op: op, Ints: ints})
	}
	forward := []array{x, w}
	if bias {
		forward = append(forward, at(4))
	}
	return calls, [][]array{{y}, {x}, {w}}, [][]array{forward, {y, w}, {x, y}}
}

// A convolution is one call of cuDNN. Its description says all that may decide about the algorithm.
func TestConvolutionsByCuDNN(t *testing.T) {
	for _, k := range []struct {
		dt    dtype.DType
		tf32  bool
		bias  bool
		skip  int
		align int
	}{
		{dtype.Float32, false, false, 0, 16}, {dtype.Float32, true, true, 1, 4}, {dtype.Float64, true, true, 2, 16},
		{dtype.BFloat16, true, true, 4, 8}, {dtype.Float16, false, false, 1, 2},
	} {
		d := simulated(t, fake.Options{})
		d.SetTF32(k.tf32)
		lib := listenDnn(t, d)
		calls, outs, ins := convolutionCalls(k.dt, k.bias, k.skip)
		for i, c := range calls {
			before := d.Launches()
			if k.tf32 && k.dt == dtype.Float32 {
				calculated(t, d, c, outs[i], ins[i]) // to 10 bits of fraction
			} else {
				requireCPU(t, d, c, outs[i], ins[i], false)
			}
			require.Len(t, lib.list, i+1)
			kernels := int64(0) // beside the library's
			if k.bias && c.Op == backend.OpConv2D {
				kernels = 1
			}
			require.Equal(t, 1+kernels, d.Launches()-before)
			require.Equal(t, cuda.Convolution{Direction: cuda.Direction(i), Type: dataTypes[k.dt],
				TF32: k.tf32 && k.dt == dtype.Float32, N: 3, C: 2, H: 6, W: 5, K: 4, R: 3, S: 2, P: 4, Q: 2,
				Stride: [2]int{2, 3}, Padding: [2]int{2, 1}, Dilation: [2]int{1, 2},
				Accumulate: kernels == 1, Align: k.align}, lib.list[i])
			require.NotZero(t, lib.spaces[i])
		}
	}
}

// A gradient lies at a multiple of 256 on one rank, and of 64 in the bucket of several: products and convolutions are
// the same all the same.
func TestAlignmentsThatRanksDecide(t *testing.T) {
	var products [2]cuda.Product
	var convolutions [2]cuda.Convolution
	for i, skip := range []int{0, 16} {
		d := simulated(t, fake.Options{})
		blas, dnn := listen(t, d), listenDnn(t, d)
		a, b, c := blank(dtype.Float32, 8, 16), blank(dtype.Float32, 16, 4), blank(dtype.Float32, 8, 4)
		c.skip = skip
		calculated(t, d, backend.Call{Op: backend.OpMatMul}, []array{c}, []array{a, b})
		calls, outs, ins := convolutionCalls(dtype.Float32, false, 0)
		outs[2][0].skip = skip
		calculated(t, d, calls[2], outs[2], ins[2])
		products[i], convolutions[i] = blas.list[0], dnn.list[0]
	}
	require.Equal(t, products[0], products[1])
	require.Equal(t, convolutions[0], convolutions[1])
}

// What cuDNN has no algorithm for is computed by products, each time: a description has one way.
func TestConvolutionsWithoutAnAlgorithm(t *testing.T) {
	d := simulated(t, fake.Options{NoAlgorithm: 3})
	lib := listenDnn(t, d)
	calls, outs, ins := convolutionCalls(dtype.Float32, true, 0)
	for range 2 {
		for i, c := range calls {
			requireCPU(t, d, c, outs[i], ins[i], false)
		}
	}
	require.Empty(t, lib.list)
	require.Len(t, d.dnn.spaces, 3)
	w, y := ins[0][1], outs[0][0]
	w.shape, w.x, y.shape, y.x = []int{3, 2, 3, 2}, w.x[:36], []int{3, 3, 4, 2}, y.x[:72]
	requireCPU(t, d, calls[0], []array{y}, []array{ins[0][0], w}, false)
	require.Len(t, lib.list, 1, "three kernels")
}

// A library that is there but fails is not done without: the bits would be others.
func TestCuDNNThatFails(t *testing.T) {
	d := simulated(t, fake.Options{})
	listenDnn(t, d).refuse = errors.New("out of order")
	calls, outs, ins := convolutionCalls(dtype.Float32, false, 0)
	err := caught(func() error { calculated(t, d, calls[0], outs[0], ins[0]); return nil })
	require.EqualError(t, err, "cuda:0: conv2d: out of order")

	d = simulated(t, fake.Options{})
	d.dev = failingDnn{d.dev}
	err = caught(func() error { calculated(t, d, calls[0], outs[0], ins[0]); return nil })
	require.EqualError(t, err, "cuda:0: conv2d: no context")
}

type failingDnn struct{ cuda.Device }

func (failingDnn) Dnn() (cuda.Dnn, error) { return nil, errors.New("no context") }

// The workspace is memory of the stream that later work uses again.
func TestConvolutionsTakeNoMemoryTwice(t *testing.T) {
	d := simulated(t, fake.Options{})
	lib := listenDnn(t, d)
	calls, outs, ins := convolutionCalls(dtype.Float32, false, 0)
	s := newStream(d)
	put := func(a array) backend.View {
		stride := make([]int, len(a.shape))
		for i, n := len(stride)-1, 1; i >= 0; i-- {
			stride[i] = n
			n *= a.shape[i]
		}
		return matrices(t, s, a.dt, stride, a.shape)
	}
	x, w, y := put(ins[0][0]), put(ins[0][1]), put(outs[0][0])
	var allocs int64
	for i := range 3 {
		for k, c := range calls {
			views := [3][3]backend.View{{y, x, w}, {x, y, w}, {w, x, y}}[k]
			c.NOut, c.NIn = 1, 2
			c.Out[0], c.In[0], c.In[1] = views[0], views[1], views[2]
			s.Launch(&c)
		}
		if i == 0 {
			allocs = d.DeviceAllocs()
		}
	}
	s.Sync()
	require.Equal(t, allocs, d.DeviceAllocs())
	require.Len(t, lib.spaces, 9)
	for _, at := range lib.spaces {
		require.Equal(t, lib.spaces[0], at)
	}
}
