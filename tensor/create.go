// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"runtime"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// BF16 is a bfloat16 number as it is stored, the upper half of a float32; its method Float32 widens it.
type BF16 = dtype.BF16

// F16 is an IEEE 754 binary16 number as it is stored; its method Float32 widens it.
type F16 = dtype.F16

// ToBF16 rounds to the nearest bfloat16, ties to even.
func ToBF16(f float32) BF16 { return dtype.ToBF16(f) }

// ToF16 rounds to the nearest binary16, ties to even; numbers above 65504 by half a unit or more become infinite.
func ToF16(f float32) F16 { return dtype.ToF16(f) }

// Element is the Go type of each dtype, for host slices of tensors.
type Element interface {
	float32 | float64 | BF16 | F16 | int32 | int64 | uint8 | bool
}

// rawBytes shows a slice's memory; every platform that Lockstep builds for is little-endian.
func rawBytes[T Element](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}

// FromSlice copies data, in row-major order, into a new tensor.
func FromSlice[T Element](c *Ctx, data []T, shape ...int) *Tensor {
	dt := dtype.Of[T]()
	if n := c.checkShape("FromSlice", dt, shape); n != len(data) {
		c.fail("FromSlice", nil, "%d elements do not fill shape %v of %d", len(data), append([]int(nil), shape...), n)
	}
	t := c.empty("FromSlice", dt, shape...)
	c.eng.stream.Write(t.st.buf, 0, rawBytes(data))
	return t
}

// ToSlice copies t's elements out in row-major order. T must be the Go type of t's
// dtype. It waits for the device.
func ToSlice[T Element](c *Ctx, t *Tensor) []T {
	t.check(c, "ToSlice")
	if dt := dtype.Of[T](); dt != t.dtype {
		c.fail("ToSlice", []*Tensor{t}, "elements are %v, not %v: convert with Cast", t.dtype, dt)
	}
	out := make([]T, t.Numel())
	c.read(t, rawBytes(out))
	return out
}

// read copies t's elements, row-major, to host memory of t.Bytes() bytes.
func (c *Ctx) read(t *Tensor, dst []byte) {
	in := c.enter()
	defer in.leave(nil)
	t = in.materialize("ToSlice", t)
	c.eng.stream.Read(dst, t.st.buf, t.offset*t.dtype.Size())
	runtime.KeepAlive(t)
}

// ReadBytes copies t's elements, little-endian and row-major, to the host.
func ReadBytes(c *Ctx, t *Tensor) []byte {
	t.check(c, "ReadBytes")
	out := make([]byte, t.Bytes())
	c.read(t, out)
	return out
}

// WriteBytes overwrites the contiguous tensor t with little-endian, row-major data.
func WriteBytes(c *Ctx, t *Tensor, data []byte) {
	t.check(c, "WriteBytes")
	if len(data) != t.Bytes() || !t.IsContiguous() {
		c.fail("WriteBytes", []*Tensor{t}, "%d bytes: want %d, into a contiguous tensor", len(data), t.Bytes())
	}
	c.eng.stream.Write(t.st.buf, t.offset*t.dtype.Size(), data)
	t.st.ver++ // also keeps t alive until here
}

// FromBytes makes a tensor of little-endian, row-major data.
func FromBytes(c *Ctx, data []byte, dt DType, shape ...int) *Tensor {
	t := c.empty("FromBytes", dt, shape...)
	WriteBytes(c, t, data)
	return t
}

// Item returns the single element of t as a float64. It waits for the device.
func Item(c *Ctx, t *Tensor) float64 {
	t.check(c, "Item")
	if t.Numel() != 1 {
		c.fail("Item", []*Tensor{t}, "want one element, have %d", t.Numel())
	}
	in := c.enter()
	defer in.leave(nil)
	d := in.empty("Item", Float64, t.Shape()...)
	in.launch(backend.OpCopy, d, t)
	var b [8]byte
	c.eng.stream.Read(b[:], d.st.buf, 0)
	runtime.KeepAlive(d)
	return math.Float64frombits(*(*uint64)(unsafe.Pointer(&b)))
}

// Full returns a tensor whose elements are all v, converted to dt.
func Full(c *Ctx, dt DType, v float64, shape ...int) *Tensor {
	return c.full("Full", dt, v, shape)
}

func (c *Ctx) full(op string, dt DType, v float64, shape []int) *Tensor {
	t := c.empty(op, dt, shape...)
	c.fill(t, v)
	return t
}

func (c *Ctx) fill(t *Tensor, v float64) { c.fillIf(t, v, backend.Flag{}) }

func (c *Ctx) fillIf(t *Tensor, v float64, flag backend.Flag) {
	a := attrs{flag: flag}
	a.floats[0], a.ints[0] = v, int(v)
	if t.dtype == Bool && v != 0 {
		a.ints[0] = 1
	}
	c.launchAttrs(backend.OpFill, &a, t)
}

// Empty is a tensor whose elements are not defined until something is written there.
func Empty(c *Ctx, dt DType, shape ...int) *Tensor { return c.empty("Empty", dt, shape...) }

// Zeros returns a tensor of zeros.
func Zeros(c *Ctx, dt DType, shape ...int) *Tensor { return c.full("Zeros", dt, 0, shape) }

// Ones returns a tensor of ones.
func Ones(c *Ctx, dt DType, shape ...int) *Tensor { return c.full("Ones", dt, 1, shape) }

// ZerosLike returns zeros of t's shape and dtype.
func ZerosLike(c *Ctx, t *Tensor) *Tensor {
	t.check(c, "ZerosLike")
	return c.full("ZerosLike", t.dtype, 0, t.Shape())
}

// Scalar returns a 0-D tensor.
func Scalar(c *Ctx, dt DType, v float64) *Tensor { return c.full("Scalar", dt, v, nil) }

// Arange returns start, start+step, … , n elements of dtype dt, 1-D.
func Arange(c *Ctx, dt DType, start, step float64, n int) *Tensor {
	t := c.empty("Arange", dt, n)
	a := floats(start, step)
	a.ints[0], a.ints[1] = int(start), int(step)
	c.launchAttrs(backend.OpArange, &a, t)
	return t
}

// Uniform returns draws from [lo, hi); element i is the i-th draw from the stream of key.
func Uniform(c *Ctx, dt DType, key uint64, lo, hi float64, shape ...int) *Tensor {
	return c.draw("Uniform", backend.OpUniform, dt, key, lo, hi, shape)
}

// Normal returns draws from the normal distribution; element i is the i-th draw from the
// stream of key.
func Normal(c *Ctx, dt DType, key uint64, mean, std float64, shape ...int) *Tensor {
	return c.draw("Normal", backend.OpNormal, dt, key, mean, std, shape)
}

func (c *Ctx) draw(name string, op backend.Op, dt DType, key uint64, p0, p1 float64, shape []int) *Tensor {
	t := c.empty(name, dt, shape...)
	c.wantFloat(name, t)
	a := floats(p0, p1)
	a.key = key
	c.launchAttrs(op, &a, t)
	return t
}
