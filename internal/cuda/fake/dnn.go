// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"fmt"
	"hash/fnv"

	"github.com/lockstep-ml/lockstep/internal/cuda"
)

// statuses of cudnn_graph.h.
const (
	badConvolution     = 2000
	unfitConvolution   = 2008
	unknownConvolution = 3000
)

func refusedConvolution(status int, format string, args ...any) error {
	err := failed("cudnnBackendFinalize", status, format, args...).(*cuda.Error)
	err.Name = map[int]string{badConvolution: "CUDNN_STATUS_BAD_PARAM",
		unfitConvolution:   "CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH",
		unknownConvolution: "CUDNN_STATUS_NOT_SUPPORTED"}[status]
	return err
}

// dnn computes convolutions by their definition.
type dnn struct{ d *device }

// Dnn returns the convolutions, if the machine has cuDNN.
func (d *device) Dnn() (cuda.Dnn, error) {
	if d.driver.options.NoDnn {
		return nil, fmt.Errorf("fake: %w", cuda.ErrNotFound)
	}
	return &dnn{d}, d.lost()
}

// Workspace checks a convolution. One without padding, of kernels with several rows, needs no workspace, as some
// algorithms do; the others want some. None is found for more than NoAlgorithm kernels of one convolution.
func (n *dnn) Workspace(c cuda.Convolution) (int, error) {
	if err := checkConvolution(c); err != nil {
		return 0, err
	}
	if most := n.d.driver.options.NoAlgorithm; most > 0 && c.K > most {
		return 0, fmt.Errorf("fake: %w", cuda.ErrNoAlgorithm)
	}
	if c.R > 1 && c.Padding == [2]int{} {
		return 0, nil
	}
	return workspaceBytes, nil
}

// checkConvolution refuses what cuDNN refuses. Source: NVIDIA, "cuDNN Backend API", version 9.28, on the descriptors of
// tensors, convolutions and their operations.
func checkConvolution(c cuda.Convolution) error {
	for name, size := range map[string]int{"N": c.N, "C": c.C, "H": c.H, "W": c.W, "K": c.K, "R": c.R, "S": c.S} {
		if size < 1 {
			return refusedConvolution(badConvolution, "%s is %d", name, size)
		}
	}
	for i := range 2 {
		if c.Stride[i] < 1 || c.Dilation[i] < 1 || c.Padding[i] < 0 {
			return refusedConvolution(badConvolution, "strides %v, dilations %v, paddings %v", c.Stride, c.Dilation,
				c.Padding)
		}
	}
	if got := [2]int{c.P, c.Q}; got != c.Places() || c.P < 1 || c.Q < 1 {
		return refusedConvolution(unfitConvolution, "a result of %v places: want %v", got, c.Places())
	}
	if sizes[c.Type] == 0 || c.TF32 && c.Type != cuda.R32F {
		return refusedConvolution(unknownConvolution, "type %d, TF32 %t", c.Type, c.TF32)
	}
	if c.Align < sizes[c.Type] || c.Align > 256 || c.Align&(c.Align-1) != 0 {
		return refusedConvolution(badConvolution, "an alignment of %d bytes", c.Align)
	}
	return nil
}

// Convolve queues a convolution.
func (n *dnn) Convolve(s cuda.Stream, c cuda.Convolution, o cuda.ConvolutionOperands, workspace cuda.Ptr) error {
	space, err := n.Workspace(c)
	if err != nil {
		return err
	}
	own, ok := s.(*stream)
	if !ok || own.d != n.d {
		return refusedConvolution(badConvolution, "a stream of another device")
	}
	for _, x := range []cuda.Ptr{o.X, o.W, o.Y} {
		if x == 0 || x%cuda.Ptr(c.Align) != 0 {
			return refusedConvolution(badConvolution, "address %#x is no multiple of %d", x, c.Align)
		}
	}
	if space > 0 && workspace == 0 || workspace%256 != 0 {
		return refusedConvolution(badConvolution, "workspace at %#x", workspace)
	}
	own.count()
	return own.push(false, func() error {
		if space > 0 {
			if err := n.d.mem.Undefine(uint64(workspace), space); err != nil {
				return failed("cudnnBackendExecute", illegalAddress, "the workspace: %v", err)
			}
		}
		return n.convolve(c, o)
	})
}

