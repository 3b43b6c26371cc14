// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/backend/cpu"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// combine sets dst[i] = op(a[i], b[i]); dst may be a or b.
func combine(dst, a, b []byte, d dtype.DType, op comm.ReduceOp) {
	switch d {
	case dtype.Float32:
		if op == comm.Sum {
			cpu.AddHost(of[float32](dst), of[float32](a), of[float32](b))
			return
		}
		number(of[float32](dst), of[float32](a), of[float32](b), op)
	case dtype.Float64:
		number(of[float64](dst), of[float64](a), of[float64](b), op)
	case dtype.Int32:
		number(of[int32](dst), of[int32](a), of[int32](b), op)
	case dtype.Int64:
		number(of[int64](dst), of[int64](a), of[int64](b), op)
	case dtype.Uint8, dtype.Bool:
		number(dst, a, b, op)
	default:
		panic(fmt.Sprintf("tree: no accumulator of dtype %v", d))
	}
}

func number[T float32 | float64 | int32 | int64 | uint8](dst, a, b []T, op comm.ReduceOp) {
	a, b = a[:len(dst)], b[:len(dst)]
	switch op {
	case comm.Sum:
		for i := range dst {
			dst[i] = a[i] + b[i]
		}
	case comm.Min:
		for i := range dst {
			dst[i] = min(a[i], b[i])
		}
	case comm.Max:
		for i := range dst {
			dst[i] = max(a[i], b[i])
		}
	case comm.Product:
		for i := range dst {
			dst[i] = a[i] * b[i]
		}
	}
}
