package cpu

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// The constants of GELU's tanh form (Hendrycks & Gimpel 2016): ½x(1+tanh(u)) = x·σ(2u), 2u = geluA·x + geluB·x³.
const (
	geluA = 1.59576912160573071175978423973752747390343452465714 // 2√(2/π)
	geluB = geluA * 0.044715
)

// Float32 loops: one pass, computed in float64 with the fast functions of exp32.go.

func expBlock32(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := operands1[float32](p, n)
	x = x[:len(out)]
	for i := range out {
		out[i] = float32(exp(float64(x[i])))
	}
}

func tanhBlock32(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := operands1[float32](p, n)
	x = x[:len(out)]
	for i := range out {
		out[i] = float32(tanh(float64(x[i])))
	}
}

func sigmoidBlock32(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := operands1[float32](p, n)
	x = x[:len(out)]
	for i := range out {
		out[i] = float32(1 / (1 + exp(-float64(x[i]))))
	}
}

func siluBlock32(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := operands1[float32](p, n)
	x = x[:len(out)]
	for i := range out {
		v := float64(x[i])
		out[i] = float32(v / (1 + exp(-v)))
	}
}

func siluGradBlock32(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x, dy := operands2[float32](p, n)
	x, dy = x[:len(out)], dy[:len(out)]
	for i := range out {
		v := float64(x[i])
		s := 1 / (1 + exp(-v))
		out[i] = float32(float64(dy[i]) * (s * (1 + v*(1-s))))
	}
}

func erfBlock32(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := operands1[float32](p, n)
	x = x[:len(out)]
	for i := range out {
		out[i] = float32(erf(float64(x[i])))
	}
}

func geluBlock32(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := operands1[float32](p, n)
	x = x[:len(out)]
	for i := range out {
		v := float64(x[i])
		cdf, _ := normalCDF(v)
		out[i] = float32(v * cdf)
	}
}

func geluGradBlock32(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x, dy := operands2[float32](p, n)
	x, dy = x[:len(out)], dy[:len(out)]
	for i := range out {
		v := float64(x[i])
		cdf, density := normalCDF(v)
		out[i] = float32(float64(dy[i]) * (cdf + v*density))
	}
}

func geluTanhBlock32(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := operands1[float32](p, n)
	x = x[:len(out)]
	for i := range out {
		v := float64(x[i])
		out[i] = float32(v / (1 + exp(-v*(geluA+geluB*v*v))))
	}
}

func geluTanhGradBlock32(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x, dy := operands2[float32](p, n)
	x, dy = x[:len(out)], dy[:len(out)]
	for i := range out {
		v := float64(x[i])
		z := v * v
		s := 1 / (1 + exp(-v*(geluA+geluB*z)))
		out[i] = float32(float64(dy[i]) * (s + v*s*(1-s)*(geluA+3*geluB*z)))
	}
}

// The cold functions, and all of float64, by package math: one call per element.

func mapBlock[T float](f func(float64) float64) block {
	return func(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
		out, x := operands1[T](p, n)
		for i := range out {
			out[i] = T(f(float64(x[i])))
		}
	}
}

// mapGradBlock is dy times the derivative f at x.
func mapGradBlock(f func(float64) float64) block {
	return func(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
		out, x, dy := operands2[float64](p, n)
		for i := range out {
			out[i] = dy[i] * f(x[i])
		}
	}
}

func sigmoid64(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
func silu64(x float64) float64    { return x / (1 + math.Exp(-x)) }
func gelu64(x float64) float64    { return x * math.Erfc(-x/math.Sqrt2) / 2 }

func geluTanh64(x float64) float64 { return x * sigmoid64(x*(geluA+geluB*x*x)) }

func siluSlope64(x float64) float64 {
	s := sigmoid64(x)
	return s * (1 + x*(1-s))
}

func geluSlope64(x float64) float64 {
	return math.Erfc(-x/math.Sqrt2)/2 + x*math.Exp(-x*x/2)/(math.Sqrt2*sqrtPi)
}

func geluTanhSlope64(x float64) float64 {
	s := sigmoid64(x * (geluA + geluB*x*x))
	return s + x*s*(1-s)*(geluA+3*geluB*x*x)
}
