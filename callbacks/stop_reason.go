// SPDX-License-Identifier: Apache-2.0

package callbacks

import "fmt"

// StopKind names what ended a run early.
type StopKind string

// The kinds of early ends.
const (
	StopTimeLimit   StopKind = "time_limit"  // max_train_seconds were used up
	StopNonfinite   StopKind = "nonfinite"   // loss or gradient was not finite, under nonfinite_loss stop
	StopCallback    StopKind = "callback"    // a callback asked for it, as EarlyStopping does
	StopInterrupted StopKind = "interrupted" // a signal, or another end of the context
	StopOtherRank   StopKind = "other_rank"  // a callback of another rank asked for it
)

// StopReason says why a run ended before its last planned step. The zero value says that it did not.
type StopReason struct {
	Kind     StopKind
	Callback string // the name of the callback that asked for the end; of StopCallback only
	Detail   string // details besides Kind and Callback, a phrase without a full stop; may be ""
}

// Early tells whether the run ended before its last planned step.
func (r StopReason) Early() bool { return r.Kind != "" }

// String returns the reason for people: "EarlyStoppingCallback: no eval_loss below 4.1750 in 3 evaluations"; "" if the
// run ended as planned.
func (r StopReason) String() string {
	text := map[StopKind]string{
		StopTimeLimit: "max_train_seconds reached", StopNonfinite: "loss or gradient not finite",
		StopCallback:    "asked for by a callback",
		StopInterrupted: "interrupted", StopOtherRank: "asked for by another rank",
	}[r.Kind]
	switch {
	case r.Callback != "" && r.Detail != "":
		return r.Callback + ": " + r.Detail
	case r.Callback != "":
		return "asked for by " + r.Callback
	case r.Detail != "":
		return r.Detail
	}
	return text
}

// line says at the end of a run that it stopped early, after done of planned steps; "" if it did not.
func (r StopReason) line(done, planned int64) string {
	if !r.Early() {
		return ""
	}
	return fmt.Sprintf("stopped after %d of %d steps: %s", done, planned, r)
}
