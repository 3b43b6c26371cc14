// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
)

// logStep writes a record of the steps since the last one; nothing if there were none.
func (r *run) logStep(context.Context) error {
	if r.logged.Steps == 0 {
		r.control.ShouldLog = false
		return nil
	}
	last := r.progress.LastStep
	rec := callbacks.Record{"learning_rate": last.LearningRate}
	if r.logged.Count > 0 {
		rec["loss"] = r.logged.mean(r.args.LossAverage)
	}
	if !last.Empty {
		rec["grad_norm"] = float64(last.GradNorm)
	}
	if r.acc.Scaler() != nil {
		rec["loss_scale"] = last.LossScale
	}
	for name, n := range r.skips() {
		rec[name] = n
	}
	r.progress.Figures.into(rec, r.args.LossAverage)
	r.logged, r.progress.Figures = lossSum{}, figureSums{}
	return r.record(rec)
}

// record adds epoch, step and token count to a record, keeps it and shows it to the
// callbacks.
func (t *Trainer) record(rec callbacks.Record) error {
	rec["epoch"], rec["step"] = t.state.Epoch, t.state.GlobalStep
	if t.args.IncludeNumInputTokensSeen != args.TokensSeenNo {
		rec["num_input_tokens_seen"] = t.state.NumInputTokensSeen
	}
	if t.logFunc != nil {
		err := called("WithLog", func() error {
			if err := t.logFunc(t.state, rec); err != nil {
				return err
			}
			_, err := rec.MarshalJSON() // else the next checkpoint would fail
			return err
		})
		if err != nil {
			return err
		}
	}
	if t.acc.Rank() != 0 && t.args.NumReplicas > 1 { // the process has them in rank 0's
		t.state.LogHistory = nil
	}
	t.state.LogHistory = append(t.state.LogHistory, rec)
	e := t.event()
	e.Record = rec
	return t.callbacks.Fire(callbacks.Log, e)
}

// finalRecord is the last record: the loss covers the whole run, speeds the time since the resume. It warns of a run
// that trained nothing.
func (r *run) finalRecord() callbacks.Record {
	if r.state.GlobalStep > 0 && r.stepsTaken() == 0 {
		facts := []any{"steps", r.state.GlobalStep}
		left := r.skips()
		for _, name := range slices.Sorted(maps.Keys(left)) {
			facts = append(facts, name, left[name])
		}
		r.jobLog().Warn("no step changed the weights", facts...)
	}
	return recordOf(r.result().Metrics)
}

// recordOf is a record of figures.
func recordOf(metrics map[string]float64) callbacks.Record {
	rec := callbacks.Record{}
	for name, v := range metrics {
		rec[name] = v
	}
	return rec
}

// result summarises the run.
func (r *run) result() *Result {
	p := r.progress
	m := callbacks.SpeedMetrics("train", time.Since(r.started), p.Samples-r.resumedP.Samples,
		r.state.GlobalStep-r.resumed.GlobalStep, p.Tokens-r.resumedP.Tokens)
	loss := p.Loss.mean(r.args.LossAverage)
	if r.state.GlobalStep == 0 {
		loss = 0
	}
	m["train_loss"], m["epoch"] = loss, r.state.Epoch
	m["total_flos"] = r.state.TotalFLOPs
	for name, n := range r.skips() {
		m[name] = float64(n)
	}
	maps.Copy(m, r.used)
	return &Result{GlobalStep: r.state.GlobalStep, TrainingLoss: loss, Metrics: m, StopReason: r.stopReason}
}

// warnSkips warns once of overflows of fp16 in a row, which are more than the search for the scale needs.
func (r *run) warnSkips() {
	if s := r.acc.Scaler(); s != nil && s.Row == manySkips {
		r.jobLog().Warn("fp16: the gradients overflow, and the steps are skipped", "step", r.state.GlobalStep+1,
			"in_a_row", s.Row, "loss_scale", s.Scale)
	}
}

// manySkips is a number of overflows in a row that is worth a warning.
const manySkips = 5

// skips counts the steps that left the weights alone, by the reason; those without any are absent.
func (r *run) skips() map[string]int64 {
	n := map[string]int64{"nonfinite_steps": r.progress.Nonfinite, "empty_steps": r.progress.Empty.Steps}
	if s := r.acc.Scaler(); s != nil {
		n["skipped_steps"] = s.Skipped
	}
	maps.DeleteFunc(n, func(_ string, n int64) bool { return n == 0 })
	return n
}
