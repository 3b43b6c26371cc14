// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
)

func adamKernel(d *Device, c *backend.Call) {
	d.flat(c, 1, adamElements32, adamElements64)
}

func adamElements32(t *task, _ *workspace, lo, hi int) {
	c := t.c
	adamOf(c).Moments(
		slice[float32](&c.Out[0])[lo:hi], slice[float32](&c.Out[1])[lo:hi], slice[float32](&c.Out[2])[lo:hi],
		slice[float32](&c.In[0])[lo:hi])
}

func adamElements64(t *task, _ *workspace, lo, hi int) {
	c := t.c
	g := slice[float64](&c.In[0])[lo:hi]
	m, v, u := slice[float64](&c.Out[0])[lo:hi], slice[float64](&c.Out[1])[lo:hi], slice[float64](&c.Out[2])[lo:hi]
	for i, x := range g {
		u[i] = adamDirection(c, &m[i], &v[i], x)
	}
}

// adamOf reads the numbers of the step.
func adamOf(c *backend.Call) vecmath.Adam {
	return vecmath.NewAdam(c.Floats[0], c.Floats[1], c.Floats[2], c.Floats[3], c.Floats[4])
}

// adamDirection updates the moments of one element and returns its direction.
func adamDirection(c *backend.Call, m, v *float64, g float64) float64 {
	b1, b2 := c.Floats[0], c.Floats[1]
	*m = float64(b1**m) + float64((1-b1)*g)
	*v = float64(b2**v) + float64((1-b2)*float64(g*g))
	return float64(*m*(1/c.Floats[3])) / (math.Sqrt(*v*(1/c.Floats[4])) + c.Floats[2])
}

func adamWKernel(d *Device, c *backend.Call) {
	d.flat(c, 1, adamWElements32, adamWElements64)
}

// decayOf is what a step multiplies the parameter by.
func decayOf(c *backend.Call) float64 { return 1 - c.Floats[5]*c.Floats[6] }

func adamWElements32(t *task, _ *workspace, lo, hi int) {
	c := t.c
	adamOf(c).Step(slice[float32](&c.Out[0])[lo:hi], slice[float32](&c.Out[1])[lo:hi], slice[float32](&c.Out[2])[lo:hi],
		slice[float32](&c.In[0])[lo:hi],
		float32(c.Floats[7]), float32(decayOf(c)), float32(-c.Floats[5]))
}

func adamWElements64(t *task, _ *workspace, lo, hi int) {
	c := t.c
	keep, lr, scale := decayOf(c), c.Floats[5], c.Floats[7]
	g := slice[float64](&c.In[0])[lo:hi]
	p, m, v := slice[float64](&c.Out[0])[lo:hi], slice[float64](&c.Out[1])[lo:hi], slice[float64](&c.Out[2])[lo:hi]
	for i, x := range g {
		u := adamDirection(c, &m[i], &v[i], scale*x)
		p[i] = float64(keep*p[i]) + float64(-lr*u)
	}
}
