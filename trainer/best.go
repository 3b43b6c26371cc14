// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/args"
)

// watchBest keeps the best value of the watched metric, and shows the metric to the schedule. An evaluation before the
// first step is no candidate.
func (r *run) watchBest(metrics map[string]float64) error {
	name := r.args.BestMetric()
	if name == "" {
		return nil
	}
	v, ok := metrics[name]
	if !ok {
		return r.noSuchMetric(slices.Sorted(maps.Keys(metrics)))
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		r.jobLog().Warn("metric_for_best_model is not finite: this evaluation is not the best",
			"metric", name, "value", v, "step", r.state.GlobalStep)
	}
	if r.state.GlobalStep > 0 && r.state.Improves(v, r.args.BestIsGreater()) {
		r.state.SetBest(v, r.args.SaveStrategy != args.StrategyNo)
		if r.args.SaveStrategy == args.StrategyBest {
			r.control.ShouldSave = true
		}
	}
	return r.observe(v)
}

// checkBest refuses a metric_for_best_model that no evaluation can have, before training.
// The names of metrics from WithMetrics and WithComputeMetrics are only known after the first evaluation.
func (t *Trainer) checkBest() error {
	name := t.args.BestMetric()
	if name == "" || len(t.evals) == 0 || len(t.activeMetrics()) > 0 || t.compute != nil && !t.args.PredictionLossOnly {
		return nil
	}
	var known []string
	for _, set := range t.evals {
		for _, key := range []string{"loss", "runtime", "samples_per_second", "steps_per_second"} {
			known = append(known, set.prefix()+key)
		}
	}
	if !slices.Contains(known, name) {
		return t.noSuchMetric(known)
	}
	return nil
}

func (t *Trainer) noSuchMetric(known []string) error {
	return fmt.Errorf("trainer: metric_for_best_model = %q: the evaluation has no %s: want one of %s",
		t.args.MetricForBestModel, t.args.BestMetric(), strings.Join(known, ", "))
}

// loadBest loads the best checkpoint's weights if asked to.
func (r *run) loadBest() error {
	if !r.args.LoadBestModelAtEnd {
		return nil
	}
	best := r.state.BestModelCheckpoint
	if best == nil {
		r.jobLog().Warn("load_best_model_at_end: no checkpoint was saved at the best evaluation: the last weights " +
			"are kept")
		return nil
	}
	path, err := r.checkpointer().ReadBest(r.ctx, *best)
	if err != nil {
		return fmt.Errorf("trainer: load_best_model_at_end: %w", err)
	}
	r.jobLog().Info("loaded the best model", "checkpoint", path, "metric", r.args.BestMetric(), "value",
		*r.state.BestMetric)
	return nil
}
