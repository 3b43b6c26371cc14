// SPDX-License-Identifier: Apache-2.0

package optim

import "math"

// newWarmupStableDecay: rises to 1 over the warm-up, stays for num_stable_steps, falls over num_decay_steps, and stays
// at min_lr_ratio; rise and fall are scaled to [min_lr_ratio, 1]. In a run shorter than warm-up and decay together the
// decay begins as if it had begun early enough to end with the run, as in HuggingFace's. (Hu et al., MiniCPM, 2024.)
func newWarmupStableDecay(spec *scheduleSpec) Schedule {
	decay := spec.steps("num_decay_steps", 0)
	// negative in runs too short for the decay
	stable := spec.steps("num_stable_steps", spec.total-spec.warmup-decay)
	rise := fall(spec.Text("warmup_type"), 0.5)
	down := fall(spec.Text("decay_type"), spec.number("num_cycles"))
	least := spec.number("min_lr_ratio")
	w := spec.warmup
	return ScheduleFunc(func(step int64) float64 {
		switch {
		case step < w: // a fall in reverse
			return max(0, lift(rise(1-float64(step)/float64(max(1, w))), least))
		case step < w+stable:
			return 1
		case step < w+stable+decay:
			return max(0, lift(down(float64(step-w-stable)/float64(max(1, decay))), least))
		}
		return least
	})
}

// fall returns the function of a shape that goes from 1 at q = 0 to 0 at q = 1; cycles = ½ makes the cosine do so.
func fall(shape string, cycles float64) func(q float64) float64 {
	switch shape {
	case "cosine":
		return func(q float64) float64 { return halfWave(2 * cycles * q) }
	case "1-sqrt":
		return func(q float64) float64 { return 1 - math.Sqrt(q) }
	}
	return func(q float64) float64 { return 1 - q }
}
