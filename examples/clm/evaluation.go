// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/lockstep-ml/lockstep/callbacks"

// lastEvaluation remembers the run's last evaluation, so that the end does not repeat it.
type lastEvaluation struct {
	callbacks.Base
	done    bool
	step    int64
	metrics map[string]float64
}

// OnEvaluate implements callbacks.Callback.
func (l *lastEvaluation) OnEvaluate(e *callbacks.Event) error {
	l.done, l.step, l.metrics = true, int64(e.State.GlobalStep), e.Metrics
	return nil
}

// EveryRank implements callbacks.EveryRank: no rank evaluates alone.
func (l *lastEvaluation) EveryRank() {}
