// SPDX-License-Identifier: Apache-2.0

package callbacks_test

import (
	"fmt"
	"math"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
)

// loop is a trainer without a model: it fires the events of a run in HuggingFace's order and does what the flags say.
type loop struct {
	args         *args.TrainingArguments
	handler      *callbacks.Handler
	microBatches int64                 // per epoch
	evalLosses   []float64             // of one evaluation after the other, the last again and again
	state        *callbacks.State      // made by run if nil
	control      callbacks.Control     //
	event        callbacks.Event       // what the present step did
	logged       int64                 // the step of the last record
	evaluations  int                   //
	predictions  int64                 // batches in an evaluation
	onStep       func(s *loop) float64 // loss of the present step
	info         *callbacks.RunInfo    //
	checkpoint   string                // of train_end
	metrics      map[string]float64    // of an evaluation, beside its loss
}

func (l *loop) fire(t require.TestingT, k callbacks.Kind, change ...func(*callbacks.Event)) {
	e := l.event
	e.Args, e.State, e.Control = l.args, l.state, &l.control
	for _, c := range change {
		c(&e)
	}
	require.NoError(t, l.handler.Fire(k, &e))
}

// run trains to the end or to where a callback stops it.
func (l *loop) run(t require.TestingT) {
	gas := int64(l.args.GradientAccumulationSteps)
	perEpoch := (l.microBatches + gas - 1) / gas
	maxSteps := int64(l.args.MaxSteps)
	if maxSteps < 0 {
		maxSteps = int64(math.Ceil(l.args.NumTrainEpochs * float64(perEpoch)))
	}
	if l.state == nil {
		l.state = callbacks.NewState(l.args, maxSteps)
	}
	l.fire(t, callbacks.InitEnd)
	l.fire(t, callbacks.TrainBegin, func(e *callbacks.Event) { e.Run = l.info })
	for epoch := int64(0); !l.control.ShouldTrainingStop && l.state.GlobalStep < maxSteps; epoch++ {
		l.fire(t, callbacks.EpochBegin)
		for done := int64(0); done < l.microBatches && !l.control.ShouldTrainingStop && !l.control.ShouldEpochStop; {
			n := min(gas, l.microBatches-done)
			l.step(t, n)
			done += n
			l.state.GlobalStep++
			l.state.Epoch = float64(epoch) + float64(done)/float64(l.microBatches)
			l.fire(t, callbacks.StepEnd)
			l.act(t)
		}
		l.fire(t, callbacks.EpochEnd)
		l.act(t)
	}
	l.record(t, callbacks.Record{"train_loss": 1.5, "train_runtime": 2.0})
	l.control.StopReason = l.control.EndReason(l.state.GlobalStep, l.state.MaxSteps)
	l.fire(t, callbacks.TrainEnd, func(e *callbacks.Event) { e.Checkpoint = l.checkpoint })
	require.NoError(t, l.handler.Close())
}

func (l *loop) step(t require.TestingT, n int64) {
	l.fire(t, callbacks.StepBegin)
	for range n - 1 {
		l.fire(t, callbacks.SubstepEnd)
	}
	l.event.Step = callbacks.StepStats{Loss: 2.5, GradNorm: 0.7, LearningRate: 3e-4, Samples: 8, Tokens: 1000}
	if l.onStep != nil {
		l.event.Step.Loss = l.onStep(l)
	}
	l.fire(t, callbacks.PreOptimizerStep)
	l.fire(t, callbacks.OptimizerStep)
}

// act logs, evaluates and saves as the flags say.
func (l *loop) act(t require.TestingT) {
	if l.control.ShouldLog && l.logged < l.state.GlobalStep {
		l.logged = l.state.GlobalStep
		l.record(t, callbacks.Record{"loss": l.event.Step.Loss, "grad_norm": 0.7, "learning_rate": 3e-4})
	}
	if l.control.ShouldEvaluate {
		loss := 1.0
		if n := len(l.evalLosses); n > 0 {
			loss = l.evalLosses[min(l.evaluations, n-1)]
		}
		l.evaluations++
		for i := range l.predictions {
			l.fire(t, callbacks.PredictionStep, func(e *callbacks.Event) { e.Batch, e.Batches = i+1, l.predictions })
		}
		rec := callbacks.Record{"eval_loss": loss}
		for key, x := range l.metrics {
			rec[key] = x
		}
		l.record(t, rec)
		l.fire(t, callbacks.Evaluate, func(e *callbacks.Event) { e.Metrics = map[string]float64{"eval_loss": loss} })
		if l.args.BestMetric() != "" && l.state.Improves(loss, l.args.BestIsGreater()) {
			l.state.SetBest(loss, true)
		}
	}
	if l.control.ShouldSave {
		l.fire(t, callbacks.Save, func(e *callbacks.Event) {
			e.Checkpoint = fmt.Sprintf("out/checkpoint-%d", l.state.GlobalStep)
		})
	}
}

func (l *loop) record(t require.TestingT, r callbacks.Record) {
	r["epoch"], r["step"] = l.state.Epoch, l.state.GlobalStep
	l.state.LogHistory = append(l.state.LogHistory, r)
	l.fire(t, callbacks.Log, func(e *callbacks.Event) { e.Record = r })
}

// tracer writes down the events that it sees, in short.
type tracer struct {
	events []callbacks.Kind
	steps  map[callbacks.Kind][]int64 // the step counter at each event of a kind
	train  []int64                    // the step of each record of training steps
}

func (tr *tracer) on(e *callbacks.Event) error {
	tr.events = append(tr.events, e.Kind)
	if tr.steps == nil {
		tr.steps = map[callbacks.Kind][]int64{}
	}
	tr.steps[e.Kind] = append(tr.steps[e.Kind], e.State.GlobalStep)
	if e.Record.IsTrain() {
		tr.train = append(tr.train, e.State.GlobalStep)
	}
	return nil
}

func (tr *tracer) String() string {
	var b strings.Builder
	for i, k := range tr.events {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(string(k))
	}
	return b.String()
}

func (tr *tracer) OnInitEnd(e *callbacks.Event) error          { return tr.on(e) }
func (tr *tracer) OnTrainBegin(e *callbacks.Event) error       { return tr.on(e) }
func (tr *tracer) OnEpochBegin(e *callbacks.Event) error       { return tr.on(e) }
func (tr *tracer) OnStepBegin(e *callbacks.Event) error        { return tr.on(e) }
func (tr *tracer) OnSubstepEnd(e *callbacks.Event) error       { return tr.on(e) }
func (tr *tracer) OnPreOptimizerStep(e *callbacks.Event) error { return tr.on(e) }
func (tr *tracer) OnOptimizerStep(e *callbacks.Event) error    { return tr.on(e) }
func (tr *tracer) OnStepEnd(e *callbacks.Event) error          { return tr.on(e) }
func (tr *tracer) OnLog(e *callbacks.Event) error              { return tr.on(e) }
func (tr *tracer) OnPredictionStep(e *callbacks.Event) error   { return tr.on(e) }
func (tr *tracer) OnEvaluate(e *callbacks.Event) error         { return tr.on(e) }
func (tr *tracer) OnSave(e *callbacks.Event) error             { return tr.on(e) }
func (tr *tracer) OnEpochEnd(e *callbacks.Event) error         { return tr.on(e) }
func (tr *tracer) OnTrainEnd(e *callbacks.Event) error         { return tr.on(e) }
func (tr *tracer) OnPredict(e *callbacks.Event) error          { return tr.on(e) }
