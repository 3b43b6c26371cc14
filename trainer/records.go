// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"maps"
	"math"
	"time"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
)

// logStep writes a record of the steps since the last one; nothing if there were none.
func (r *run) logStep() error {
	if r.logged.Steps == 0 {
		r.control.ShouldLog = false
		return nil
	}
	last := r.progress.LastStep
	rec := callbacks.Record{"loss": r.logged.mean(), "grad_norm": float64(last.GradNorm),
		"learning_rate": last.LearningRate}
	if r.progress.Nonfinite > 0 {
		rec["nonfinite_steps"] = r.progress.Nonfinite
	}
	r.logged = lossSum{}
	return r.record(rec)
}

// record adds epoch, step and token count to a record, keeps it and shows it to the
// callbacks.
func (t *Trainer) record(rec callbacks.Record) error {
	rec["epoch"], rec["step"] = t.state.Epoch, t.state.GlobalStep
	if t.args.IncludeNumInputTokensSeen == args.TokensSeenAll {
		rec["num_input_tokens_seen"] = t.state.NumInputTokensSeen
	}
	if t.acc.Rank() != 0 && t.args.NumReplicas > 1 { // the process has them in rank 0's
		t.state.LogHistory = nil
	}
	t.state.LogHistory = append(t.state.LogHistory, rec)
	e := t.event()
	e.Record = rec
	return t.callbacks.Fire(callbacks.Log, e)
}

// finalRecord is the last record: the loss covers the whole run, speeds the time since
// the resume.
func (r *run) finalRecord() callbacks.Record {
	rec := callbacks.Record{}
	for k, v := range r.result().Metrics {
		rec[k] = v
	}
	return rec
}

// result summarises the run.
func (r *run) result() *Result {
	p := r.progress
	m := callbacks.SpeedMetrics("train", time.Since(r.started), p.Samples-r.resumedP.Samples,
		r.state.GlobalStep-r.resumed.GlobalStep, p.Tokens-r.resumedP.Tokens)
	loss := p.Loss.mean()
	if p.Loss.Count == 0 && p.Nonfinite > 0 {
		loss = math.NaN()
	}
	m["train_loss"], m["epoch"] = loss, r.state.Epoch
	m["total_flos"] = r.state.TotalFLOPs
	if p.Nonfinite > 0 {
		m["nonfinite_steps"] = float64(p.Nonfinite)
	}
	maps.Copy(m, r.memoryUsed)
	return &Result{GlobalStep: r.state.GlobalStep, TrainingLoss: loss, Metrics: m, StopReason: r.stopReason}
}
