// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"fmt"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/comm"
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
func WithTracer(f func(Span)) Option { return func(a *Accelerator) { a.trace.tell = f } }

// SetTracer is WithTracer for an existing accelerator; call it before Prepare. nil
// removes the tracer.
func (a *Accelerator) SetTracer(f func(Span)) { a.trace.tell = f }

// tracer tells of the parts of a step, if somebody listens.
type tracer struct {
	tell   func(Span) // nil: nobody does
	told   time.Time  // when the last call of the group ended that was told of
	passed time.Time  // when the context of a forward pass was last made
}

// beginForward notes when a forward pass began.
func (t *tracer) beginForward() {
	if t.tell != nil {
		t.passed = time.Now()
	}
}

// backward tells of the backward pass that began at start, and of its forward pass.
func (t *tracer) backward(rank, leaf int, start time.Time) {
	if t.tell == nil {
		return
	}
	detail := fmt.Sprintf("leaf %d", leaf)
	if !t.passed.IsZero() {
		t.tell(Span{Rank: rank, Name: "forward", Detail: detail, Start: t.passed, End: start})
	}
	t.passed = time.Time{}
	t.tell(Span{Rank: rank, Name: "backward", Detail: detail, Start: start, End: time.Now()})
}

// phase tells of a phase without details that began at start.
func (t *tracer) phase(rank int, name string, start time.Time) {
	if t.tell != nil {
		t.tell(Span{Rank: rank, Name: name, Start: start, End: time.Now()})
	}
}

// collectives tells of the calls of the group that ended since the last time, but for buckets.
func (t *tracer) collectives(rank int, group *comm.Group) {
	if t.tell == nil || group == nil {
		return
	}
	since := t.told
	for _, e := range group.Flight().Entries {
		if e.State != comm.Finished || !e.EndedAt.After(since) {
			continue
		}
		if e.EndedAt.After(t.told) {
			t.told = e.EndedAt
		}
		if strings.HasPrefix(e.Label, "bucket ") {
			continue
		}
		t.tell(Span{
			Rank: rank, Name: "collective", Detail: strings.TrimSpace(fmt.Sprintf("%s %s", e.Op, e.Label)),
			Bytes: e.Count * e.DType.Size(), Queued: e.QueuedAt, Start: e.StartedAt, End: e.EndedAt,
		})
	}
}

// buckets is the reducer's tracer; nil if nobody listens.
func (t *tracer) buckets(rank int) func(ddp.Span) {
	if t.tell == nil {
		return nil
	}
	return func(s ddp.Span) {
		if t.tell != nil {
			t.tell(Span{Rank: rank, Name: "bucket", Detail: s.Label, Bytes: s.Bytes, Queued: s.Queued, Start: s.Started,
				End: s.Ended})
		}
	}
}
