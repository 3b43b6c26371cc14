// SPDX-License-Identifier: Apache-2.0

// Package vecmath works on float32 slices: arithmetic, exponentials and activations, sums and norms, Adam's step,
// bfloat16. These are the inner loops of the streaming kernels; which loops they make is the backend's business.
//
// An element's result depends on the operands of that element (and the variant of the kernels) alone, wherever it
// stands in a slice. Sums are kept in float64: element i is added to accumulator i mod 16, and the accumulators are
// added as a tree; sums over rows add four elements in float32 before. So the bits depend on the length alone.
//
// AVX2 and AVX-512 give the same bits everywhere but in GELU, which AVX-512 has in pieces. The generic version,
// portable Go that is compiled everywhere, gives them too, except in functions with an exponential, where the others
// fuse multiplication and addition and take eighths of a power of 2 from a table.
//
// It is NOT a mathematics library: float64 code calls package math. And it is independent of tensors: no strides, no
// broadcasting, no workers.
package vecmath

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/kernels"
)

//go:generate sh -c "cd ../_asm && go run ./vecmath"

const (
	// lanes is the number of elements in a block, and of accumulators in a sum.
	lanes = 16
	// several is the number of blocks whose elements sums over rows add before they go into an accumulator.
	several = 4
	// stretch is the number of elements per call of an assembly function, which cannot be preempted: some ten
	// microseconds.
	stretch = 8192
)

// NonTemporalLength is the number of elements from which on a function writes its result by non-temporal stores, as it
// does for less where a parameter nonTemporal is set: such stores bypass the caches, which saves reading the lines that
// are overwritten where a result is larger than the caches. Bits are the same. Other processors see such stores in
// order after a locked instruction, which every mutex and atomic operation is.
const NonTemporalLength = 1 << 18

// separate reports whether dst can be written by non-temporal stores: it is aligned as they need, and none of the
// operands, which are near by already.
func separate(dst *float32, operands ...*float32) bool {
	return uintptr(unsafe.Pointer(dst))%64 == 0 && !slices.Contains(operands, dst)
}

// checkLengths panics unless all slices are as long as dst.
func checkLengths(dst int, others ...int) {
	for _, n := range others {
		if n != dst {
			panic(fmt.Sprintf("vecmath: operands have %d and %d elements: want equally many", dst, n))
		}
	}
}

// element is the address of element i of an array.
func element[T any](p *T, i int) *T {
	return (*T)(unsafe.Add(unsafe.Pointer(p), i*int(unsafe.Sizeof(*p))))
}

// first is the address of a slice's first element; nil if it has none.
func first[T any](s []T) *T { return unsafe.SliceData(s) }

// vectors reports whether the assembly runs. Where it rounds differently, the rest of a vector must go through it too.
func vectors() bool { return kernels.Vectors() != kernels.Generic }
