// SPDX-License-Identifier: Apache-2.0

package optim

import "math"

// newPolynomial: the learning rate falls as a power of the part of the steps that is left, from the base learning rate
// lr to lr_end, and stays there: ((lr − lr_end)(1 − (s−w)/(T−w))^power + lr_end)/lr.
func newPolynomial(spec *scheduleSpec) Schedule {
	end, power := spec.number("lr_end"), spec.number("power")
	w, total, lr := spec.warmup, spec.total, spec.baseLR
	return afterWarmup(w, func(step int64) float64 {
		if step > total || total <= w {
			return end / lr
		}
		left := 1 - float64(step-w)/float64(total-w)
		return ((lr-end)*math.Pow(left, power) + end) / lr
	})
}
