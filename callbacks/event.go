// SPDX-License-Identifier: Apache-2.0

package callbacks

import (
	"context"
	"log/slog"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/trace"
)

// Kind names an event; the text is HuggingFace's method name without its "on_".
type Kind string

// The events, in the order in which a run meets them first. There is no push_begin: nothing is uploaded.
const (
	InitEnd    Kind = "init_end"    // the trainer is built
	TrainBegin Kind = "train_begin" // before the first epoch; clears Control.ShouldTrainingStop
	EpochBegin Kind = "epoch_begin" // clears Control.ShouldEpochStop
	// before the first micro-batch of a step; clears ShouldLog, ShouldEvaluate, ShouldSave
	StepBegin  Kind = "step_begin"
	SubstepEnd Kind = "substep_end" // after each micro-batch of a step but the last
	// after the backward passes, before the optimizer; gradients are complete and not clipped yet. Loss, norm and
	// factor of the step are still on the device: see Event.Await.
	PreOptimizerStep Kind = "pre_optimizer_step"
	// after the optimizer, before the schedule and the clearing of gradients
	OptimizerStep  Kind = "optimizer_step"
	StepEnd        Kind = "step_end"        // after the step counters moved on
	Log            Kind = "log"             // a record was written; clears ShouldLog
	PredictionStep Kind = "prediction_step" // after each batch of an evaluation or prediction
	Evaluate       Kind = "evaluate"        // after an evaluation; clears ShouldEvaluate
	Save           Kind = "save"            // after a checkpoint; clears ShouldSave
	EpochEnd       Kind = "epoch_end"       //
	TrainEnd       Kind = "train_end"       // after the last record, and after the best model was loaded
	Predict        Kind = "predict"         // after a prediction
)

// Kinds returns all events in the order of the constants.
func Kinds() []Kind {
	return []Kind{InitEnd, TrainBegin, EpochBegin, StepBegin, SubstepEnd, PreOptimizerStep, OptimizerStep, StepEnd, Log,
		PredictionStep, Evaluate, Save,
		EpochEnd, TrainEnd, Predict}
}

// Event is the argument of a callback. Args, State and Control are always set, the other fields with the events named.
type Event struct {
	Kind    Kind
	Args    *args.TrainingArguments
	State   *State
	Control *Control
	Model   nn.Module // the model being trained; nil where a program has none

	// Log is the run's logger, at the level of log_level, which writes above a progress bar. Handler sets it.
	Log *slog.Logger

	Run  *RunInfo  // train_begin: what is about to run; nil where a program does not say
	Step StepStats // pre_optimizer_step, optimizer_step, step_end: the step under way or just done
	// Await waits for the device and completes Step with Loss, GradNorm, ClipFactor, LossScale, Skipped and Overflow,
	// which are NaN, 0 or false before. Only pre_optimizer_step has it, since a device runs a whole step without
	// waiting for the host: call it only if the numbers are needed there. Elsewhere it is nil and Step is complete.
	Await func() error
	// Summon calls f, which may read the whole parameters of Model where ranks have shards of them, and with write may
	// change them. Only callbacks with EveryRank may call it, on every rank with the same use of parameters. It is nil
	// in a loop that shards nothing.
	Summon func(write bool, f func() error) error
	// Alone, if not nil, is how Handler calls callbacks without EveryRank: they must not read parameters that are
	// sharded.
	Alone func(f func() error) error

	// Trace is told of the spans of this rank's steps, those of its evaluations and saves included. A callback that
	// listens ends that at train_end, and in its Close after a run that failed. It is nil in a loop that has no
	// accelerator.
	Trace *trace.Listeners

	// Optimizer is this rank's, and Schedule and Windows are those of the run, from train_begin to train_end; elsewhere
	// they are nil. Schedule is nil too where the rates follow a metric. A callback reads them and changes nothing.
	Optimizer *optim.Optimizer
	Schedule  optim.Schedule
	Windows   Windows
	// Ranks are all ranks of the run; nil in a loop that has none.
	Ranks Ranks

	Record  Record             // log: the record, already the last of State.LogHistory
	Metrics map[string]float64 // evaluate, predict: with their prefix, as eval_loss
	// save: the checkpoint's folder, under async_save that of the newest complete one; train_end: the one to resume
	// from, "" if there is none
	Checkpoint string
	Batch      int64 // prediction_step: batches done
	Batches    int64 // prediction_step: batches in all, or 0 if unknown
}

// logger is Log, or slog's default for a callback that is called without a Handler.
func (e *Event) logger() *slog.Logger {
	if e.Log == nil {
		return slog.Default()
	}
	return e.Log
}

