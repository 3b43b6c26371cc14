// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/placement"
)

// Entry describes one array of a file.
type Entry struct {
	Name  string
	DType dtype.DType // Invalid if the engine has no such type; Raw names it
	Raw   string      // the format's own name of the element type: "F32", "BF16", "I8", …
	Shape []int       // empty for a scalar
	Begin int64       // offset of the first byte, from the end of the header
	End   int64       // offset behind the last byte
}

// Bytes is the number of bytes of the array's elements.
func (e Entry) Bytes() int64 { return e.End - e.Begin }

// TypeName is the element type as messages name it: the engine's name (float32), or the format's own of a type that the
// engine does not have (I8).
func (e Entry) TypeName() string { return element{raw: e.Raw, dtype: e.DType}.name() }

// Placement is all of the array.
func (e Entry) Placement() placement.Placement { return placement.Whole(e.Name, e.Shape...) }

// Numel is the number of the array's elements.
func (e Entry) Numel() int { return e.Placement().Numel() }

// element is one of the format's types of elements. Their order is the one in which the
// format's own implementation sorts arrays when it writes (last first).
type element struct {
	raw   string
	bits  uint64
	dtype dtype.DType
}

var elements = []element{
	{raw: "BOOL", bits: 8, dtype: dtype.Bool},
	{raw: "F4", bits: 4},
	{raw: "F6_E2M3", bits: 6},
	{raw: "F6_E3M2", bits: 6},
	{raw: "U8", bits: 8, dtype: dtype.Uint8},
	{raw: "I8", bits: 8},
	{raw: "F8_E5M2", bits: 8},
	{raw: "F8_E4M3", bits: 8},
	{raw: "F8_E8M0", bits: 8},
	{raw: "F8_E4M3FNUZ", bits: 8},
	{raw: "F8_E5M2FNUZ", bits: 8},
	{raw: "I16", bits: 16},
	{raw: "U16", bits: 16},
	{raw: "F16", bits: 16, dtype: dtype.Float16},
	{raw: "BF16", bits: 16, dtype: dtype.BFloat16},
	{raw: "I32", bits: 32, dtype: dtype.Int32},
	{raw: "U32", bits: 32},
	{raw: "F32", bits: 32, dtype: dtype.Float32},
	{raw: "C64", bits: 64},
	{raw: "F64", bits: 64, dtype: dtype.Float64},
	{raw: "I64", bits: 64, dtype: dtype.Int64},
	{raw: "U64", bits: 64},
}

// name is Entry.TypeName.
func (el element) name() string {
	if el.dtype == dtype.Invalid {
		return el.raw
	}
	return el.dtype.String()
}

// elementOf finds the type by the format's name; rank is its place in the order.
func elementOf(raw string) (el element, ok bool) {
	i := slices.IndexFunc(elements, func(e element) bool { return e.raw == raw })
	if i < 0 {
		return element{}, false
	}
	return elements[i], true
}

// rankOf is the place in the order of the element type that d is written as.
func rankOf(d dtype.DType) (rank int, ok bool) {
	if d == dtype.Invalid {
		return 0, false
	}
	rank = slices.IndexFunc(elements, func(e element) bool { return e.dtype == d })
	return rank, rank >= 0
}

// size is the number of bytes of an array, checked against overflow at each factor.
func (el element) size(shape []int) (int64, error) {
	n := el.bits
	empty := slices.Contains(shape, 0)
	for _, s := range shape {
		if s < 0 {
			return 0, fmt.Errorf("shape %v has a negative size", shape)
		}
		hi, lo := bits.Mul64(n, uint64(s))
		if hi != 0 || lo > math.MaxInt64 {
			if empty {
				continue // the product is 0 in the end
			}
			return 0, fmt.Errorf("shape %v of %s has more bytes than an int64 counts", shape, el.name())
		}
		n = lo
	}
	if empty {
		return 0, nil
	}
	if n%8 != 0 {
		return 0, fmt.Errorf("shape %v of %s is not a whole number of bytes", shape, el.name())
	}
	return int64(n / 8), nil
}
