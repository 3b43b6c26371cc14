// SPDX-License-Identifier: Apache-2.0

package schedule

import "slices"

// clock runs a schedule. Each rank runs as far as it can; what it makes lets others continue. Times follow only from
// theorder of the lists, not from the order in which ranks are run here.
type clock struct {
	s       *Schedule
	costs   Costs
	lowered bool
	ranks   []runner
	ready   []int // ranks that may be able to continue
	links   map[[2]int]*link
	// When something is there, by stage and micro-batch, or never: a stage's output, the gradient of its input, and the
	// messages with its input and with the gradient of its output.
	output, gradient, gotInput, gotGradient []float64
	gathered                                []float64 // when the parameters of a stage are there
}

const never = -1

// runner is a rank on its way through its list.
type runner struct {
	next       int // action
	now, busy  float64
	held, peak float64 // activations
	shared     float64 // when the last UNSHARD or REDUCE_GRAD has ended
	queued     bool
	spans      []Span
}

// link is one direction between two ranks.
type link struct {
	sent, posted []end // that messages have been given to, in their order
	moved        int   // messages that both ends have been given to
	free         float64
}

// end is a rank's end of a message.
type end struct {
	at   float64
	a    Action
	span *Span // nil if the schedule lists no messages
}

func newClock(s *Schedule, c Costs) *clock {
	n := s.Stages() * s.MicroBatches
	k := &clock{s: s, costs: c, lowered: s.Lowered(), ranks: make([]runner, len(s.Ranks)), links: map[[2]int]*link{}}
	for _, times := range []*[]float64{&k.output, &k.gradient, &k.gotInput, &k.gotGradient} {
		*times = slices.Repeat([]float64{never}, n)
	}
	k.gathered = make([]float64, s.Stages())
	for r, list := range s.Ranks {
		k.ranks[r].spans = make([]Span, len(list))
		k.wake(r)
	}
	return k
}

func (k *clock) wake(rank int) {
	if !k.ranks[rank].queued {
		k.ranks[rank].queued = true
		k.ready = append(k.ready, rank)
	}
}

// run runs all ranks to their ends, or as far as they can get.
func (k *clock) run() *DeadlockError {
	for len(k.ready) > 0 {
		rank := k.ready[0]
		k.ready = k.ready[1:]
		k.ranks[rank].queued = false
		k.advance(rank)
	}
	return k.deadlock()
}

// advance runs a rank until it must wait.
func (k *clock) advance(rank int) {
	r := &k.ranks[rank]
	for list := k.s.Ranks[rank]; r.next < len(list); r.next++ {
		a := list[r.next]
		since := k.since(a)
		if since == never {
			return
		}
		start, takes := max(r.now, since), k.takes(a)
		span := &r.spans[r.next]
		*span = Span{start, start + takes}
		if a.Op.moves() {
			k.meet(rank, end{start, a, span})
		} else if a.Op.Computes() {
			r.now, r.busy = span.End, r.busy+takes
			k.hold(r, a)
			k.made(a, span.End)
		} else {
			k.share(r, a, span)
		}
	}
}

// share runs an action of the ranks that have the stage together.
func (k *clock) share(r *runner, a Action, span *Span) {
	times := map[Op][]float64{Unshard: k.costs.Unshard, ReduceGrad: k.costs.Reduce}[a.Op]
	if times == nil {
		return
	}
	r.shared = max(r.shared, span.Start) + times[a.Stage]
	if span.End = r.shared; a.Op == Unshard {
		k.gathered[a.Stage] = span.End
	}
}

// takes is how long an action keeps its rank busy.
func (k *clock) takes(a Action) float64 {
	if !a.Op.Computes() {
		return 0
	}
	return k.costs.Stages[a.Stage].of(a.Op)
}

// at is the place of a stage's micro-batch in the lists of times.
func (k *clock) at(stage, microBatch int) int { return stage*k.s.MicroBatches + microBatch }

