// SPDX-License-Identifier: Apache-2.0

package callbacks

import "github.com/lockstep-ml/lockstep/args"

// Flow turns the strategies of the arguments into flags: HuggingFace's DefaultFlowCallback. Every run has it, first in
// the list.
//
// At the end of a step it asks for a record at every multiple of logging_steps, and at step 1 with logging_first_step;
// for an evaluation at every multiple of eval_steps from step eval_delay on; for a checkpoint at every multiple of
// save_steps. At max_steps it stops the run, and under strategy steps asks for a last evaluation, if eval_delay has
// passed, and a last checkpoint. At the end of an epoch it asks for what has strategy epoch, for an evaluation from
// epoch eval_delay on. The intervals are those of State, where ratios are resolved; an interval of 0 is never.
type Flow struct{ Base }

// EveryRank marks Flow as running on every rank.
func (*Flow) EveryRank() {}

// CallbackName returns HuggingFace's name.
func (*Flow) CallbackName() string { return "DefaultFlowCallback" }

// OnStepEnd sets the flags of strategy steps.
func (*Flow) OnStepEnd(e *Event) error {
	a, s, c := e.Args, e.State, e.Control
	delayed := float64(s.GlobalStep) < a.EvalDelay
	if s.GlobalStep == 1 && a.LoggingFirstStep || a.LoggingStrategy == args.StrategySteps &&
		due(s.GlobalStep, s.LoggingSteps) {
		c.ShouldLog = true
	}
	if a.EvalStrategy == args.StrategySteps && due(s.GlobalStep, s.EvalSteps) && !delayed {
		c.ShouldEvaluate = true
	}
	if a.SaveStrategy == args.StrategySteps && due(s.GlobalStep, s.SaveSteps) {
		c.ShouldSave = true
	}
	if s.GlobalStep >= s.MaxSteps {
		c.ShouldTrainingStop = true
		c.ShouldEvaluate = c.ShouldEvaluate || a.EvalStrategy == args.StrategySteps && !delayed
		c.ShouldSave = c.ShouldSave || a.SaveStrategy == args.StrategySteps
	}
	return nil
}

// OnEpochEnd sets the flags of strategy epoch.
func (*Flow) OnEpochEnd(e *Event) error {
	a, c := e.Args, e.Control
	if a.LoggingStrategy == args.StrategyEpoch {
		c.ShouldLog = true
	}
	if a.EvalStrategy == args.StrategyEpoch && e.State.Epoch >= a.EvalDelay {
		c.ShouldEvaluate = true
	}
	if a.SaveStrategy == args.StrategyEpoch {
		c.ShouldSave = true
	}
	return nil
}

func due(step, interval int64) bool { return interval > 0 && step%interval == 0 }
