// SPDX-License-Identifier: Apache-2.0

package pp

import (
	"context"
	"errors"
	"time"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/accelerate/pp/timeline"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/trace"
)

// record is when this rank ran the actions of a step. It is made while somebody listens (strategy.Job.Trace).
type record struct {
	schedule *schedule.Schedule
	spans    []moment // of its actions
	waited   time.Duration
}

// records has the record of the last step that was recorded, nil before.
type records struct{ latest *record }

// moment is when an action ran, without what it waited for, or when a message was under way.
type moment struct{ start, end time.Time }

// spanNames are the names of passes in a trace.
var spanNames = map[schedule.Op]string{schedule.F: "forward", schedule.B: "backward", schedule.I: "input_gradient",
	schedule.W: "weight_gradient", schedule.Unshard: "unshard", schedule.ReduceGrad: "reduce_gradient"}

// wait waits for a parcel.
func (r *runner) wait(p *parcel) error {
	if r.record == nil {
		return p.wait(r.ctx)
	}
	start := time.Now()
	err := p.wait(r.ctx)
	r.record.waited += time.Since(start)
	return err
}

// beginRecord makes a record if somebody listens.
func (r *runner) beginRecord() {
	if t := r.cfg.Job.Trace; r.training && t != nil && t.Active() {
		r.record = &record{schedule: r.step.Schedule, spans: make([]moment, len(r.step.Ranks[r.rank]))}
	}
}

// recorded calls f, which runs an action.
func (r *runner) recorded(i int, a schedule.Action, f func() error) error {
	if r.record == nil {
		return f()
	}
	start := time.Now()
	r.record.waited = 0
	err := f()
	if a.Op.Computes() {
		r.root.Sync()
	}
	r.record.spans[i] = moment{start.Add(r.record.waited), time.Now()}
	return err
}

// endRecord finds when messages were under way, tells the listeners, and keeps the record for Timeline.
func (r *runner) endRecord() error {
	if r.record == nil {
		return nil
	}
	for _, p := range r.sent {
		if err := p.wait(r.ctx); err != nil {
			return err
		}
	}
	type end struct {
		op    comm.Op
		label string
	}
	calls := map[end]comm.FlightEntry{}
	for _, e := range r.cfg.Group.Flight().Entries {
		calls[end{e.Op, e.Label}] = e // the youngest
	}
	rank := r.cfg.Group.JobRank(r.rank)
	for i, a := range r.record.schedule.Ranks[r.rank] {
		m := &r.record.spans[i]
		if name := spanNames[a.Op]; name != "" {
			r.cfg.Job.Trace.Tell(trace.Span{Rank: rank, Name: name, Detail: a.String(), Start: m.start, End: m.end})
			continue
		}
		op, send := comm.Send, a
		if a.Op == schedule.RecvF || a.Op == schedule.RecvB {
			op, send = comm.Recv, sendOf(a)
		}
		if e, ok := calls[end{op, send.String()}]; ok && !e.QueuedAt.Before(m.start) {
			*m = moment{e.QueuedAt, e.EndedAt}
			r.cfg.Job.Trace.Tell(trace.Span{Rank: rank, Name: "collective", Detail: a.String(),
				Bytes: e.Count * e.DType.Size(), Queued: e.QueuedAt, Start: e.StartedAt, End: e.EndedAt})
		}
	}
	r.records.latest = r.record
	return nil
}

// oneClock is how far the clocks of two hosts may differ to count as one: less cannot be told from the time that a
// rank takes to read its clock.
const oneClock = 10 * time.Millisecond

// Timeline lays the last training step that was recorded over the predicted one: every rank has told a listener
// (strategy.Job.Trace) of its actions. The first rank of the pipeline gets it, the others nil. It is collective.
func (p *Pipeline) Timeline(ctx context.Context) (*timeline.Timeline, error) {
	g := p.cfg.Group
	ranks := int64(g.Size())
	microBatches := make([]int64, ranks)
	if p.records.latest != nil {
		microBatches[g.Rank()] = int64(p.records.latest.schedule.MicroBatches)
	}
	mine := func(list []int64) []int64 {
		each := int64(len(list)) / ranks
		return list[int64(g.Rank())*each:][:each]
	}
	if err := g.AllGather(comm.Of(microBatches), comm.Of(mine(microBatches))).Wait(ctx); err != nil {
		return nil, err
	}
	now := time.Now()
	for _, n := range microBatches {
		if n == 0 || n != microBatches[0] {
			return nil, errors.New("pp: a timeline of a step that not every rank has recorded: want a listener on each")
		}
	}
	s, longest := p.records.latest.schedule, 0
	for _, list := range s.Ranks {
		longest = max(longest, len(list))
	}
	all := make([]int64, ranks*int64(1+2*longest)) // nanoseconds: now, and start and end of each action
	own := mine(all)
	own[0] = now.UnixNano()
	for i, m := range p.records.latest.spans {
		own[1+2*i], own[2+2*i] = m.start.UnixNano(), m.end.UnixNano()
	}
	if err := g.AllGather(comm.Of(all), comm.Of(own)).Wait(ctx); err != nil || g.Rank() > 0 {
		return nil, err
	}
	spans := make([][]schedule.Span, ranks)
	for r, list := range s.Ranks {
		of := all[r*(1+2*longest):]
		ahead := of[0] - all[0] // of rank 0's clock
		if time.Duration(ahead).Abs() < oneClock {
			ahead = 0
		}
		at := func(ns int64) float64 { return float64(ns-ahead-all[1]) / 1e9 }
		for i := range list {
			spans[r] = append(spans[r], schedule.Span{Start: at(of[1+2*i]), End: at(of[2+2*i])})
		}
	}
	return timeline.New(s, spans)
}
