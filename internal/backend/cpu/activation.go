// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
)

// The constants of GELU's tanh form (Hendrycks & Gimpel 2016): ½x(1+tanh(u)) = x·σ(2u), 2u = geluA·x + geluB·x³.
const (
	geluA = 1.59576912160573071175978423973752747390343452465714 // 2√(2/π)
	geluB = geluA * 0.044715
)

// Float32 loops: package vecmath's, and erf, computed in float64.

// vector1 is the block function of a function with one input.
func vector1(f func(dst, x []float32)) block {
	return func(_ *backend.Call, p *[4]unsafe.Pointer, n int) { f(operands1[float32](p, n)) }
}

// vector2 is the block function of a function with two inputs, as a gradient of x and dy.
func vector2(f func(dst, x, y []float32)) block {
	return func(_ *backend.Call, p *[4]unsafe.Pointer, n int) { f(operands2[float32](p, n)) }
}

func expBlock32(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := operands1[float32](p, n)
	vecmath.Exp(out, x, 0)
}

func axpbyBlock32(c *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x, y := operands2[float32](p, n)
	vecmath.Axpby(out, float32(c.Floats[0]), x, float32(c.Floats[1]), y)
}

func affineBlock32(c *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := operands1[float32](p, n)
	vecmath.Affine(out, x, float32(c.Floats[0]), float32(c.Floats[1]))
}

func erfBlock32(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := operands1[float32](p, n)
	x = x[:len(out)]
	for i := range out {
		out[i] = float32(erf(float64(x[i])))
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

func swigluBlock64(_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, gate, up := operands2[float64](p, n)
	for i := range out {
		out[i] = silu64(gate[i]) * up[i]
	}
}

func swigluGradKernel(d *Device, c *backend.Call) { d.flat(c, 3, swigluGrad32, swigluGrad64) }

// swigluGradFlat is kernel.flat.
func swigluGradFlat(*backend.Call) flatBlock {
	return func(_ *backend.Call, p *[flatOperands]unsafe.Pointer, n int) {
		vecmath.SwiGLUGrad(floats(p[0], n), floats(p[1], n), floats(p[2], n), floats(p[3], n), floats(p[4], n))
	}
}

func swigluGrad32(t *task, _ *workspace, lo, hi int) {
	c := t.c
	vecmath.SwiGLUGrad(slice[float32](&c.Out[0])[lo:hi], slice[float32](&c.Out[1])[lo:hi],
		slice[float32](&c.In[0])[lo:hi], slice[float32](&c.In[1])[lo:hi], slice[float32](&c.In[2])[lo:hi])
}

func swigluGrad64(t *task, _ *workspace, lo, hi int) {
	c := t.c
	gate, up, dy := slice[float64](&c.In[0]), slice[float64](&c.In[1]), slice[float64](&c.In[2])
	dgate, dup := slice[float64](&c.Out[0]), slice[float64](&c.Out[1])
	for i := lo; i < hi; i++ {
		dgate[i], dup[i] = dy[i]*up[i]*siluSlope64(gate[i]), dy[i]*silu64(gate[i])
	}
}

var geluTanhGrads = blocks{f32: vector2(vecmath.GELUTanhGrad), f64: mapGradBlock(geluTanhSlope64)}

// geluTanhGradKernel computes the gradient alone, or what GELU made of x once more with it.
func geluTanhGradKernel(d *Device, c *backend.Call) {
	if c.NOut > 1 {
		d.flat(c, 2, geluTanhBoth32, geluTanhBoth64)
		return
	}
	launchBlocks(d, c, 2, &geluTanhGrads, c.In[0].DType)
}

// geluTanhGradFlat is kernel.flat.
func geluTanhGradFlat(c *backend.Call) flatBlock {
	if c.NOut > 1 {
		return func(_ *backend.Call, p *[flatOperands]unsafe.Pointer, n int) {
			vecmath.GELUTanhBoth(floats(p[1], n), floats(p[0], n), floats(p[2], n), floats(p[3], n))
		}
	}
	return func(_ *backend.Call, p *[flatOperands]unsafe.Pointer, n int) {
		vecmath.GELUTanhGrad(floats(p[0], n), floats(p[1], n), floats(p[2], n))
	}
}

func floats(p unsafe.Pointer, n int) []float32 { return unsafe.Slice((*float32)(p), n) }

func geluTanhBoth32(t *task, _ *workspace, lo, hi int) {
	c := t.c
	vecmath.GELUTanhBoth(slice[float32](&c.Out[1])[lo:hi], slice[float32](&c.Out[0])[lo:hi],
		slice[float32](&c.In[0])[lo:hi], slice[float32](&c.In[1])[lo:hi])
}

func geluTanhBoth64(t *task, _ *workspace, lo, hi int) {
	c := t.c
	x, dy, dx, y := slice[float64](&c.In[0]), slice[float64](&c.In[1]), slice[float64](&c.Out[0]),
		slice[float64](&c.Out[1])
	for i := lo; i < hi; i++ {
		y[i], dx[i] = geluTanh64(x[i]), dy[i]*geluTanhSlope64(x[i])
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
