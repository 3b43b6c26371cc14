// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"context"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
)

// Metric computes figures over an evaluation batch by batch, so that predictions need not
// be kept. Where they fit in memory, a function (WithComputeMetrics) is simpler and works on any number of ranks.
// The names in the result get the prefix of the evaluation.
type Metric interface {
	// Reset begins an evaluation.
	Reset()
	// Update adds a batch. Logits that the model computes in bfloat16 or float16 come as float32. Under
	// prediction_loss_only metrics are left out, except for each LossMetric, whose Update is not called.
	Update(c *nn.Ctx, out models.Output, b *data.Batch) error
	// Compute returns the figures.
	Compute(loss EvalLoss) map[string]float64
}

// metricOf is what errors call a metric.
func metricOf(m Metric) string { return fmt.Sprintf("the metric %T passed to WithMetrics", m) }

// activeMetrics are the metrics of WithMetrics; under prediction_loss_only those that need the loss alone.
func (t *Trainer) activeMetrics() []Metric {
	if !t.args.PredictionLossOnly {
		return t.metrics
	}
	return slices.DeleteFunc(slices.Clone(t.metrics), func(m Metric) bool {
		_, ok := m.(LossMetric)
		return !ok
	})
}

// MergeableMetric is a Metric for several ranks. Each rank sees some of the batches and exports what it gathered; every
// rank then merges all parts, in rank order. Counts are the same on any number of ranks. Sums of floats are not: the
// ranks add them in another order, so the last bits differ. A function of the predictions (WithComputeMetrics) has the
// same bits on any number of ranks.
type MergeableMetric interface {
	Metric
	// ExportPart returns what this rank's calls of Update gathered.
	ExportPart() ([]byte, error)
	// MergeParts replaces the gathered state by the parts of all ranks.
	MergeParts(parts [][]byte) error
}

// MetricRanks is implemented by metrics that need a separate instance for each additional
// rank.
type MetricRanks interface {
	// ForRank returns a fresh metric of the same kind.
	ForRank() Metric
}

// LossMetric is a Metric computed only from the loss, on any number of ranks.
type LossMetric func(loss EvalLoss) map[string]float64

// Reset does nothing, since a LossMetric keeps no state.
func (LossMetric) Reset() {}

// Update does nothing, since a LossMetric keeps no state.
func (LossMetric) Update(*nn.Ctx, models.Output, *data.Batch) error { return nil }

// Compute calls the function.
func (m LossMetric) Compute(loss EvalLoss) map[string]float64 { return m(loss) }

// checkMetrics gives each additional rank its own metrics, and refuses metrics that do
// not work on several ranks.
func (t *Trainer) checkMetrics() error {
	if n := t.acc.LossRanks().WorldSize(); n > 1 { // each rank gets some of the outputs, the first of a pipeline none
		for _, m := range t.activeMetrics() {
			_, loss := m.(LossMetric)
			if _, merges := m.(MergeableMetric); !loss && !merges {
				return fmt.Errorf("trainer: metric %T cannot be computed on %d ranks: want a function "+
					"(WithComputeMetrics), a LossMetric, or a MergeableMetric", m, n)
			}
		}
	}
	for _, rank := range t.replicas {
		rank.metrics = nil
		for _, m := range t.metrics {
			if _, ok := m.(LossMetric); ok {
				rank.metrics = append(rank.metrics, m)
				continue
			}
			per, ok := m.(MetricRanks)
			if _, merges := m.(MergeableMetric); !ok || !merges {
				return fmt.Errorf("trainer: metric %T cannot be computed on %d ranks of one process: want a function "+
					"(WithComputeMetrics), a LossMetric, or MergeableMetric and MetricRanks", m, t.acc.WorldSize())
			}
			blaming(metricOf(m), func() { rank.metrics = append(rank.metrics, per.ForRank()) })
		}
	}
	return nil
}

// mergeMetrics merges the ranks' parts of each metric.
func (t *Trainer) mergeMetrics(ctx context.Context) error {
	if t.acc.LossRanks().WorldSize() == 1 || t.args.PredictionLossOnly {
		return nil
	}
	for _, m := range t.metrics {
		merges, ok := m.(MergeableMetric)
		if !ok {
			continue
		}
		var part []byte
		var err error
		if blaming(metricOf(m), func() { part, err = merges.ExportPart() }); err != nil {
			return fmt.Errorf("trainer: %s: %w", metricOf(m), err)
		}
		parts, err := t.acc.LossRanks().GatherBytes(ctx, part)
		if err != nil {
			return err
		}
		if blaming(metricOf(m), func() { err = merges.MergeParts(parts) }); err != nil {
			return fmt.Errorf("trainer: %s: %w", metricOf(m), err)
		}
	}
	return nil
}