// tensor is an operand: its name, address and number of elements.
type tensor struct {
	name string
	at   cuda.Ptr
	n    int
}

// convolve reads two operands, computes the third, and writes it.
func (n *dnn) convolve(c cuda.Convolution, o cuda.ConvolutionOperands) error {
	all := [3]tensor{{"x", o.X, c.N * c.C * c.H * c.W}, {"w", o.W, c.K * c.C * c.R * c.S},
		{"y", o.Y, c.N * c.K * c.P * c.Q}}
	result := map[cuda.Direction]int{cuda.Forward: 2, cuda.DataGrad: 0, cuda.FilterGrad: 1}[c.Direction]
	var v [3][]float64
	for i, t := range all {
		if i == result && !c.Accumulate {
			v[i] = make([]float64, t.n)
			continue
		}
		var err error
		if v[i], err = n.load(t, c.Type); err != nil {
			return err
		}
		for k := range v[i] {
			if c.TF32 && i != result {
				v[i][k] = tf32(v[i][k])
			}
		}
	}
	convolve(c, v[0], v[1], v[2])
	return n.store(all[result], c.Type, v[result])
}

// convolve adds to one of x, w and y the products of the other two, in float32 or float64. As with real algorithms, the
// order of the sums is another for another description: forwards or backwards, by a hash of all of it.
func convolve(c cuda.Convolution, x, w, y []float64) {
	hash := fnv.New32a()
	_, _ = fmt.Fprintf(hash, "%+v", c)
	backwards := hash.Sum32()&1 == 1
	turn := func(i, n int) int {
		if backwards {
			return n - 1 - i
		}
		return i
	}
	add := func(to *float64, product float64) {
		if *to += product; c.Type != cuda.R64F {
			*to = float64(float32(*to))
		}
	}
	places, taps := c.N*c.K*c.P*c.Q, c.C*c.R*c.S
	for i := range places {
		at := turn(i, places)
		n, k, p, q := at/(c.K*c.P*c.Q), at/(c.P*c.Q)%c.K, at/c.Q%c.P, at%c.Q
		for j := range taps {
			tap := turn(j, taps)
			ch, r, s := tap/(c.R*c.S), tap/c.S%c.R, tap%c.S
			row, col := p*c.Stride[0]-c.Padding[0]+r*c.Dilation[0], q*c.Stride[1]-c.Padding[1]+s*c.Dilation[1]
			if row < 0 || row >= c.H || col < 0 || col >= c.W {
				continue
			}
			pixel, tap := ((n*c.C+ch)*c.H+row)*c.W+col, k*taps+tap
			switch c.Direction {
			case cuda.Forward:
				add(&y[at], x[pixel]*w[tap])
			case cuda.DataGrad:
				add(&x[pixel], y[at]*w[tap])
			case cuda.FilterGrad:
				add(&w[tap], y[at]*x[pixel])
			}
		}
	}
}

// load reads an operand.
func (n *dnn) load(t tensor, dt cuda.DataType) ([]float64, error) {
	raw := make([]byte, t.n*sizes[dt])
	if err := n.d.defined(uint64(t.at), raw); err != nil {
		return nil, failed("cudnnBackendExecute", illegalAddress, "%s: %v", t.name, err)
	}
	v := make([]float64, t.n)
	for i := range v {
		v[i] = get(raw[i*sizes[dt]:], dt)
	}
	return v, nil
}

// store writes an operand.
func (n *dnn) store(t tensor, dt cuda.DataType, v []float64) error {
	raw := make([]byte, t.n*sizes[dt])
	for i, x := range v {
		put(raw[i*sizes[dt]:], dt, x)
	}
	if err := n.d.mem.Write(uint64(t.at), raw); err != nil {
		return failed("cudnnBackendExecute", illegalAddress, "%s: %v", t.name, err)
	}
	return nil
}

// Close does nothing.
func (n *dnn) Close() error { return nil }
