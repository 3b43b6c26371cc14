// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"fmt"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/trace"
)

// WithTracer calls f with the spans of each step, on the rank's goroutine, in addition to other tracers.
func WithTracer(f func(trace.Span)) Option { return func(a *Accelerator) { a.trace.Listen(f) } }

// Trace is where the spans of this rank's steps are told.
func (a *Accelerator) Trace() *trace.Listeners { return &a.trace.Listeners }

// tracer tells of the parts of a step.
type tracer struct {
	trace.Listeners
	told   time.Time // when the last call of the group ended that was told of
	passed time.Time // when the context of a forward pass was last made
}

// beginForward notes when a forward pass began.
func (t *tracer) beginForward() {
	if t.Active() {
		t.passed = time.Now()
	}
}

// backward tells of the backward pass that began at start, and of its forward pass.
func (t *tracer) backward(rank, microBatch int, start time.Time) {
	if !t.Active() {
		return
	}
	detail := fmt.Sprintf("micro-batch %d", microBatch)
	if !t.passed.IsZero() {
		t.Tell(trace.Span{Rank: rank, Name: "forward", Detail: detail, Start: t.passed, End: start})
	}
	t.passed = time.Time{}
	t.Tell(trace.Span{Rank: rank, Name: "backward", Detail: detail, Start: start, End: time.Now()})
}

// collectives tells of the calls of the group that ended since the last time, except buckets.
func (t *tracer) collectives(rank int, group *comm.Group) {
	if !t.Active() || group == nil {
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
		t.Tell(trace.Span{
			Rank: rank, Name: "collective", Detail: strings.TrimSpace(fmt.Sprintf("%s %s", e.Op, e.Label)),
			Bytes: e.Count * e.DType.Size(), Queued: e.QueuedAt, Start: e.StartedAt, End: e.EndedAt,
		})
	}
}
