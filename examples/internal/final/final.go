// SPDX-License-Identifier: Apache-2.0

// Package final evaluates the trained model of an example, and reuses the run's last evaluation if it is current. It is
// no example itself.
package final

import (
	"context"
	"sync"

	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/trainer"
)

// Evaluation is a callback that remembers the last evaluation of a run.
type Evaluation struct {
	callbacks.Base
	mu      sync.Mutex // ranks may be goroutines, which all write what they have alike
	step    int64
	metrics map[string]float64 // nil: there was none
	best    bool               // the run ends with its best model, not with the last
}

// OnEvaluate implements callbacks.Callback.
func (l *Evaluation) OnEvaluate(e *callbacks.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.step, l.metrics, l.best = e.State.GlobalStep, e.Metrics, e.Args.LoadBestModelAtEnd
	return nil
}

// EveryRank implements callbacks.EveryRank: no rank evaluates alone.
func (l *Evaluation) EveryRank() {}

// Silent implements callbacks.Silent.
func (l *Evaluation) Silent() {}

// Of evaluates the final model, unless that is what the run's last evaluation was of.
func (l *Evaluation) Of(ctx context.Context, t *trainer.Trainer) (map[string]float64, error) {
	step := t.State().GlobalStep
	if best := t.State().BestGlobalStep; l.best && best != nil {
		step = *best
	}
	if l.metrics != nil && l.step == step {
		return l.metrics, nil
	}
	return t.EvaluateContext(ctx)
}
