// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
)

// EvalLoss is the loss of an evaluation: sum and count of the terms over all batches in order.
type EvalLoss struct {
	Sum   float64
	Count float64
}

// Mean is the loss per term, independent of the batch size; NaN if there are no terms.
func (l EvalLoss) Mean() float64 { return l.Sum / l.Count }

// Evaluate runs the model over the evaluation sets, logs eval_loss, speed figures and
// metrics, and returns them. During a run it is an error: callbacks set Control.ShouldEvaluate, and the ranks evaluate
// together, with the weights that are saved.
func (t *Trainer) Evaluate() (map[string]float64, error) {
	return t.EvaluateContext(context.Background())
}

// EvaluateContext is Evaluate with a context that can end it.
func (t *Trainer) EvaluateContext(ctx context.Context) (map[string]float64, error) {
	if t.err != nil {
		return nil, t.err
	}
	if err := t.idle("Evaluate", evaluateInstead); err != nil {
		return nil, err
	}
	if len(t.evals) == 0 {
		return nil, errors.New("trainer: there is no evaluation set: want WithEvalData")
	}
	return t.evaluateSets(ctx, t.evals...)
}

// EvaluateOn evaluates a set that WithEvalData did not name, as HuggingFace's evaluate does with an eval_dataset and a
// metric_key_prefix. Names of its metrics begin with prefix and "_"; "" means "eval". It is logged as every evaluation
// is, and does not count for the best model. During a run WithNamedEvalData evaluates several sets.
func (t *Trainer) EvaluateOn(ctx context.Context, src data.Source, prefix string) (map[string]float64, error) {
	return t.evaluateOn(ctx, evalSet{src: src, key: prefix})
}

// EvaluateIterableOn is EvaluateOn for data without a length.
func (t *Trainer) EvaluateIterableOn(ctx context.Context, src data.IterableSource,
	prefix string) (map[string]float64, error) {
	return t.evaluateOn(ctx, evalSet{stream: src, key: prefix})
}

func (t *Trainer) evaluateOn(ctx context.Context, set evalSet) (map[string]float64, error) {
	switch {
	case t.err != nil:
		return nil, t.err
	case set.src == nil && set.stream == nil:
		return nil, errors.New("trainer: EvaluateOn has no data: want a source")
	}
	if err := t.idle("EvaluateOn", evaluateInstead); err != nil {
		return nil, err
	}
	return t.evaluateSets(ctx, set)
}

func (t *Trainer) evaluateSets(ctx context.Context, sets ...evalSet) (map[string]float64, error) {
	return onEvery(ctx, t, func(rank *Trainer) (map[string]float64, error) { return rank.evaluateAlone(ctx, sets) })
}

// evaluateAlone evaluates outside a training run.
func (t *Trainer) evaluateAlone(ctx context.Context, sets []evalSet) (map[string]float64, error) {
	if err := t.ready(ctx); err != nil {
		return nil, err
	}
	out, err := t.evaluateRank(ctx, sets)
	if err != nil {
		return nil, errors.Join(err, t.callbacks.Close())
	}
	return out, nil
}

// evaluateRank is this rank's part of an evaluation; the result is the same on every rank.
func (t *Trainer) evaluateRank(ctx context.Context, sets []evalSet) (map[string]float64, error) {
	all := map[string]float64{}
	for _, set := range sets {
		m, err := t.evaluateSet(ctx, set)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, m)
	}
	return all, nil
}

// evaluateSet evaluates one set, logs the figures and tells the callbacks.
func (t *Trainer) evaluateSet(ctx context.Context, set evalSet) (map[string]float64, error) {
	metrics, _, err := t.predictionLoop(ctx, set, set.prefix(), false)
	if err != nil {
		return nil, err
	}
	if err := t.record(recordOf(metrics)); err != nil {
		return nil, err
	}
	metrics["epoch"] = t.state.Epoch
	if t.args.IncludeNumInputTokensSeen != args.TokensSeenNo {
		metrics["num_input_tokens_seen"] = float64(t.state.NumInputTokensSeen)
	}
	e := t.event()
	e.Metrics = metrics
	return metrics, t.callbacks.Fire(callbacks.Evaluate, e)
}

// evalMetrics collects the figures of an evaluation, all with the prefix.
func (t *Trainer) evalMetrics(prefix string, loss EvalLoss, labelled bool, computed map[string]float64,
	d time.Duration, pass *evaluation) map[string]float64 {
	out := callbacks.SpeedMetrics(strings.TrimSuffix(prefix, "_"), d, pass.samples, pass.batches, 0)
	if labelled {
		out[prefix+"loss"] = loss.Mean()
	}
	figures := []map[string]float64{computed}
	if labelled {
		figures = append(figures, t.evalFigures(prefix, pass, loss.Count))
	}
	for _, m := range t.activeMetrics() {
		blaming(metricOf(m), func() { figures = append(figures, m.Compute(loss)) })
	}
	for _, f := range figures {
		for k, v := range f {
			out[prefix+strings.TrimPrefix(k, prefix)] = v
		}
	}
	return out
}

// evaluate evaluates during training, until ctx ends, and keeps track of the best.
func (r *run) evaluate(ctx context.Context) error {
	defer r.region("evaluate")()
	if err := r.acc.AverageParameters(r.ctx); err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	if err := r.acc.EvalWeights(r.ctx); err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	records := len(r.state.LogHistory)
	metrics, err := r.evaluateRank(ctx, r.evals)
	failed := is[*accelerate.DataError](err)
	switch {
	case err == nil:
		return r.watchBest(metrics)
	case failed, errors.Is(err, errOtherInterrupted), ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		r.control.ShouldEvaluate = true // a resume begins with this evaluation
		r.state.LogHistory = r.state.LogHistory[:min(records, len(r.state.LogHistory))]
	default:
		return err
	}
	if failed {
		return errors.Join(err, r.saveEarly())
	}
	return r.interrupt(ctx)
}
