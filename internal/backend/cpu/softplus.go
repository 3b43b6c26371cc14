// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
)

// The activations with attributes, and binary cross entropy. All that grows is e^(−|x|), so that nothing overflows.

func leakyReLUBlock[T float](c *backend.Call, p *[4]unsafe.Pointer, n int) {
	slope := T(c.Floats[0])
	out, x := operands1[T](p, n)
	x = x[:len(out)]
	for i := range out {
		v := x[i]
		if !(v > 0) { // a NaN stays
			v *= slope
		}
		out[i] = v
	}
}

func leakyReLUGradBlock[T float](c *backend.Call, p *[4]unsafe.Pointer, n int) {
	slope := T(c.Floats[0])
	out, x, dy := operands2[T](p, n)
	x, dy = x[:len(out)], dy[:len(out)]
	for i := range out {
		v := dy[i]
		if !(x[i] > 0) {
			v *= slope
		}
		out[i] = v
	}
}

func eluBlock[T float](c *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x := operands1[T](p, n)
	x = x[:len(out)]
	for i := range out {
		v := x[i]
		if !(v > 0) {
			v = T(c.Floats[0] * math.Expm1(float64(v)))
		}
		out[i] = v
	}
}

func eluGradBlock[T float](c *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, x, dy := operands2[T](p, n)
	x, dy = x[:len(out)], dy[:len(out)]
	for i := range out {
		v := dy[i]
		if !(x[i] > 0) {
			v = T(float64(v) * c.Floats[0] * math.Exp(float64(x[i])))
		}
		out[i] = v
	}
}

// decays is how many e^(−|x|) are computed at a time.
const decays = 256

// decay sets e[i] = e^(−|scale·x[i]|).
func decay(e *[decays]float32, x []float32, scale float32) {
	for i, v := range x {
		e[i] = -float32(math.Abs(float64(scale * v)))
	}
	vecmath.Exp(e[:len(x)], e[:len(x)], 0)
}

// log1p is ln(1+e) for 0 ≤ e ≤ 1 to 2e-9, by 2·artanh(e/(2+e)).
func log1p(e float64) float64 {
	s := e / (2 + e)
	z := s * s
	return 2 * s * (1 + z*(1./3+z*(1./5+z*(1./7+z*(1./9+z*(1./11+z*(1./13+z*(1./15))))))))
}

func softplusBlock32(c *backend.Call, p *[4]unsafe.Pointer, n int) {
	beta, threshold := c.Floats[0], c.Floats[1]
	out, x := operands1[float32](p, n)
	var e [decays]float32
	for len(x) > 0 {
		m := min(len(x), decays)
		decay(&e, x[:m], float32(beta))
		for i, v := range x[:m] {
			if s := beta * float64(v); !(s > threshold) {
				v = float32((max(s, 0) + log1p(float64(e[i]))) / beta)
			}
			out[i] = v
		}
		out, x = out[m:], x[m:]
	}
}

func softplusBlock64(c *backend.Call, p *[4]unsafe.Pointer, n int) {
	beta, threshold := c.Floats[0], c.Floats[1]
	out, x := operands1[float64](p, n)
	for i, v := range x {
		if s := beta * v; !(s > threshold) {
			v = (max(s, 0) + math.Log1p(math.Exp(-math.Abs(s)))) / beta
		}
		out[i] = v
	}
}

func softplusGradBlock32(c *backend.Call, p *[4]unsafe.Pointer, n int) {
	beta, threshold := c.Floats[0], c.Floats[1]
	out, x, dy := operands2[float32](p, n)
	var e [decays]float32
	for len(x) > 0 {
		m := min(len(x), decays)
		decay(&e, x[:m], float32(beta))
		for i, v := range x[:m] {
			g := dy[i]
			if s := beta * float64(v); !(s > threshold) {
				up, _ := logistic(s, float64(e[i]))
				g = float32(float64(g) * up)
			}
			out[i] = g
		}
		out, x, dy = out[m:], x[m:], dy[m:]
	}
}

func softplusGradBlock64(c *backend.Call, p *[4]unsafe.Pointer, n int) {
	beta, threshold := c.Floats[0], c.Floats[1]
	out, x, dy := operands2[float64](p, n)
	for i, v := range x {
		g := dy[i]
		if s := beta * v; !(s > threshold) {
			up, _ := logistic(s, math.Exp(-math.Abs(s)))
			g *= up
		}
		out[i] = g
	}
}

// logistic is σ(x) and σ(−x), given e = e^(−|x|).
func logistic(x, e float64) (up, down float64) {
	up, down = 1/(1+e), e/(1+e)
	if x < 0 {
		up, down = down, up
	}
	return up, down
}

var (
	bceBlocks      = blocks{f32: bceBlock32(bceLoss32), f64: bceBlock64(bceLoss64)}
	bceSlopeBlocks = blocks{f32: bceBlock32(bceSlope), f64: bceBlock64(bceSlope)}
)

func bceKernel(d *Device, c *backend.Call) { launchBlocks(d, c, c.NIn, &bceBlocks, c.In[0].DType) }

func bceSlopeKernel(d *Device, c *backend.Call) {
	launchBlocks(d, c, c.NIn, &bceSlopeBlocks, c.In[0].DType)
}

// bceTerm is a function of a logit x, a target y, the weight p of its positive part, and e = e^(−|x|).
type bceTerm func(x, y, p, e float64) float64

func bceLoss32(x, y, p, e float64) float64 { return bceLoss(x, y, p, log1p(e)) }
func bceLoss64(x, y, p, e float64) float64 { return bceLoss(x, y, p, math.Log1p(e)) }

// bceLoss takes the common part of ln(1+e^x) and ln(1+e^−x).
func bceLoss(x, y, p, common float64) float64 {
	return p*y*(common+max(-x, 0)) + (1-y)*(common+max(x, 0))
}

func bceSlope(x, y, p, e float64) float64 {
	up, down := logistic(x, e)
	return (1-y)*up - p*y*down
}

func bceBlock32(f bceTerm) block {
	return func(c *backend.Call, p *[4]unsafe.Pointer, n int) {
		out, x, y := operands2[float32](p, n)
		weight := bceWeight[float32](c, p, n)
		var e [decays]float32
		for first := 0; first < n; first += decays {
			m := min(n-first, decays)
			decay(&e, x[first:][:m], 1)
			for k := range m {
				i, w := first+k, 1.
				if weight != nil {
					w = float64(weight[i])
				}
				out[i] = float32(f(float64(x[i]), float64(y[i]), w, float64(e[k])))
			}
		}
	}
}

func bceBlock64(f bceTerm) block {
	return func(c *backend.Call, p *[4]unsafe.Pointer, n int) {
		out, x, y := operands2[float64](p, n)
		weight := bceWeight[float64](c, p, n)
		for i := range n {
			w := 1.
			if weight != nil {
				w = weight[i]
			}
			out[i] = f(x[i], y[i], w, math.Exp(-math.Abs(x[i])))
		}
	}
}

// bceWeight is the optional third input.
func bceWeight[T float](c *backend.Call, p *[4]unsafe.Pointer, n int) []T {
	if c.NIn < 3 {
		return nil
	}
	return unsafe.Slice((*T)(p[3]), n)
}
