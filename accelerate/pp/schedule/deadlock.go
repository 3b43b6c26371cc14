// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"slices"
	"strings"
)

// DeadlockError is a cycle of ranks that wait for each other.
type DeadlockError struct {
	Cycle []Wait // each waits for the rank of the next one; the last waits for the first
}

// Wait is an action of a rank that waits for an action of a rank, perhaps the same.
type Wait struct {
	Rank   int
	Action Action
	OfRank int
	For    Action
}

func (e *DeadlockError) Error() string {
	list := make([]string, 0, len(e.Cycle))
	for i, w := range e.Cycle {
		if i == maxFaults {
			list = append(list, fmt.Sprintf("and %d more", len(e.Cycle)-i))
			break
		}
		if w.OfRank == w.Rank {
			list = append(list, fmt.Sprintf("rank %d waits in %v for %v, which is later in the rank's list", w.Rank,
				w.Action, w.For))
		} else {
			list = append(list, fmt.Sprintf("rank %d waits in %v for %v of rank %d", w.Rank, w.Action, w.For, w.OfRank))
		}
	}
	return "deadlock: " + strings.Join(list, "; ")
}

// deadlock is a cycle among the ranks that have not come to their ends, if there are any.
func (k *clock) deadlock() *DeadlockError {
	rank := slices.IndexFunc(k.ranks, func(r runner) bool { return r.next < len(r.spans) })
	if rank < 0 {
		return nil
	}
	return cycle(rank, k.wait)
}

// cycle follows what ranks wait for, from one of those that cannot continue, until it comes to a rank again.
func cycle(rank int, wait func(rank int) Wait) *DeadlockError {
	var path []Wait
	for {
		if i := slices.IndexFunc(path, func(w Wait) bool { return w.Rank == rank }); i >= 0 {
			return &DeadlockError{path[i:]}
		}
		w := wait(rank)
		path = append(path, w)
		rank = w.OfRank
	}
}

// wait is what a rank waits for: the first of the actions that its next one needs which a rank still has ahead of it.
// There is one, since each pass and message of the schedule is there once.
func (k *clock) wait(rank int) Wait {
	a := k.s.Ranks[rank][k.ranks[rank].next]
	for _, need := range needed(a) {
		if need.Stage < 0 || need.Stage == k.s.Stages() {
			continue
		}
		of := k.s.StageToRank[need.Stage]
		ahead := k.s.Ranks[of][k.ranks[of].next:]
		if slices.ContainsFunc(ahead, func(b Action) bool { b.Overlap = false; return b == need }) {
			return Wait{rank, a, of, need}
		}
	}
	panic("schedule: " + a.String() + " waits for nothing")
}

// needed lists what an action needs: on its own rank first, then the messages, then the passes that make them.
func needed(a Action) (list []Action) {
	add := func(stage int, of ...Op) {
		for _, op := range of {
			list = append(list, Action{Op: op, Stage: stage, MicroBatch: a.MicroBatch})
		}
	}
	switch a.Op {
	case F:
		add(a.Stage, RecvF)
		add(a.Stage-1, SendF, F)
	case I, B:
		add(a.Stage, F, RecvB)
		add(a.Stage+1, SendB, I, B)
	case W, SendB:
		add(a.Stage, I, B)
	case SendF:
		add(a.Stage, F)
	}
	return list
}

// blocked is a cycle among the messages of a lowered schedule under the strictest library, where a send and its receive
// wait for each other and a rank does nothing else meanwhile. Passes make no difference: what they wait
// for is before them.
func (s *Schedule) blocked() *DeadlockError {
	next := make([]int, len(s.Ranks))
	head := func(rank int) (a Action, ok bool) { // the rank's next message
		for list := s.Ranks[rank]; next[rank] < len(list); next[rank]++ {
			if a := list[next[rank]]; a.Op.moves() {
				return a, true
			}
		}
		return Action{}, false
	}
	ready := make([]int, len(s.Ranks)) // ranks that may have come to a message whose other end waits
	for rank := range ready {
		ready[rank] = rank
	}
	for len(ready) > 0 {
		rank := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		for a, ok := head(rank); ok; a, ok = head(rank) {
			peer := s.Peer(a)
			if b, ok := head(peer); !ok || b != otherEnd(a) {
				break
			}
			next[rank]++
			next[peer]++
			ready = append(ready, peer)
		}
	}
	for rank := range s.Ranks {
		if _, ok := head(rank); ok {
			return cycle(rank, func(rank int) Wait {
				a, _ := head(rank)
				return Wait{rank, a, s.Peer(a), otherEnd(a)}
			})
		}
	}
	return nil
}
