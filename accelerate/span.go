package accelerate

import (
	"fmt"
	"time"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
)

// Span is a piece of a training step's time on one rank, for a picture of the step.
type Span struct {
	Rank int
	// Name is forward (from TrainCtx to Backward), backward, bucket (a bucket's exchange
	// with the other ranks, beside the rank's own work) or wait (Reduce, where the rank
	// waits for what is not exchanged yet).
	Name   string
	Detail string    // the leaf, or the bucket
	Bytes  int       // of a bucket
	Queued time.Time // of a bucket: when its last gradient was complete
	Start  time.Time
	End    time.Time
}

// WithTracer tells f of each step's spans, on the rank's goroutine. It costs a few
// microseconds a step, and nothing where it is not set.
func WithTracer(f func(Span)) Option { return func(a *Accelerator) { a.trace = f } }

// traceBackward reports the backward pass that began at start, and its forward pass.
func (a *Accelerator) traceBackward(leaf int, start time.Time) {
	detail := fmt.Sprintf("leaf %d", leaf)
	if !a.forward.IsZero() {
		a.trace(Span{Rank: a.rank, Name: "forward", Detail: detail, Start: a.forward, End: start})
	}
	a.forward = time.Time{}
	a.trace(Span{Rank: a.rank, Name: "backward", Detail: detail, Start: start, End: time.Now()})
}

// traceReduce reports the wait that began at start.
func (a *Accelerator) traceReduce(start time.Time) {
	a.trace(Span{Rank: a.rank, Name: "wait", Start: start, End: time.Now()})
}

// traceBuckets is the reducer's tracer; nil if nobody watches.
func (a *Accelerator) traceBuckets() func(ddp.Span) {
	if a.trace == nil {
		return nil
	}
	return func(s ddp.Span) {
		a.trace(Span{Rank: a.rank, Name: "bucket", Detail: s.Label, Bytes: s.Bytes, Queued: s.Queued, Start: s.Started, End: s.Ended})
	}
}
