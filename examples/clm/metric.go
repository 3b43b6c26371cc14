package main

import (
	"math"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/trainer"
)

// textMetric adds perplexity, per token, and nats per byte, which does not depend on the
// tokenizer.
type textMetric struct{ bytes int64 }

// Reset has nothing to forget.
func (textMetric) Reset() {}

// Update has nothing to gather: the loss is enough.
func (textMetric) Update(*nn.Ctx, models.Output, *data.Batch) error { return nil }

// Compute derives the figures from the loss.
func (m textMetric) Compute(loss trainer.EvalLoss) map[string]float64 {
	return map[string]float64{"perplexity": math.Exp(loss.Mean()), "nats_per_byte": loss.Sum / float64(max(m.bytes, 1))}
}
