// SPDX-License-Identifier: Apache-2.0

// Package dtype names the element types of tensors and converts the two
// half-precision formats to and from float32.
//
// It is independent of tensors, devices and file formats; safetensors and the backends map their own names onto DType.
package dtype

import (
	"fmt"
	"unsafe"
)

// DType is the element type of a tensor, known at run time.
type DType uint8

// The supported element types. Invalid is the zero value, so that a forgotten
// dtype is noticed.
const (
	Invalid DType = iota
	Float32
	Float64
	BFloat16
	Float16
	Int32
	Int64
	Uint8
	Bool
	count
)

var table = [count]struct {
	name string
	size int
}{
	Invalid:  {"invalid", 0},
	Float32:  {"float32", 4},
	Float64:  {"float64", 8},
	BFloat16: {"bfloat16", 2},
	Float16:  {"float16", 2},
	Int32:    {"int32", 4},
	Int64:    {"int64", 8},
	Uint8:    {"uint8", 1},
	Bool:     {"bool", 1},
}

// Of is the dtype that the Go type T stores; Invalid: none.
func Of[T any]() DType {
	switch any(*new(T)).(type) {
	case float32:
		return Float32
	case float64:
		return Float64
	case BF16:
		return BFloat16
	case F16:
		return Float16
	case int32:
		return Int32
	case int64:
		return Int64
	case uint8:
		return Uint8
	case bool:
		return Bool
	}
	return Invalid
}

// Elements returns the memory of b as elements of T.
func Elements[T any](b []byte) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(*new(T))))
}

// Bytes is the inverse of Elements.
func Bytes[T any](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}

// All lists every valid dtype, in order.
func All() []DType {
	return []DType{Float32, Float64, BFloat16, Float16, Int32, Int64, Uint8, Bool}
}

// String returns the lower-case name, as PyTorch spells it.
func (d DType) String() string {
	if d >= count {
		return fmt.Sprintf("dtype(%d)", uint8(d))
	}
	return table[d].name
}

// Size is the number of bytes of one element.
func (d DType) Size() int {
	if d >= count {
		return 0
	}
	return table[d].size
}

// IsFloat reports whether d is a floating-point type, the types that can
// carry gradients.
func (d DType) IsFloat() bool { return d >= Float32 && d <= Float16 }

// IsHalf reports whether d is one of the two 16-bit floating-point types.
func (d DType) IsHalf() bool { return d == BFloat16 || d == Float16 }

// IsInt reports whether d is an integer type; Bool is not one.
func (d DType) IsInt() bool { return d >= Int32 && d <= Uint8 }

// Parse returns the dtype with the given name; the error lists the names.
func Parse(name string) (DType, error) {
	for d := Float32; d < count; d++ {
		if table[d].name == name {
			return d, nil
		}
	}
	return Invalid, fmt.Errorf("unknown dtype %q: want one of %v", name, All())
}
