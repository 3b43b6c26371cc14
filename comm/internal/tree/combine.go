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
			cpu.AddHost(dtype.Elements[float32](dst), dtype.Elements[float32](a), dtype.Elements[float32](b))
			return
		}
		number[float32](dst, a, b, op)
	case dtype.Float64:
		number[float64](dst, a, b, op)
	case dtype.Int32:
		number[int32](dst, a, b, op)
	case dtype.Int64:
		number[int64](dst, a, b, op)
	case dtype.Uint8, dtype.Bool:
		number[uint8](dst, a, b, op)
	default:
		panic(fmt.Sprintf("tree: no accumulator of dtype %v", d))
	}
}

func number[T float32 | float64 | int32 | int64 | uint8](out, left, right []byte, op comm.ReduceOp) {
	dst := dtype.Elements[T](out)
	a, b := dtype.Elements[T](left)[:len(dst)], dtype.Elements[T](right)[:len(dst)]
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
