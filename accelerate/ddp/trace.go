// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/trace"
)

// report tells of the exchange of the step's buckets, as the group's flight record has it. A hook whose calls do not
// carry the bucket's label, or more calls than the flight record holds, leave buckets out.
func (r *Reducer) report() {
	if r.trace == nil || !r.trace.Active() {
		return
	}
	calls := map[string]comm.FlightEntry{}
	for _, e := range r.group.Flight().Entries {
		calls[e.Label] = e // the youngest
	}
	rank := r.group.JobRank(r.group.Rank())
	for _, b := range r.buckets {
		if e, ok := calls[b.label]; ok {
			r.trace.Tell(trace.Span{Rank: rank, Name: "bucket", Detail: b.label, Bytes: b.Bytes(), Queued: e.QueuedAt,
				Start: e.StartedAt, End: e.EndedAt})
		}
	}
}
