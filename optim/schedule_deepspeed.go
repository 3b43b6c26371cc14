// SPDX-License-Identifier: Apache-2.0

package optim

import "math"

// DeepSpeed's schedules count the steps that are done before the step before: its engine steps them after the
// optimizer, from −1. So the first step has the least rate, and the second step s = 1 the rate of count 0.

// newDeepSpeedWarmup: WarmupLR. From warmup_min_lr (0) to the base learning rate in w = max(2, warm-up) steps: with
// warmup_type log (default) by ln(i+1)/ln w at count i, with linear by i/w; the base learning rate from then on.
func newDeepSpeedWarmup(spec *scheduleSpec) Schedule {
	return spec.deepSpeedWarmup(func(int64, int64) float64 { return 1 })
}

// newDeepSpeedWarmupDecay: WarmupDecayLR. WarmupLR, and then linearly to warmup_min_lr at count total_num_steps
// (default: the steps of the run).
func newDeepSpeedWarmupDecay(spec *scheduleSpec) Schedule {
	total := float64(spec.steps("total_num_steps", spec.total))
	return spec.deepSpeedWarmup(func(i, w int64) float64 {
		return max(0, (total-float64(i))/max(1, total-float64(w)))
	})
}

// newDeepSpeedWarmupCosine: WarmupCosineLR. From warmup_min_ratio (0) of the base learning rate to all of it as
// WarmupLR does, and then by half a cosine to cos_min_ratio (0.0001) of it at count total_num_steps − 1 (default: the
// steps of the run). The first step has rate 0.
func newDeepSpeedWarmupCosine(spec *scheduleSpec) Schedule {
	total := float64(spec.steps("total_num_steps", spec.total))
	start, end := spec.number("warmup_min_ratio"), spec.number("cos_min_ratio")
	w, gamma := spec.deepSpeedGamma()
	return ScheduleFunc(func(step int64) float64 {
		i := step - 1
		switch {
		case i < 0:
			return 0
		case i < w:
			return lift(gamma(i), start)
		}
		p := min(1, float64(i-w+1)/max(1, total-float64(w)))
		return max(0, lift(halfWave(p), end))
	})
}

// deepSpeedGamma returns the length w of the warm-up and the share of the way at count i < w.
func (s *scheduleSpec) deepSpeedGamma() (w int64, gamma func(i int64) float64) {
	w = max(2, s.warmup)
	if s.Text("warmup_type") == "linear" {
		return w, func(i int64) float64 { return float64(i) / float64(w) }
	}
	inverse := 1 / math.Log(float64(w))
	return w, func(i int64) float64 { return inverse * math.Log(float64(i+1)) }
}

// deepSpeedWarmup rises from warmup_min_lr and hands over to rest from count w on.
func (s *scheduleSpec) deepSpeedWarmup(rest func(i, w int64) float64) Schedule {
	least := s.number("warmup_min_lr")
	if least != 0 {
		least /= s.baseLR
	}
	w, gamma := s.deepSpeedGamma()
	return ScheduleFunc(func(step int64) float64 {
		i := step - 1
		switch {
		case i < 0:
			return least
		case i < w:
			return lift(gamma(i), least)
		}
		return lift(rest(i, w), least)
	})
}
