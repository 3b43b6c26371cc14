// SPDX-License-Identifier: Apache-2.0

package optim

import "math"

// newCosine: max(0, ½(1 + cos(2πc·p))), p the part of the steps after the warm-up that is done, c = num_cycles. c = ½
// is the half wave from 1 to 0 of Loshchilov and Hutter, SGDR (2017).
func newCosine(spec *scheduleSpec) Schedule {
	cycles := spec.number("num_cycles")
	progress := spec.progress(0)
	return afterWarmup(spec.warmup, func(step int64) float64 {
		return max(0, halfWave(2*cycles*progress(step)))
	})
}

// newCosineWithRestarts: num_cycles half waves from 1 to 0, one after the other; 0 after the end. (SGDR, hard
// restarts.)
func newCosineWithRestarts(spec *scheduleSpec) Schedule {
	cycles := spec.number("num_cycles")
	progress := spec.progress(0)
	return afterWarmup(spec.warmup, func(step int64) float64 {
		p := progress(step)
		if p >= 1 {
			return 0
		}
		return max(0, halfWave(math.Mod(cycles*p, 1)))
	})
}

// newCosineWithMinLR: the cosine schedule scaled to end at a ratio m of the base learning rate instead of 0.
func newCosineWithMinLR(spec *scheduleSpec) Schedule {
	cycles, ratio := spec.number("num_cycles"), spec.minRatio()
	progress := spec.progress(0)
	return afterWarmup(spec.warmup, func(step int64) float64 {
		return max(0, lift(halfWave(2*cycles*progress(step)), ratio))
	})
}

// newCosineWarmupWithMinLR: as cosine_with_min_lr, but one step ahead, so that no step has learning rate 0 and the last
// has the least: step s of the warm-up has factor (s+1)/w, or, with warmup_lr_rate r, r + (1−r)·s/(w−1).
func newCosineWarmupWithMinLR(spec *scheduleSpec) Schedule {
	cycles, ratio := spec.number("num_cycles"), spec.minRatio()
	rate := spec.number("warmup_lr_rate")
	w, progress := spec.warmup, spec.progress(1)
	return ScheduleFunc(func(step int64) float64 {
		switch {
		case step < w && math.IsNaN(rate):
			return float64(step+1) / float64(max(1, w))
		case step < w:
			return rate + (1-rate)*float64(step)/float64(max(1, w-1))
		}
		return max(0, lift(halfWave(2*cycles*progress(step)), ratio))
	})
}

// progress returns the function p(s) = (s − w + ahead) / max(1, T − w).
func (s *scheduleSpec) progress(ahead int64) func(step int64) float64 {
	w, steps := s.warmup, max(1, s.total-s.warmup)
	return func(step int64) float64 { return float64(step-w+ahead) / float64(steps) }
}

// minRatio returns the ratio of the least learning rate to the base learning rate: min_lr_rate, or min_lr divided by
// the base.
func (s *scheduleSpec) minRatio() float64 {
	return s.Number("min_lr_rate", s.number("min_lr")/s.baseLR)
}

// halfWave is ½(1 + cos πx).
func halfWave(x float64) float64 { return 0.5 * (1 + math.Cos(math.Pi*x)) }

// lift maps [0, 1] to [least, 1].
func lift(x, least float64) float64 { return x*(1-least) + least }
