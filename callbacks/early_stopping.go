// SPDX-License-Identifier: Apache-2.0

package callbacks

import (
	"errors"
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/quantity"
)

// EarlyStopping ends the run after Patience evaluations in a row without an improvement of more than Threshold over the
// best before: HuggingFace's EarlyStoppingCallback. It watches metric_for_best_model, in the direction of
// greater_is_better; if the arguments name none, eval_loss. A NaN is no improvement.
type EarlyStopping struct {
	Base
	Patience  int     // evaluations; 0 means 1
	Threshold float64 // 0 or more, in units of the metric

	warned   bool
	failures int
	best     *float64 // of eval_loss, where the arguments watch no metric
}

// CallbackName returns HuggingFace's name.
func (*EarlyStopping) CallbackName() string { return "EarlyStoppingCallback" }

// Silent marks it as printing nothing.
func (*EarlyStopping) Silent() {}

// OnTrainBegin checks the settings: an error says what is missing.
func (s *EarlyStopping) OnTrainBegin(e *Event) error {
	var faults []error
	if e.Args.EvalStrategy == args.StrategyNo {
		faults = append(faults,
			errors.New("eval_strategy is no: want steps or epoch: early stopping needs evaluations"))
	}
	if s.Patience < 0 {
		faults = append(faults, fmt.Errorf("patience is %d: want 0 or more", s.Patience))
	}
	if !(s.Threshold >= 0) {
		faults = append(faults, fmt.Errorf("threshold is %v: want 0 or more", s.Threshold))
	}
	if !e.Args.LoadBestModelAtEnd {
		e.logger().Info("early stopping without load_best_model_at_end keeps the last model, not the best")
	}
	return errors.Join(faults...)
}

// OnEvaluate counts the evaluation and asks for the end of the run after Patience failures. A run without the metric is
// warned of, and not stopped. An evaluation before the first step does not count.
func (s *EarlyStopping) OnEvaluate(e *Event) error {
	name, greater, best := e.Args.BestMetric(), e.Args.BestIsGreater(), e.State.BestMetric
	own := name == ""
	if own {
		name, greater, best = "eval_loss", false, s.best
	}
	value, ok := e.Metrics[name]
	if !ok {
		if !s.warned {
			e.logger().Warn("early stopping is off: the evaluation has no such metric", "metric", name)
		}
		s.warned = true
		return nil
	}
	if e.State.GlobalStep == 0 {
		return nil
	}
	if best == nil || better(value, *best, greater) && math.Abs(value-*best) > s.Threshold {
		s.failures = 0
	} else {
		s.failures++
	}
	if own && finite(value) && (s.best == nil || better(value, *s.best, greater)) {
		s.best = &value
	}
	if s.failures >= max(1, s.Patience) {
		e.Control.StopTraining(s.reason(name, greater, best))
	}
	return nil
}

// reason says what has not happened for too long.
func (s *EarlyStopping) reason(name string, greater bool, best *float64) string {
	side, by := "below", ""
	if greater {
		side = "above"
	}
	if s.Threshold > 0 {
		by = fmt.Sprintf(" by more than %g", s.Threshold)
	}
	evaluations := quantity.Of(s.failures, "evaluation")
	if best == nil { // only NaNs so far
		return fmt.Sprintf("no finite %s in %s", name, evaluations)
	}
	return fmt.Sprintf("no %s %s %s%s in %s", name, side, readable(name, *best), by, evaluations)
}

// ExportState returns the settings, the count of failures and the best value.
func (s *EarlyStopping) ExportState() Exported {
	out := Exported{
		Args:       map[string]any{"early_stopping_patience": s.Patience, "early_stopping_threshold": s.Threshold},
		Attributes: map[string]any{"early_stopping_patience_counter": s.failures},
	}
	if s.best != nil {
		out.Attributes["best"] = *s.best
	}
	return out
}

// ImportState takes up the count and the best value; the settings stay.
func (s *EarlyStopping) ImportState(e Exported) error {
	failures, ok := asFloat(e.Attributes["early_stopping_patience_counter"])
	if !ok || failures < 0 || failures > 1<<53 || failures != math.Trunc(failures) {
		return badState("early_stopping_patience_counter", e.Attributes["early_stopping_patience_counter"],
			"a whole number of 0 or more")
	}
	s.failures, s.best = int(failures), nil
	if v, ok := e.Attributes["best"]; ok {
		best, ok := asFloat(v)
		if !ok {
			return badState("best", v, "a number")
		}
		s.best = &best
	}
	return nil
}