// Windows are the training data of a rank, an optimizer step at a time: *feed.Windows.
type Windows interface {
	Epoch() int64        // the one that the next step is of, from 0
	Position() int64     // samples that all ranks have had
	MicroBatches() int64 // of an epoch, over all ranks; 0 for data without a length
	Fingerprint() string // of their source; "" if it has none
}

// Ranks are ranks that run together, and this one among them: *accelerate.Accelerator. Methods with a context are
// collective: only callbacks with EveryRank may call them, on every rank in the same order.
type Ranks interface {
	Rank() int
	WorldSize() int
	Barrier(ctx context.Context) error
	// GatherBytes returns the bytes of all ranks on every rank.
	GatherBytes(ctx context.Context, mine []byte) ([][]byte, error)
	// Agree sets each flag that is set on any rank.
	Agree(ctx context.Context, flags ...*bool) error
}

// StepStats is what one optimizer step did, over all ranks.
type StepStats struct {
	Loss         float64 // mean over the step's loss terms; NaN and infinities as they came, NaN of no terms
	GradNorm     float64 // global L2 norm before clipping
	ClipFactor   float64 // by which the optimizer multiplies the gradients as it reads them; 1 if they are not clipped
	LearningRate float64 // that the step used
	Samples      int64
	Tokens       int64   // input tokens, or 0 where samples have none
	TokensSeen   int64   // those of Tokens that include_num_input_tokens_seen counts
	Skipped      bool    // the optimizer did not change the parameters: loss or gradient were not finite, or Empty
	LossScale    float64 // what the loss was multiplied by under fp16; 0 without
	Overflow     bool    // Skipped, as the gradients were too large for fp16; the scale of the loss is halved
	Empty        bool    // Skipped, as the step has no loss term: all its labels are -100
}

// Callback has a method for each event. Embed Base to implement only some. An error ends the run: it is reported as an
// *Error, which names the callback and the event.
type Callback interface {
	OnInitEnd(*Event) error
	OnTrainBegin(*Event) error
	OnEpochBegin(*Event) error
	OnStepBegin(*Event) error
	OnSubstepEnd(*Event) error
	OnPreOptimizerStep(*Event) error
	OnOptimizerStep(*Event) error
	OnStepEnd(*Event) error
	OnLog(*Event) error
	OnPredictionStep(*Event) error
	OnEvaluate(*Event) error
	OnSave(*Event) error
	OnEpochEnd(*Event) error
	OnTrainEnd(*Event) error
	OnPredict(*Event) error
}

// EveryRank marks a callback that runs on every rank, not only on rank 0. It must set the same flags on all of them, or
// leave that to the trainer's agreement.
type EveryRank interface {
	EveryRank()
}

// Named is a callback with its own name in errors, logs and saved states; others go by the name of their type.
type Named interface {
	CallbackName() string
}

// Stateful is a callback whose state is saved in checkpoints, as stateful_callbacks of trainer_state.json.
type Stateful interface {
	// ExportState returns the state to save. JSON must be able to represent the values.
	ExportState() Exported
	// ImportState restores a saved state. Numbers are float64. An error describes what is wrong with it.
	ImportState(Exported) error
}

// Exported is the state of a callback in HuggingFace's form: the arguments that it was made with, and its changed
// attributes.
type Exported struct {
	Args       map[string]any `json:"args"`
	Attributes map[string]any `json:"attributes"`
}

// Base does nothing on every event. Callbacks embed it.
type Base struct{}

var _ Callback = Base{}

// OnInitEnd does nothing.
func (Base) OnInitEnd(*Event) error { return nil }

// OnTrainBegin does nothing.
func (Base) OnTrainBegin(*Event) error { return nil }

// OnEpochBegin does nothing.
func (Base) OnEpochBegin(*Event) error { return nil }

// OnStepBegin does nothing.
func (Base) OnStepBegin(*Event) error { return nil }

// OnSubstepEnd does nothing.
func (Base) OnSubstepEnd(*Event) error { return nil }

// OnPreOptimizerStep does nothing.
func (Base) OnPreOptimizerStep(*Event) error { return nil }

// OnOptimizerStep does nothing.
func (Base) OnOptimizerStep(*Event) error { return nil }

// OnStepEnd does nothing.
func (Base) OnStepEnd(*Event) error { return nil }

// OnLog does nothing.
func (Base) OnLog(*Event) error { return nil }

// OnPredictionStep does nothing.
func (Base) OnPredictionStep(*Event) error { return nil }

// OnEvaluate does nothing.
func (Base) OnEvaluate(*Event) error { return nil }

// OnSave does nothing.
func (Base) OnSave(*Event) error { return nil }

// OnEpochEnd does nothing.
func (Base) OnEpochEnd(*Event) error { return nil }

// OnTrainEnd does nothing.
func (Base) OnTrainEnd(*Event) error { return nil }

// OnPredict does nothing.
func (Base) OnPredict(*Event) error { return nil }
