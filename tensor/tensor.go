// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// DType is the element type of a tensor.
type DType = dtype.DType

// The dtypes. Gradients flow through the first four.
const (
	Float32  = dtype.Float32
	Float64  = dtype.Float64
	BFloat16 = dtype.BFloat16
	Float16  = dtype.Float16
	Int32    = dtype.Int32
	Int64    = dtype.Int64
	Uint8    = dtype.Uint8
	Bool     = dtype.Bool

	Invalid = dtype.Invalid // no dtype, the zero value
)

// MaxDims is the largest number of dims of a tensor.
const MaxDims = backend.MaxDims

// Named is a tensor and its name, as the dotted path of a model's parameter.
type Named struct {
	Name string
	*Tensor
}

// Tensor is a strided window into device memory: one concrete type, dtype at run time.
// Views (Reshape, Transpose, Slice, Expand) share its memory. Two kinds take part in
// autograd: leaves, for which SetRequiresGrad was called, and results of ops on tensors
// that take part.
type Tensor struct {
	st     *storage
	gen    uint32
	dtype  DType
	part   uint8 // 1 + the dim that has a rank's part of the features that a colwise layer divides; 0: none has
	ndim   int
	offset int // in elements
	shape  [MaxDims]int
	stride [MaxDims]int

	node *Node // what made it, if recorded
	out  int   // which of node's outputs it is
	leaf *leaf // set by SetRequiresGrad
}

// newTensor wraps st with a contiguous layout.
func newTensor(st *storage, dt DType, shape []int) *Tensor {
	t := &Tensor{st: st, gen: st.gen, dtype: dt, ndim: len(shape)}
	copy(t.shape[:], shape)
	n := 1
	for d := len(shape) - 1; d >= 0; d-- {
		t.stride[d] = n
		n *= shape[d]
	}
	return t
}

// empty allocates a contiguous tensor with undefined contents.
func (c *Ctx) empty(op string, dt DType, shape ...int) *Tensor {
	n := c.checkShape(op, dt, shape)
	return newTensor(c.newStorage(op, n*dt.Size()), dt, shape)
}

// emptyLike allocates a contiguous tensor of t's shape and dtype.
func (c *Ctx) emptyLike(op string, t *Tensor) *Tensor { return c.empty(op, t.dtype, t.Shape()...) }

// checkShape returns the number of elements of shape and refuses impossible ones.
func (c *Ctx) checkShape(op string, dt DType, shape []int) int {
	if len(shape) > MaxDims {
		c.fail(op, nil, "shape %v has %d dims: want at most %d", append([]int(nil), shape...), len(shape), MaxDims)
	}
	if dt.Size() == 0 {
		c.fail(op, nil, "dtype %v: want one of %v", dt, dtype.All())
	}
	n := 1
	for _, s := range shape {
		if s < 0 {
			c.fail(op, nil, "shape %v: sizes must not be negative", append([]int(nil), shape...))
		}
		if s > 0 && n > math.MaxInt/8/s {
			c.fail(op, nil, "shape %v holds too many elements", append([]int(nil), shape...))
		}
		n *= s
	}
	return n
}

// Shape is the size of each dim. The slice belongs to t and must not be changed.
func (t *Tensor) Shape() []int {
	if t == nil {
		failNil("Shape", "")
	}
	return t.shape[:t.ndim:t.ndim]
}

// Strides is the distance in elements from one index to the next in each dim. The slice
// must not be changed.
func (t *Tensor) Strides() []int { return t.stride[:t.ndim:t.ndim] }

// Dim is the number of dims.
func (t *Tensor) Dim() int { return len(t.Shape()) }

// Size is the size of dim d; negative dims count from the end.
func (t *Tensor) Size(d int) int {
	n := t.Dim()
	if d < -n || d >= n {
		panic(&Error{Op: "Size", Inputs: []string{describe(t)},
			Msg: fmt.Sprintf("dim %d: want one in [%d, %d)", d, -n, n)})
	}
	if d < 0 {
		d += n
	}
	return t.shape[d]
}

// DType is the element type.
func (t *Tensor) DType() DType {
	if t == nil {
		failNil("DType", "")
	}
	return t.dtype
}

// Numel is the number of elements.
func (t *Tensor) Numel() int {
	n := 1
	for _, s := range t.Shape() {
		n *= s
	}
	return n
}

// Bytes is the number of bytes of the elements, Numel × dtype size.
func (t *Tensor) Bytes() int { return t.Numel() * t.dtype.Size() }

// Device is where t lives.
func (t *Tensor) Device() *Device { return t.st.dev }

// IsContiguous reports whether the elements lie in row-major order without gaps.
func (t *Tensor) IsContiguous() bool {
	v := t.view()
	return v.Contiguous()
}

// SharesMemory reports whether t and u are views of one storage.
func (t *Tensor) SharesMemory(u *Tensor) bool { return t.st == u.st }

// String describes dtype and shape, not the elements, which may be on a device.
func (t *Tensor) String() string { return fmt.Sprintf("tensor(%s)", describe(t)) }

// Free releases the memory of t and of all its views now. Using them afterwards panics.
// Inside a Scope it is rarely needed.
func (t *Tensor) Free() {
	if t.st.holds(t.gen) {
		t.st.free()
	}
}

func (t *Tensor) view() backend.View {
	return backend.View{Buf: t.st.buf, DType: t.dtype, Offset: t.offset, NDim: t.ndim, Shape: t.shape, Stride: t.stride}
}

// check panics if t is nil, freed, or lives elsewhere than c's ops run. What is away is brought back if it can be.
func (t *Tensor) check(c *Ctx, op string) {
	if t != nil && t.st.away > 0 && t.st.bring != nil && t.gen == t.st.gen {
		t.st.bring()
	}
	switch {
	case t == nil:
		failNil(op, c.where())
	case t.Unloaded():
		c.fail(op, []*Tensor{t}, "used while its memory is unloaded: Reload it first")
	case t.st.buf == nil || t.gen != t.st.gen:
		c.fail(op, []*Tensor{t}, "used after it was freed; it was %s. Return it from its Scope or Keep it",
			t.st.origin())
	case t.st.dev != c.eng.dev:
		c.fail(op, []*Tensor{t}, "lives on %s, the context runs on %s", t.st.dev.Name(), c.eng.dev.Name())
	}
}

// dimIndex resolves a negative dim and refuses one out of range.
func (t *Tensor) dimIndex(c *Ctx, op string, d int) int {
	n := max(t.ndim, 1) // a 0-D tensor accepts 0 and −1, as PyTorch does
	if d < -n || d >= n {
		c.fail(op, []*Tensor{t}, "dim %d: want one in [%d, %d)", d, -n, n)
	}
	if d < 0 {
		d += n
	}
	return d
}
