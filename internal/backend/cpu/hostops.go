// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"fmt"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
)

// AddHost sets dst = x + y on the calling goroutine, with the bits of OpAdd: float32 vectors of one length in host
// memory that belongs to no device. dst may be x or y. It is for pieces so small that a launch would cost more.
func AddHost(dst, x, y []float32) { vecmath.Add(dst, x, y) }

// WidenHost sets dst to the float32 values of src, elements of the half type dt, with the bits of OpCopy; as AddHost.
func WidenHost(dst []float32, src []byte, dt dtype.DType) {
	switch dt {
	case dtype.BFloat16:
		vecmath.WidenBF16(dst, elements[dtype.BF16](src))
	case dtype.Float16:
		vecmath.WidenF16(dst, elements[dtype.F16](src))
	default:
		panic(fmt.Sprintf("cpu: WidenHost of %v: want a half type", dt))
	}
}

// RoundHost sets dst, elements of the half type dt, to src rounded once, with the bits of OpCopy; as AddHost.
func RoundHost(dst []byte, src []float32, dt dtype.DType) {
	switch dt {
	case dtype.BFloat16:
		vecmath.RoundBF16(elements[dtype.BF16](dst), src)
	case dtype.Float16:
		vecmath.RoundF16(elements[dtype.F16](dst), src)
	default:
		panic(fmt.Sprintf("cpu: RoundHost to %v: want a half type", dt))
	}
}

// elements returns bytes as elements of T.
func elements[T any](b []byte) []T {
	var zero T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(zero)))
}
