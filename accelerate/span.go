// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"fmt"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/dist"
)

// Span is a part of the time of a training step on one rank.
type Span struct {
	Rank int
	// Name is forward (from TrainCtx to Backward), backward, bucket (a bucket's exchange
	// with the other ranks, beside the rank's own work), wait (Reduce, where the rank
	// waits for what is not exchanged yet), clip (ClipGradNorm), optimizer (Step) or
	// collective (any other call of the group, reported at the end of Step).
	Name   string
	Detail string    // the leaf, the bucket, or the call
	Bytes  int       // of a bucket or call
	Queued time.Time // of a bucket, when its last gradient was complete; of a call, when it was made
	Start  time.Time
	End    time.Time
}

// WithTracer calls f with the spans of each step, on the rank's goroutine. It costs a few
// microseconds per step, and nothing when it is not set.
func WithTracer(f func(Span)) Option { return func(a *Accelerator) { a.trace = f } }

// SetTracer is WithTracer for an existing accelerator; call it before Prepare. nil
// removes the tracer.
func (a *Accelerator) SetTracer(f func(Span)) { a.trace = f }

// traceBackward reports the backward pass that began at start, and its forward pass.
func (a *Accelerator) traceBackward(leaf int, start time.Time) {
	detail := fmt.Sprintf("leaf %d", leaf)
	if !a.forward.IsZero() {
		a.trace(Span{Rank: a.rank, Name: "forward", Detail: detail, Start: a.forward, End: start})
	}
	a.forward = time.Time{}
	a.trace(Span{Rank: a.rank, Name: "backward", Detail: detail, Start: start, End: time.Now()})
}

// tracePhase reports a phase without details that began at start.
func (a *Accelerator) tracePhase(name string, start time.Time) {
	a.trace(Span{Rank: a.rank, Name: name, Start: start, End: time.Now()})
}

// traceCollectives reports the calls of the group that ended since the last time, but for buckets.
func (a *Accelerator) traceCollectives() {
	if a.group == nil {
		return
	}
	since := a.traced
	for _, e := range a.group.Flight().Entries {
		if e.State != dist.Finished || !e.EndedAt.After(since) {
			continue
		}
		if e.EndedAt.After(a.traced) {
			a.traced = e.EndedAt
		}
		if detail := strings.TrimSpace(fmt.Sprintf("%s %s", e.Op, e.Label)); !strings.HasPrefix(e.Label, "bucket ") {
			a.trace(Span{Rank: a.rank, Name: "collective", Detail: detail, Bytes: e.Count * e.DType.Size(), Queued: e.QueuedAt, Start: e.StartedAt, End: e.EndedAt})
		}
	}
}

// traceBuckets is the reducer's tracer; nil if nobody watches.
func (a *Accelerator) traceBuckets() func(ddp.Span) {
	if a.trace == nil {
		return nil
	}
	return func(s ddp.Span) {
		if a.trace == nil {
			return
		}
		a.trace(Span{Rank: a.rank, Name: "bucket", Detail: s.Label, Bytes: s.Bytes, Queued: s.Queued, Start: s.Started, End: s.Ended})
	}
}