// since is when everything is there that an action needs, or never.
func (k *clock) since(a Action) float64 {
	at := k.at(a.Stage, a.MicroBatch)
	switch a.Op {
	case F:
		switch {
		case a.Stage == 0:
			return k.gathered[a.Stage]
		case k.s.StageToRank[a.Stage-1] == k.s.StageToRank[a.Stage]:
			return k.withParameters(a, k.output[at-k.s.MicroBatches])
		}
		return k.withParameters(a, k.gotInput[at])
	case I, B:
		switch {
		case k.output[at] == never:
			return never
		case a.Stage == k.s.Stages()-1:
			return 0
		case k.s.StageToRank[a.Stage+1] == k.s.StageToRank[a.Stage]:
			return k.gradient[at+k.s.MicroBatches]
		}
		return k.gotGradient[at]
	case W, SendB:
		return k.gradient[at]
	case SendF:
		return k.output[at]
	}
	return 0
}

// withParameters is when a stage's input and its parameters are there, or never.
func (k *clock) withParameters(a Action, input float64) float64 {
	if input == never {
		return never
	}
	return max(input, k.gathered[a.Stage])
}

// hold counts the activations of a pass.
func (k *clock) hold(r *runner, a Action) {
	size := k.costs.Stages[a.Stage].Activation
	if a.Op == F {
		r.held += size
		r.peak = max(r.peak, r.held)
	}
	if a.Op == W || a.Op == B || k.s.ForwardOnly {
		r.held -= size
	}
}

// made notes what a pass has made.
func (k *clock) made(a Action, end float64) {
	switch at := k.at(a.Stage, a.MicroBatch); a.Op {
	case F:
		k.output[at] = end
	case I, B:
		k.gradient[at] = end
	}
	if k.lowered {
		return
	}
	if m, ok := k.s.message(a); ok {
		k.send(m, end)
	}
}

// send sends a message that the schedule does not list.
func (k *clock) send(m message, at float64) {
	l := k.link(m.from, m.to)
	l.sent = append(l.sent, end{at: at, a: m.send})
	l.posted = append(l.posted, end{at: 0, a: m.receive})
	k.move(l)
}

// meet gives a link an end of a message.
func (k *clock) meet(rank int, e end) {
	peer := k.s.Peer(e.a)
	if e.a.Op == SendF || e.a.Op == SendB {
		l := k.link(rank, peer)
		l.sent = append(l.sent, e)
		k.move(l)
		return
	}
	l := k.link(peer, rank)
	l.posted = append(l.posted, e)
	k.move(l)
}

func (k *clock) link(from, to int) *link {
	pair := [2]int{from, to}
	if k.links[pair] == nil {
		k.links[pair] = &link{}
	}
	return k.links[pair]
}

// move moves the messages of a link that have both ends.
func (k *clock) move(l *link) {
	for ; l.moved < min(len(l.sent), len(l.posted)); l.moved++ {
		from, to := l.sent[l.moved], l.posted[l.moved]
		l.free = max(l.free, from.at, to.at)
		if k.costs.Transfer != nil {
			l.free += k.costs.Transfer[min(from.a.Stage, to.a.Stage)]
		}
		for _, e := range []end{from, to} {
			if e.span != nil {
				e.span.End = l.free
			}
		}
		at := k.at(to.a.Stage, to.a.MicroBatch)
		if to.a.Op == RecvF {
			k.gotInput[at] = l.free
		} else {
			k.gotGradient[at] = l.free
		}
		k.wake(k.s.StageToRank[to.a.Stage])
	}
}

func (k *clock) result() *Simulation {
	sim := &Simulation{Schedule: k.s, Ranks: make([]Usage, len(k.ranks)), Timeline: make([][]Span, len(k.ranks))}
	for _, r := range k.ranks {
		sim.Time = max(sim.Time, r.now, r.shared)
	}
	for i, r := range k.ranks {
		sim.Ranks[i] = Usage{Busy: r.busy, Idle: sim.Time - r.busy, Peak: r.peak}
		sim.Timeline[i] = r.spans
	}
	return sim
}
