// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"slices"
)

// Lower adds what a rank does between its passes: messages to and from other ranks, and the actions of sharding. A
// lowered schedule is returned unchanged.
//
// The messages are put where a clock has them on which F, I, W and a message take one tick each: the send after the
// pass that makes it, the receive before the first pass that the receiving rank starts later than that pass. So a
// receive is listed before its message is sent, and messages move while ranks compute. All ranks list passes and
// messages in the order of that one clock: each pair of ranks agrees on the order of its messages, and no rank waits
// for a message that is after its own, even if sends and receives wait for each other. A stage that shares its rank
// with the next one sends it nothing.
//
// A stage's parameters are gathered once per step, one pass before the stage's first so that the gathering can overlap
// with that pass. Its gradients are reduced, and the parameters freed, after its last pass. Passes no longer overlap.
func (s *Schedule) Lower() (*Schedule, error) {
	if s.Lowered() {
		return s, nil
	}
	t := s.filter(func(a Action) bool { return a.Op.Computes() })
	sim, err := t.Simulate(Uniform(t.Stages(), StageCosts{Forward: 1, Input: 1, Weight: 1}, 1))
	if err != nil {
		return nil, err
	}
	lists := make([]merged, len(t.Ranks))
	for r := range lists {
		lists[r] = merged{passes: t.Ranks[r], spans: sim.Timeline[r], to: make([]Action, 0, 3*len(t.Ranks[r]))}
	}
	for _, m := range t.messages(sim) {
		lists[m.from].put(m.send, m.at)
		lists[m.to].put(m.receive, m.at)
	}
	for r := range lists {
		t.Ranks[r] = sharded(lists[r].finish(), t.ForwardOnly)
	}
	return t, nil
}

// messages lists those of a schedule without them, in the order of their times.
func (s *Schedule) messages(sim *Simulation) (list []message) {
	for r, passes := range s.Ranks {
		for i, a := range passes {
			if m, ok := s.message(a); ok {
				m.at = sim.Timeline[r][i].Start
				list = append(list, m)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b message) int { return cmp.Compare(a.at, b.at) })
	return list
}

// merged is a rank's list in the making: its passes and its messages in the order of their times.
type merged struct {
	passes []Action
	spans  []Span // of the passes
	to     []Action
}

// put adds an end of a message, after the passes that start with the one that makes it or before.
func (l *merged) put(a Action, at float64) {
	for len(l.passes) > 0 && l.spans[0].Start <= at {
		l.pass()
	}
	l.to = append(l.to, a)
}

func (l *merged) pass() {
	a := l.passes[0]
	a.Overlap = false
	l.to = append(l.to, a)
	l.passes, l.spans = l.passes[1:], l.spans[1:]
}

func (l *merged) finish() []Action {
	for len(l.passes) > 0 {
		l.pass()
	}
	return l.to
}

// sharded adds the actions of sharding to a rank's list.
func sharded(list []Action, forwardOnly bool) []Action {
	gather, last := map[int][]Action{}, map[int]int{} // by place in the list, and by stage
	previous := 0                                     // pass
	for i, a := range list {
		if !a.Op.Computes() {
			continue
		}
		if _, seen := last[a.Stage]; !seen {
			gather[previous] = append(gather[previous], Action{Op: Unshard, Stage: a.Stage})
		}
		last[a.Stage], previous = i, i
	}
	out := make([]Action, 0, len(list)+3*len(last))
	var done []Action // to come after the sends of a stage's last pass
	for i, a := range list {
		if a.Op != SendF && a.Op != SendB {
			out, done = append(out, done...), nil
		}
		out = append(append(out, gather[i]...), a)
		if a.Op.Computes() && last[a.Stage] == i {
			if !forwardOnly {
				done = append(done, Action{Op: ReduceGrad, Stage: a.Stage})
			}
			done = append(done, Action{Op: Reshard, Stage: a.Stage})
		}
	}
	return append(out, done...)
}
