// SPDX-License-Identifier: Apache-2.0

package cuda

import "errors"

// ErrNotFound is what Device.Dnn returns where there is no cuDNN.
var ErrNotFound = errors.New("no cuDNN")

// ErrNoAlgorithm is what Dnn.Workspace returns of a convolution for which cuDNN has no algorithm that gives the same
// bits each time.
var ErrNoAlgorithm = errors.New("cuDNN has no deterministic algorithm")

// Direction says which operand of a convolution is computed of the other two.
type Direction int

// The directions.
const (
	Forward    Direction = iota // y of x and w
	DataGrad                    // x, which is then a gradient, of y's gradient and w
	FilterGrad                  // w, which is then a gradient, of x and y's gradient
)

// String names the operation.
func (d Direction) String() string {
	return [...]string{"convolution", "gradient of images", "gradient of kernels"}[d]
}

// Convolution is the cross-correlation of images x [N,C,H,W] with kernels w [K,C,R,S] in y [N,K,P,Q], or one of its
// gradients. The operands lie without gaps and have one type; float16 and bfloat16 are added up in float32. The pairs
// are for rows and columns. It is comparable: one algorithm is chosen for each Convolution, by a rule that does not
// measure.
type Convolution struct {
	Direction                 Direction
	Type                      DataType
	TF32                      bool // float32 may be rounded to 10 bits of fraction before it is multiplied
	N, C, H, W, K, R, S, P, Q int
	Stride, Padding, Dilation [2]int
	Accumulate                bool // the result is added to what is there
	Align                     int  // bytes that all addresses are multiples of, at most 256
}

// Places is the size of y that the other sizes give, rows and columns: P and Q must be these.
func (c Convolution) Places() [2]int {
	size, kernel := [2]int{c.H, c.W}, [2]int{c.R, c.S}
	var places [2]int
	for i := range places {
		room := size[i] + 2*c.Padding[i] - c.Dilation[i]*(kernel[i]-1) - 1
		if c.Stride[i] > 0 && room >= 0 {
			places[i] = room/c.Stride[i] + 1
		}
	}
	return places
}

// ConvolutionOperands are the addresses of a convolution.
type ConvolutionOperands struct {
	X, W, Y Ptr
}

// Dnn is cuDNN.
type Dnn interface {
	// Workspace is the number of bytes that a convolution may need beside its operands. The error is ErrNoAlgorithm if
	// another way must be found to compute it.
	Workspace(Convolution) (int, error)
	// Convolve queues a convolution. workspace holds at least the bytes that Workspace returned, aligned to 256, for
	// this stream alone; none are 0.
	Convolve(s Stream, c Convolution, o ConvolutionOperands, workspace Ptr) error
	Close() error
}
