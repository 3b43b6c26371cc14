// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/rng"
)

func stochasticRoundKernel(d *Device, c *backend.Call) {
	t := d.begin(c)
	defer t.end()
	out := c.Out[0].DType
	if !out.IsHalf() {
		d.fault(c, "no kernel for %s", out)
	}
	n := c.Out[0].Numel()
	d.wantVector(c, &c.In[0], dtype.Float32, n, "input")
	d.wantVector(c, &c.Out[0], out, n, "output")
	if out == dtype.BFloat16 {
		t.do(n, elementGrain, stochasticBF16)
	} else {
		t.do(n, elementGrain, stochasticF16)
	}
}

func stochasticBF16(t *task, ws *workspace, lo, hi int) {
	x, out := slice[float32](&t.c.In[0]), slice[dtype.BF16](&t.c.Out[0])
	eachDraw(t, ws, lo, hi, func(bits []uint32, lo, hi int) {
		in, out := x[lo:hi], out[lo:hi]
		for i, r := range bits {
			out[i] = roundBF16By(in[i], r)
		}
	})
}

func stochasticF16(t *task, ws *workspace, lo, hi int) {
	x, out := slice[float32](&t.c.In[0]), slice[dtype.F16](&t.c.Out[0])
	eachDraw(t, ws, lo, hi, func(bits []uint32, lo, hi int) {
		in, out := x[lo:hi], out[lo:hi]
		for i, r := range bits {
			out[i] = roundF16By(in[i], r)
		}
	})
}

// eachDraw calls f with the random bits of elements lo to hi, some at a time.
func eachDraw(t *task, ws *workspace, lo, hi int, f func(bits []uint32, lo, hi int)) {
	ws.reserve(carved(4 * randomBlock))
	bits := carve[uint32](ws, randomBlock)
	for i := lo; i < hi; i += randomBlock {
		n := min(randomBlock, hi-i)
		rng.FillUint32(bits[:n], t.c.Key, uint64(t.c.Ints[0]), uint64(t.c.Ints[1]+i))
		f(bits[:n], i, i+n)
	}
}

const exponentBits = 0x7F800000 // of float32: all ones for what is not finite

// roundBF16By adds random bits below those that stay, and drops what is there.
func roundBF16By(x float32, r uint32) dtype.BF16 {
	b := math.Float32bits(x)
	if b&exponentBits == exponentBits {
		return dtype.ToBF16(x)
	}
	if up := b + r>>16; up&exponentBits != exponentBits {
		b = up
	}
	return dtype.BF16(b >> 16)
}

// roundF16By is roundBF16By for float16, whose exponents end sooner on both sides.
func roundF16By(x float32, r uint32) dtype.F16 {
	const dropped = 13
	b := math.Float32bits(x)
	sign := dtype.F16(b >> 16 & 0x8000)
	switch size := math.Float32frombits(b &^ (1 << 31)); {
	case !(size < 1<<16):
		return dtype.ToF16(x)
	case size < 1.0/(1<<14): // multiples of 2^-24, which are those of their bits
		steps := float64(size) * (1 << 24)
		below := math.Floor(steps)
		if (steps-below)*(1<<32) > float64(r) {
			below++
		}
		return sign | dtype.F16(below)
	}
	up := math.Float32frombits((b + r>>(32-dropped)) &^ (1<<dropped - 1))
	if up >= 1<<16 || up <= -1<<16 {
		up = math.Float32frombits(b &^ (1<<dropped - 1))
	}
	return dtype.ToF16(up)
}
