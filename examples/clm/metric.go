// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"

	"github.com/lockstep-ml/lockstep/trainer"
)

// textMetric adds perplexity, per token, and nats per byte, which does not depend on the
// tokenizer.
func textMetric(bytes int64) trainer.LossMetric {
	return func(loss trainer.EvalLoss) map[string]float64 {
		return map[string]float64{"perplexity": math.Exp(loss.Mean()),
			"nats_per_byte": loss.Sum / float64(max(bytes, 1))}
	}
}
