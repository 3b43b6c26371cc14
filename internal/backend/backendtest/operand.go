// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// operand is a tensor on the host: the bytes of a buffer and the view that shows them.
type operand struct {
	dt     dtype.DType
	shape  []int
	stride []int
	offset int
	bytes  []byte
	alias  int // for outputs: 1 + the input whose memory it is, 0 if it has its own

	places   []int     // the bytes at which the elements lie, in row-major order
	elements []float64 // what they are; nil for outputs
}

// layout lays a shape out in memory: strides, offset and size in elements.
type layout struct {
	name string
	lay  func(shape []int) (stride []int, offset, total int)
}

var (
	rowMajor = layout{"contiguous", func(shape []int) ([]int, int, int) {
		stride, total := strides(shape, 1, 0)
		return stride, 0, total
	}}
	// reversed stores the first dim innermost, as a transposed matrix does.
	reversed = layout{"reversed", func(shape []int) ([]int, int, int) {
		stride := make([]int, len(shape))
		n := 1
		for k, s := range shape {
			stride[k] = n
			n *= s
		}
		return stride, 0, n
	}}
	// gapped leaves every other element out, some between rows and some before the first.
	gapped = layout{"gapped", func(shape []int) ([]int, int, int) {
		stride, total := strides(shape, 2, 1)
		return stride, 3, total + 5
	}}
	// rowGapped has gaps between rows alone.
	rowGapped = layout{"row-gapped", func(shape []int) ([]int, int, int) {
		stride, total := strides(shape, 1, 3)
		return stride, 2, total + 2
	}}
	repeatFirst = repeated("repeat-first", func(k, _ int) bool { return k == 0 })
	repeatLast  = repeated("repeat-last", func(k, nd int) bool { return k == nd-1 })
	repeatAll   = repeated("repeat-all", func(int, int) bool { return true })
)

// strides are those of row-major order with the given innermost stride, and gap elements more per step of the next dim.
func strides(shape []int, inner, gap int) (stride []int, total int) {
	stride = make([]int, len(shape))
	n := inner
	for k := len(shape) - 1; k >= 0; k-- {
		stride[k] = n
		n = n*shape[k] + gap
	}
	return stride, n
}

func repeated(name string, repeats func(k, nd int) bool) layout {
	return layout{name, func(shape []int) ([]int, int, int) {
		stride := make([]int, len(shape))
		n := 1
		for k := len(shape) - 1; k >= 0; k-- {
			if !repeats(k, len(shape)) {
				stride[k] = n
				n *= shape[k]
			}
		}
		return stride, 0, n
	}}
}

// newOperand fills the elements in row-major order; where the layout repeats memory, the last one written counts.
func newOperand(dt dtype.DType, l layout, shape []int, fill func(i int) float64) *operand {
	o := &operand{dt: dt, shape: shape}
	var total int
	o.stride, o.offset, total = l.lay(shape)
	o.bytes = bytes.Repeat([]byte{0xA5}, (total+1)*dt.Size())
	o.place()
	for i, at := range o.places {
		put(o.bytes[at:], dt, fill(i))
	}
	o.elements = make([]float64, len(o.places))
	for i, at := range o.places {
		o.elements[i] = get(o.bytes[at:], dt)
	}
	return o
}

// place computes where the elements lie.
func (o *operand) place() {
	o.places = make([]int, o.numel())
	index, at := make([]int, len(o.shape)), o.offset
	for i := range o.places {
		o.places[i] = at * o.dt.Size()
		for k := len(o.shape) - 1; k >= 0; k-- {
			index[k]++
			at += o.stride[k]
			if index[k] < o.shape[k] {
				break
			}
			at -= index[k] * o.stride[k]
			index[k] = 0
		}
	}
}

func (o *operand) numel() int { return numel(o.shape) }

func numel(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

// where is the byte at which element i, counted in row-major order, lies.
func (o *operand) where(i int) int { return o.places[i] }

// at is element i in row-major order.
func (o *operand) at(i int) float64 {
	if o.elements == nil {
		return get(o.bytes[o.where(i):], o.dt)
	}
	return o.elements[i]
}

// set writes element i.
func (o *operand) set(i int, x float64) {
	put(o.bytes[o.places[i]:], o.dt, x)
	for k, at := range o.places {
		if at == o.places[i] { // repeated
			o.elements[k] = get(o.bytes[at:], o.dt)
		}
	}
}

func (o *operand) view(b backend.Buffer) backend.View {
	v := backend.View{Buf: b, DType: o.dt, Offset: o.offset, NDim: len(o.shape)}
	copy(v.Shape[:], o.shape)
	copy(v.Stride[:], o.stride)
	return v
}

func put(b []byte, dt dtype.DType, x float64) {
	switch dt {
	case dtype.Float32:
		binary.NativeEndian.PutUint32(b, math.Float32bits(float32(x)))
	case dtype.Float64:
		binary.NativeEndian.PutUint64(b, math.Float64bits(x))
	case dtype.BFloat16:
		binary.NativeEndian.PutUint16(b, uint16(dtype.ToBF16(float32(x))))
	case dtype.Float16:
		binary.NativeEndian.PutUint16(b, uint16(dtype.ToF16(float32(x))))
	case dtype.Int32:
		binary.NativeEndian.PutUint32(b, uint32(int32(x)))
	case dtype.Int64:
		binary.NativeEndian.PutUint64(b, uint64(int64(x)))
	case dtype.Uint8, dtype.Bool:
		b[0] = uint8(x)
	default:
		panic(fmt.Sprintf("backendtest: dtype %s", dt))
	}
}

func get(b []byte, dt dtype.DType) float64 {
	switch dt {
	case dtype.Float32:
		return float64(math.Float32frombits(binary.NativeEndian.Uint32(b)))
	case dtype.Float64:
		return math.Float64frombits(binary.NativeEndian.Uint64(b))
	case dtype.BFloat16:
		return float64(dtype.BF16(binary.NativeEndian.Uint16(b)).Float32())
	case dtype.Float16:
		return float64(dtype.F16(binary.NativeEndian.Uint16(b)).Float32())
	case dtype.Int32:
		return float64(int32(binary.NativeEndian.Uint32(b)))
	case dtype.Int64:
		return float64(int64(binary.NativeEndian.Uint64(b)))
	case dtype.Uint8, dtype.Bool:
		return float64(b[0])
	}
	panic(fmt.Sprintf("backendtest: dtype %s", dt))
}

// unravel returns the multi-index of element i of a shape.
func unravel(i int, shape []int) []int {
	at := make([]int, len(shape))
	for k := len(shape) - 1; k >= 0; k-- {
		at[k] = i % shape[k]
		i /= shape[k]
	}
	return at
}

// ravel is its inverse.
func ravel(at, shape []int) int {
	i := 0
	for k, s := range shape {
		i = i*s + at[k]
	}
	return i
}
