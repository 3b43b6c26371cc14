// SPDX-License-Identifier: Apache-2.0

// Package tracker is the common part of reporters to experiment trackers: the callback that reports a run's identity,
// settings and rows, and the queue that sends them without delaying the run. A package of a tracker adds its protocol
// alone, as a [Destination].
package tracker

import (
	"context"
	"time"

	"github.com/lockstep-ml/lockstep/callbacks"
)

// Run is what a tracker learns of a run when it begins.
type Run struct {
	ID      string // eight letters and digits, the same in all processes that continue the run
	Resumed bool   // continue the run of this ID; if the tracker has none, begin it
	Name    string // run_name, "" if there is none
	Project string
	// Config holds the arguments and the settings of the model's configuration by name, as JSON decodes them, and the
	// number of the model's parameters.
	Config map[string]any
	Begin  time.Time
}

// Row is a record of a run.
type Row struct {
	Time   time.Time
	Step   int64 // optimizer steps done
	Record callbacks.Record
}

// Split returns the part of a record that is drawn as curves, and the figures of a whole run that HuggingFace's
// reporters put into its summary.
func (r Row) Split() (curves, summary callbacks.Record) {
	curves, summary = callbacks.Record{}, callbacks.Record{}
	for key, v := range r.Record {
		switch _, number := r.Record.Number(key); key {
		case "train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos":
			if number {
				summary[key] = v
				continue
			}
		}
		curves[key] = v
	}
	return curves, summary
}

// Status says how a run ended.
type Status int

// The statuses.
const (
	Finished Status = iota
	Interrupted
	Failed
)

// Destination is the protocol of a tracker, for one run. Its methods are called one at a time, on a separate goroutine.
// An error means that nothing of the call took place: it is repeated later, with at least the same rows, unless the
// error [Refused] all of it.
type Destination interface {
	// Begin begins or continues a run. Nothing else is called before it succeeds.
	Begin(context.Context, Run) error
	// Log takes up to 100 rows, in their order. Without rows it tells the tracker that the run is alive.
	Log(context.Context, []Row) error
	// End completes the run, after its last row.
	End(context.Context, time.Time, Status) error
	// Close is called once, last, however the calls before it ended.
	Close() error
}

// Refused is an error that a repetition would meet again: what was sent is dropped.
type Refused interface {
	error
	Refused() bool
}
