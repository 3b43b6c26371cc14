// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// number is a dtype with arithmetic.
type number interface {
	~float32 | ~float64 | ~int32 | ~int64 | ~uint8
}

func addBlock[T number](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x, y := operands2[T](p, n)
	x, y = x[:len(out)], y[:len(out)]
	for i := range out {
		out[i] = x[i] + y[i]
	}
}

func subBlock[T number](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x, y := operands2[T](p, n)
	x, y = x[:len(out)], y[:len(out)]
	for i := range out {
		out[i] = x[i] - y[i]
	}
}

func mulBlock[T number](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x, y := operands2[T](p, n)
	x, y = x[:len(out)], y[:len(out)]
	for i := range out {
		out[i] = x[i] * y[i]
	}
}

func divBlock[T float](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x, y := operands2[T](p, n)
	x, y = x[:len(out)], y[:len(out)]
	for i := range out {
		out[i] = x[i] / y[i]
	}
}

func powBlock[T float](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x, y := operands2[T](p, n)
	x, y = x[:len(out)], y[:len(out)]
	for i := range out {
		out[i] = T(math.Pow(float64(x[i]), float64(y[i])))
	}
}

// maximumBlock gives NaN if either is NaN; Go's max does.
func maximumBlock[T number](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x, y := operands2[T](p, n)
	x, y = x[:len(out)], y[:len(out)]
	for i := range out {
		out[i] = max(x[i], y[i])
	}
}

func minimumBlock[T number](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x, y := operands2[T](p, n)
	x, y = x[:len(out)], y[:len(out)]
	for i := range out {
		out[i] = min(x[i], y[i])
	}
}

func axpbyBlock[T float](c *backend.Call, p *[4]unsafe.Pointer, n int) {
	a, b := T(c.Floats[0]), T(c.Floats[1])
	out, x, y := operands2[T](p, n)
	x, y = x[:len(out)], y[:len(out)]
	for i := range out {
		out[i] = T(a*x[i]) + T(b*y[i])
	}
}

func affineFloatBlock[T float](c *backend.Call, p *[4]unsafe.Pointer, n int) {
	a, b := T(c.Floats[0]), T(c.Floats[1])
	out, x := operands1[T](p, n)
	x = x[:len(out)]
	for i := range out {
		out[i] = T(a*x[i]) + b
	}
}

func affineIntBlock[T int32 | int64](c *backend.Call, p *[4]unsafe.Pointer, n int) {
	a, b := T(c.Ints[0]), T(c.Ints[1])
	out, x := operands1[T](p, n)
	x = x[:len(out)]
	for i := range out {
		out[i] = a*x[i] + b
	}
}

func negBlock[T number](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := operands1[T](p, n)
	x = x[:len(out)]
	for i := range out {
		out[i] = -x[i]
	}
}

func absFloatBlock[T float](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := operands1[T](p, n)
	x = x[:len(out)]
	for i := range out {
		out[i] = T(math.Abs(float64(x[i])))
	}
}

func absIntBlock[T int32 | int64](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := operands1[T](p, n)
	x = x[:len(out)]
	for i := range out {
		out[i] = max(x[i], -x[i])
	}
}

func sqrtBlock[T float](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := operands1[T](p, n)
	x = x[:len(out)]
	for i := range out {
		out[i] = T(math.Sqrt(float64(x[i])))
	}
}

func rsqrtBlock[T float](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := operands1[T](p, n)
	x = x[:len(out)]
	for i := range out {
		out[i] = T(1 / math.Sqrt(float64(x[i])))
	}
}

func powScalarBlock[T float](c *backend.Call, p *[4]unsafe.Pointer, n int) {
	e := c.Floats[0]
	out, x := operands1[T](p, n)
	x = x[:len(out)]
	switch e {
	case 2:
		for i := range out {
			out[i] = x[i] * x[i]
		}
	case 3:
		for i := range out {
			out[i] = T(x[i]*x[i]) * x[i]
		}
	default:
		for i := range out {
			out[i] = T(math.Pow(float64(x[i]), e))
		}
	}
}

func reluBlock[T float](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := operands1[T](p, n)
	x = x[:len(out)]
	for i := range out {
		v := x[i]
		if v < 0 { // a NaN stays
			v = 0
		}
		out[i] = v
	}
}

func reluGradBlock[T float](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, y, dy := operands2[T](p, n)
	y, dy = y[:len(out)], dy[:len(out)]
	for i := range out {
		var v T
		if y[i] > 0 {
			v = dy[i]
		}
		out[i] = v
	}
}

func tanhGradBlock[T float](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, y, dy := operands2[T](p, n)
	y, dy = y[:len(out)], dy[:len(out)]
	for i := range out {
		out[i] = dy[i] * (1 - T(y[i]*y[i]))
	}
}

func sigmoidGradBlock[T float](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, y, dy := operands2[T](p, n)
	y, dy = y[:len(out)], dy[:len(out)]
	for i := range out {
		out[i] = dy[i] * (y[i] * (1 - y[i]))
	}
}

// Comparisons and logic. A bool is a byte, 0 or 1.

func truth(b bool) (v uint8) {
	if b {
		v = 1
	}
	return v
}

func compared[T any](p *[4]unsafe.Pointer, n int) (out []uint8, x, y []T) {
	return unsafe.Slice((*uint8)(p[0]), n), unsafe.Slice((*T)(p[1]), n), unsafe.Slice((*T)(p[2]), n)
}

func eqBlock[T number](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x, y := compared[T](p, n)
	for i := range out {
		out[i] = truth(x[i] == y[i])
	}
}

func neBlock[T number](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x, y := compared[T](p, n)
	for i := range out {
		out[i] = truth(x[i] != y[i])
	}
}

func ltBlock[T number](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x, y := compared[T](p, n)
	for i := range out {
		out[i] = truth(x[i] < y[i])
	}
}

func leBlock[T number](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x, y := compared[T](p, n)
	for i := range out {
		out[i] = truth(x[i] <= y[i])
	}
}

func gtBlock[T number](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x, y := compared[T](p, n)
	for i := range out {
		out[i] = truth(x[i] > y[i])
	}
}

func geBlock[T number](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x, y := compared[T](p, n)
	for i := range out {
		out[i] = truth(x[i] >= y[i])
	}
}

func notBlock(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := operands1[uint8](p, n)
	for i := range out {
		out[i] = truth(x[i] == 0)
	}
}

func andBlock(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x, y := operands2[uint8](p, n)
	for i := range out {
		out[i] = truth(x[i] != 0 && y[i] != 0)
	}
}

func orBlock(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x, y := operands2[uint8](p, n)
	for i := range out {
		out[i] = truth(x[i] != 0 || y[i] != 0)
	}
}
