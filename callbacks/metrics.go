// SPDX-License-Identifier: Apache-2.0

package callbacks

import (
	"math"
	"time"
)

// SpeedMetrics returns HuggingFace's figures of speed for a split (train, eval, test): <split>_runtime in seconds,
// rounded to four decimals, and <split>_samples_per_second, <split>_steps_per_second and <split>_tokens_per_second,
// rounded to three. A count of 0 leaves its rate out, and a runtime of 0 all rates. It is for package trainer.
func SpeedMetrics(split string, runtime time.Duration, samples, steps, tokens int64) map[string]float64 {
	seconds := runtime.Seconds()
	out := map[string]float64{split + "_runtime": math.Round(seconds*1e4) / 1e4}
	if seconds == 0 {
		return out
	}
	for name, n := range map[string]int64{"samples": samples, "steps": steps, "tokens": tokens} {
		if n > 0 {
			out[split+"_"+name+"_per_second"] = round3(float64(n) / seconds)
		}
	}
	return out
}

func round3(x float64) float64 { return math.Round(x*1e3) / 1e3 }
