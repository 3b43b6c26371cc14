// SPDX-License-Identifier: Apache-2.0

package commtest

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// Combine is the specification of a reduction, computed serially: per element, partners at distance 1, 2, 4, …; one
// without a partner is carried up. inputs are the ranks' buffers in rank order.
func Combine(inputs [][]byte, d dtype.DType, op comm.ReduceOp) []byte {
	same := func(b []byte) []byte { return append(comm.Aligned(len(b))[:0], b...) }
	switch d {
	case dtype.Float32:
		return serial[float32](inputs, op, same, same)
	case dtype.Float64:
		return serial[float64](inputs, op, same, same)
	case dtype.BFloat16:
		return serial[float32](inputs, op, convert(dtype.BF16.Float32), convert(dtype.ToBF16))
	case dtype.Float16:
		return serial[float32](inputs, op, convert(dtype.F16.Float32), convert(dtype.ToF16))
	case dtype.Int32:
		return serial[int32](inputs, op, same, same)
	case dtype.Int64:
		return serial[int64](inputs, op, same, same)
	case dtype.Uint8, dtype.Bool:
		return serial[uint8](inputs, op, same, same)
	}
	panic(fmt.Sprintf("commtest: no oracle for %v", d))
}

// number is a type that values are combined in.
type number interface {
	float32 | float64 | int32 | int64 | uint8
}

// serial combines in type T; into makes a copy of that type, from turns the result back.
func serial[T number](inputs [][]byte, op comm.ReduceOp, into, from func([]byte) []byte) []byte {
	rows := make([][]T, len(inputs))
	for r, in := range inputs {
		rows[r] = dtype.Elements[T](into(in))
	}
	for distance := 1; distance < len(rows); distance *= 2 {
		for r := 0; r+distance < len(rows); r += 2 * distance {
			combine(rows[r], rows[r+distance], op)
		}
	}
	return from(dtype.Bytes(rows[0]))
}

// combine sets a to its combination with b.
func combine[T number](a, b []T, op comm.ReduceOp) {
	switch op {
	case comm.Sum:
		for i := range a {
			a[i] += b[i]
		}
	case comm.Product:
		for i := range a {
			a[i] *= b[i]
		}
	case comm.Min:
		for i := range a {
			a[i] = min(a[i], b[i])
		}
	case comm.Max:
		for i := range a {
			a[i] = max(a[i], b[i])
		}
	}
}

// convert returns a function that converts bytes of elements, one by one.
func convert[From, To any](value func(From) To) func([]byte) []byte {
	return func(b []byte) []byte {
		from := dtype.Elements[From](b)
		to := make([]To, len(from))
		for i, v := range from {
			to[i] = value(v)
		}
		return dtype.Bytes(to)
	}
}

var magnitudes = [...]float64{1e-4, 1e-3, 1e-2, 1e-1, 1, 1e1, 1e2}

// period is after how many elements those of fill come again: a prime, so that no chunk of an engine is like another.
const period = 10_007

// fill writes random elements over many magnitudes, so that the order of additions shows; a zero of each sign is among
// them, NaN and infinity are not.
func fill(b []byte, d dtype.DType, rng *rand.Rand) {
	size := d.Size()
	first := min(len(b), period*size)
	for i := 0; i < first; i += size {
		sign := float64(1 - 2*rng.IntN(2))
		x := sign * (1 + rng.Float64()) * magnitudes[rng.IntN(len(magnitudes))]
		if rng.IntN(50) == 0 {
			x = math.Copysign(0, sign)
		}
		set(b[i:], d, x, rng.Uint64())
	}
	for done := first; done > 0 && done < len(b); done *= 2 {
		copy(b[done:], b[:done])
	}
}

// set writes one element: x, or the bits of an integer.
func set(b []byte, d dtype.DType, x float64, bits uint64) {
	ne := binary.NativeEndian
	switch d {
	case dtype.Float32:
		ne.PutUint32(b, math.Float32bits(float32(x)))
	case dtype.BFloat16:
		ne.PutUint16(b, uint16(dtype.ToBF16(float32(x))))
	case dtype.Float16:
		ne.PutUint16(b, uint16(dtype.ToF16(float32(x))))
	case dtype.Float64:
		ne.PutUint64(b, math.Float64bits(x))
	case dtype.Int32:
		ne.PutUint32(b, uint32(bits))
	case dtype.Int64:
		ne.PutUint64(b, bits)
	case dtype.Bool:
		b[0] = byte(bits & 1)
	default:
		b[0] = byte(bits)
	}
}
