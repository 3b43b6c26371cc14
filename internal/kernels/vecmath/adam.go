// SPDX-License-Identifier: Apache-2.0

package vecmath

import "math"

// Adam holds the numbers of one step of Adam (Kingma & Ba 2015) as float32 arithmetic uses them.
type Adam struct{ b1, a1, b2, a2, r1, r2, eps float32 }

// NewAdam prepares a step with the decay rates of the moments, ε, and the bias corrections 1−β₁ᵗ and 1−β₂ᵗ.
func NewAdam(beta1, beta2, eps, correction1, correction2 float64) Adam {
	return Adam{b1: float32(beta1), a1: float32(1 - beta1), b2: float32(beta2), a2: float32(1 - beta2),
		r1: float32(1 / correction1), r2: float32(1 / correction2), eps: float32(eps)}
}

// Moments updates m and v from the gradient g and sets u to the direction; u may be g.
func (a Adam) Moments(m, v, u, g []float32) {
	checkLengths(len(g), len(m), len(v), len(u))
	done := adamMomentsVector(len(g), first(m), first(v), first(u), first(g), a.b1, a.a1, a.b2, a.a2, a.r1, a.r2, a.eps)
	for i := done; i < len(g); i++ {
		u[i] = a.direction(m, v, i, g[i])
	}
}

// Step is AdamW's whole step (Loshchilov & Hutter 2019) in one pass: with the gradient clip·g it updates m and v, and
// then sets p = keep·p + rate·u, where keep is 1 − lr·decay and rate is −lr. The bits are those of the passes one after
// the other.
func (a Adam) Step(p, m, v, g []float32, clip, keep, rate float32) {
	checkLengths(len(g), len(p), len(m), len(v))
	done := adamWVector(len(g), first(p), first(m), first(v), first(g), a.b1, a.a1, a.b2, a.a2, a.r1, a.r2, a.eps, clip,
		keep, rate)
	for i := done; i < len(g); i++ {
		u := a.direction(m, v, i, float32(clip*g[i])+0)
		p[i] = float32(float32(keep*p[i])+0) + float32(rate*u)
	}
}

func (a Adam) direction(m, v []float32, i int, g float32) float32 {
	m[i] = float32(a.b1*m[i]) + float32(a.a1*g)
	v[i] = float32(a.b2*v[i]) + float32(a.a2*float32(g*g))
	return float32(m[i]*a.r1) / (float32(math.Sqrt(float64(v[i]*a.r2))) + a.eps)
}
