// Package callbacks watches a training run and steers it: the trainer fires events, callbacks see them with the run's State and set flags in
// its Control, and the trainer does what the flags say. Names, order and flag rules are those of HuggingFace's Trainer.
//
// A callback is a struct that embeds Base and has the methods of the events that it cares for:
//
//	type Announcer struct{ callbacks.Base }
//
//	func (Announcer) OnEpochEnd(e *callbacks.Event) error {
//		slog.Info("epoch done", "epoch", e.State.Epoch)
//		return nil
//	}
//
// Callbacks run in the training goroutine, one after the other, on rank 0 only unless they implement EveryRank. A flag that a callback sets on one rank
// is agreed among the ranks by the trainer before it is acted on. Callbacks must not keep an Event, nor write to its State but through what this
// package offers; the record of a log event is the exception: what a callback adds to it is seen by all that come after it, and kept.
//
// The order is Flow, then those that add to records (Speed, Memory), then reporters, then the user's own, then Progress or Printer.
//
// Progress and Printer are the display: Progress shows a run on a terminal, Printer in files and pipes. What a program writes to that
// terminal meanwhile goes through TerminalOf or AboveBar, so that it stands above the progress bar.
//
// The package is not an event bus: there are fifteen events, no other code subscribes to them, and nothing here trains, saves or evaluates.
package callbacks
