// SPDX-License-Identifier: Apache-2.0

// Package callbacks observes a training run and controls it. Use it to do something at a certain moment of package
// trainer's loop: log, evaluate, save or stop. Write a struct that embeds [Base], give it the methods of the events
// that it needs, and pass it to trainer.WithCallbacks. [EarlyStopping] is ready to use.
//
//	type Announcer struct{ callbacks.Base }
//
//	func (Announcer) OnEpochEnd(e *callbacks.Event) error {
//		slog.Info("epoch done", "epoch", e.State.Epoch)
//		return nil
//	}
//
// The trainer calls the methods with an [Event], which has the run's [State] and its [Control]: a callback sets flags
// in Control, and the trainer obeys them. Names, order and flag rules are those of HuggingFace's Trainer.
//
// Callbacks run in the training goroutine, one after the other, and on rank 0 only unless they implement [EveryRank].
// The trainer copies a flag set on one rank to all ranks before it acts on it. A callback must not keep an Event, and
// changes its State only with the methods of this package. The exception is the record of a log event: later callbacks
// see entries that a callback adds, and the log keeps them.
//
// The order is [Flow], then those that add to records ([Speed], [Memory], [RegisterDefault]), then reporters, then the
// user's own, then the display: [Progress] on a terminal, [Printer] in files and pipes. A program that writes to the
// terminal during the run uses [TerminalOf] or [AboveBar], which print above the progress bar. [NewPhase] shows work
// before a run.
//
// A reporter sends records to an outside system; packages below integrations register theirs with
// [RegisterReporter], and the argument report_to turns them on.
//
// The package is not an event bus: there are fifteen events, no other code subscribes to them, and nothing here
// trains, saves or evaluates.
//
// # For package trainer
//
// [Handler], [Flow], [Display], [NewDefaults], [NewReporters], [NewState], [StateFromJSON], [SpeedMetrics] and
// [ResidentMemory] are for code that runs the loop and fires the events. A callback needs none of them.
package callbacks
