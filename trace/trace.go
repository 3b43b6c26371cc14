// SPDX-License-Identifier: Apache-2.0

// Package trace defines the spans of a training step and the list of their listeners. Use it in a callback, a reporter
// or a training loop to see where the time of a step goes: package accelerate tells the spans of each rank, and
// callbacks find its [Listeners] in their event.
//
// It measures phases and calls between ranks. Kernels are told by tensor.Ctx.Trace.
package trace

import (
	"slices"
	"time"
)

// Span is a part of the time of a training step on one rank.
type Span struct {
	Rank int
	// Name is data (the batches of the step are waited for), forward (from TrainCtx to Backward), backward, bucket (a
	// bucket's exchange with the other ranks, beside the rank's own work), wait (Reduce, where the rank
	// waits for what is not exchanged yet), clip (ClipGradNorm), optimizer (Step), collective (any other call of the
	// group, told at the end of Step), evaluate, save, or a name of the program's own (Listeners.Region). In a pipeline
	// forward, backward, input_gradient, weight_gradient, unshard and reduce_gradient are actions of its schedule, and
	// Detail is the action: 0F3.
	Name   string
	Detail string    // the micro-batch, the bucket, or the call
	Bytes  int       // of a bucket or call
	Queued time.Time // of a bucket, when its last gradient was complete; of a call, when it was made
	Start  time.Time
	End    time.Time
}

// Listeners are the functions that are told of a rank's spans, in the order in which they came. They belong to the
// goroutine of the rank. Without any, spans are not measured.
type Listeners struct{ list []*func(Span) }

// Listen has f told of each span from now on, on the rank's goroutine, until stop is called. It costs a few
// microseconds per step.
func (l *Listeners) Listen(f func(Span)) (stop func()) {
	own := &f
	l.list = append(slices.Clip(l.list), own)
	return func() {
		l.list = slices.DeleteFunc(slices.Clone(l.list), func(f *func(Span)) bool { return f == own })
	}
}

// Active reports whether anybody listens.
func (l *Listeners) Active() bool { return len(l.list) > 0 }

// Tell tells all of s.
func (l *Listeners) Tell(s Span) {
	for _, f := range l.list {
		(*f)(s)
	}
}

// Region begins a span of the given name; the returned function ends and tells it.
func (l *Listeners) Region(rank int, name string) (end func()) {
	if !l.Active() {
		return nothing
	}
	start := time.Now()
	return func() { l.Tell(Span{Rank: rank, Name: name, Start: start, End: time.Now()}) }
}

func nothing() {}
