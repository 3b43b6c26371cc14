// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"time"

	"github.com/lockstep-ml/lockstep/comm"
)

// Span is when a bucket of one step was exchanged, as the group's flight record tells it. It is for package
// accelerate, whose Span is what programs see.
type Span struct {
	Bucket  int
	Label   string
	Bytes   int
	Queued  time.Time // its last gradient was complete
	Started time.Time // calls before it had ended
	Ended   time.Time // the result was there
}

// report tells the tracer of the step's buckets. A hook whose calls do not carry the bucket's
// label, or more calls than the flight record holds, leave buckets out.
func (r *Reducer) report() {
	if r.trace == nil {
		return
	}
	calls := map[string]comm.FlightEntry{}
	for _, e := range r.group.Flight().Entries {
		calls[e.Label] = e // the youngest
	}
	for n, b := range r.buckets {
		if e, ok := calls[b.label]; ok {
			r.trace(Span{n, b.label, b.bytes, e.QueuedAt, e.StartedAt, e.EndedAt})
		}
	}
}
