// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Validate lists everything that is wrong with a schedule, up to a limit, or is nil. It demands that
//
//   - every pass is there exactly once, on the rank that holds its stage: F, and either B or I and W;
//   - W and B of a stage ascend in their micro-batches, which makes the gradients' bits those of one process;
//   - in a lowered schedule, every message has its two ends, after the pass that makes it and before the pass
//     that needs it, and two ranks have their messages in the same order;
//   - a stage is computed on only while its parameters are gathered, if anything gathers them, and its gradients are
//     reduced at most once, after its last pass;
//   - the ranks come to the end, even if sends and receives wait for each other: otherwise a [DeadlockError] names the
//     cycle of actions that wait.
//
// No schedule should run without it.
func (s *Schedule) Validate() error {
	v := s.inspect()
	if v.sized {
		v.ascending()
		v.sharding()
	}
	if !v.unsound {
		d := newClock(s, Uniform(s.Stages(), StageCosts{}, 0)).run()
		if d == nil && v.lowered {
			d = s.blocked()
		}
		if d != nil {
			v.add("%v", d)
		}
	}
	return v.err()
}

// inspect checks sizes, passes and messages, of which a simulation relies on those that are found unsound here.
func (s *Schedule) inspect() *validator {
	v := &validator{s: s, faults: faults{of: strings.TrimSpace("schedule " + s.Name)}}
	v.sizes()
	if v.sized = v.none(); !v.sized {
		v.unsound = true
		return v
	}
	v.index()
	v.complete()
	if v.lowered && !v.unsound {
		v.matched()
	}
	return v
}

// validator finds what is wrong with a schedule.
type validator struct {
	s *Schedule
	faults
	at      [ops][]int32 // by stage and micro-batch: where the rank's list has the action, from 1; 0: nowhere
	sized   bool         // so that its actions can be looked at
	lowered bool
	unsound bool // it cannot be simulated
}

// unsoundly adds a fault that leaves nothing to simulate.
func (v *validator) unsoundly(format string, a ...any) {
	v.unsound = true
	v.add(format, a...)
}

// sizes checks what the other checks rely on.
func (v *validator) sizes() {
	s := v.s
	if s.MicroBatches < 1 || s.Stages() < 1 || len(s.Ranks) < 1 {
		v.add("%d ranks, %d stages, %d micro-batches: want at least 1 of each", len(s.Ranks), s.Stages(),
			s.MicroBatches)
	}
	if s.Stages() > maxCells/max(s.MicroBatches, 1) {
		v.add("%d stages × %d micro-batches: want at most %d passes", s.Stages(), s.MicroBatches, maxCells)
	}
	holds := make([]bool, len(s.Ranks))
	for stage, r := range s.StageToRank {
		if r < 0 || r >= len(holds) {
			v.add("stage %d is on rank %d: want 0 to %d", stage, r, len(holds)-1)
			continue
		}
		holds[r] = true
	}
	for r, held := range holds {
		if !held {
			v.add("rank %d holds no stage: want at least one", r)
		}
	}
}

// where is an action's place in the list of its rank, from 1, or 0.
func (v *validator) where(op Op, stage, microBatch int) int {
	if v.at[op] == nil {
		return 0
	}
	return int(v.at[op][stage*v.s.MicroBatches+microBatch])
}

// index fills in the places, and checks each action alone.
func (v *validator) index() {
	for r, list := range v.s.Ranks {
		for i, a := range list {
			if a.Op == Idle {
				continue
			}
			if fault := v.misfit(r, a); fault != "" {
				v.unsoundly("rank %d, action %d: %v %s", r, i+1, a, fault)
				continue
			}
			if a.Overlap && (!a.Op.Computes() || i+1 == len(list) || !list[i+1].Op.Computes()) {
				v.add("rank %d, action %d: %v overlaps with no pass after it: want two passes", r, i+1, a)
			}
			if a.Op.hasMicroBatch() {
				v.place(r, i, a)
			}
			v.lowered = v.lowered || a.Op.moves()
		}
	}
}

// misfit is what is wrong with an action of a rank.
func (v *validator) misfit(rank int, a Action) string {
	stages := v.s.Stages()
	switch {
	case a.Op >= ops:
		return "is unknown: want an op of this package"
	case a.Stage < 0 || a.Stage >= stages:
		return fmt.Sprintf("is of stage %d: want 0 to %d", a.Stage, stages-1)
	case a.MicroBatch < 0 || a.MicroBatch >= v.s.MicroBatches || !a.Op.hasMicroBatch() && a.MicroBatch != 0:
		return fmt.Sprintf("is of micro-batch %d: want 0 to %d", a.MicroBatch, v.s.MicroBatches-1)
	case v.s.StageToRank[a.Stage] != rank:
		return fmt.Sprintf("is on rank %d: want rank %d, which holds stage %d", rank, v.s.StageToRank[a.Stage], a.Stage)
	case a.Op.moves() && v.s.Peer(a) < 0:
		return "has no other rank at its other end: want no message"
	case v.s.ForwardOnly && (a.Op.isBackward() || a.Op == SendB || a.Op == RecvB || a.Op == ReduceGrad):
		return "is a part of training: want forward passes alone"
	}
	return ""
}

// place notes where an action is.
func (v *validator) place(rank, i int, a Action) {
	if v.at[a.Op] == nil {
		v.at[a.Op] = make([]int32, v.s.Stages()*v.s.MicroBatches)
	}
	at := &v.at[a.Op][a.Stage*v.s.MicroBatches+a.MicroBatch]
	if *at != 0 {
		v.unsoundly("rank %d: %v twice, as actions %d and %d: want it once", rank, a, *at, i+1)
		return
	}
	*at = int32(i + 1)
}

// complete checks that each pass is there, in the order F, I, W on its rank.
func (v *validator) complete() {
	for stage := range v.s.StageToRank {
		for k := range v.s.MicroBatches {
			v.follows(F, F, stage, k)
			if v.s.ForwardOnly {
				continue
			}
			whole, input, weight := v.where(B, stage, k) > 0, v.where(I, stage, k) > 0, v.where(W, stage, k) > 0
			switch {
			case whole && (input || weight):
				v.unsoundly("stage %d, micro-batch %d: both B and I or W: want B, or I and W", stage, k)
			case whole:
				v.follows(F, B, stage, k)
			case input || weight:
				v.follows(F, I, stage, k)
				v.follows(I, W, stage, k)
			default:
				v.unsoundly("stage %d, micro-batch %d: no backward pass on rank %d: want B, or I and W", stage, k,
					v.s.StageToRank[stage])
			}
		}
	}
}

// follows checks that an action is there, after another one of the same stage and micro-batch.
func (v *validator) follows(first, then Op, stage, microBatch int) {
	a, rank := Action{Op: then, Stage: stage, MicroBatch: microBatch}, v.s.StageToRank[stage]
	at, before := v.where(then, stage, microBatch), v.where(first, stage, microBatch)
	if at == 0 {
		v.unsoundly("rank %d: no %v: want it once", rank, a)
	} else if at < before {
		a.Op = first
		v.add("rank %d: %v is action %d, after action %d, which needs it: want it before", rank, a, before, at)
	}
}

// ascending checks the order in which each stage adds its weight gradients. It adds one fault for a stage.
func (v *validator) ascending() {
	for r, list := range v.s.Ranks {
		last, faulty := map[int]int{}, map[int]bool{} // by stage
		for _, a := range list {
			if a.Op != W && a.Op != B || faulty[a.Stage] {
				continue
			}
			if before := last[a.Stage]; before > a.MicroBatch {
				faulty[a.Stage] = true
				v.add("rank %d: stage %d adds the weight gradients of micro-batch %d after those of micro-batch %d: "+
					"want ascending micro-batches, which give the bits of one process", r, a.Stage, a.MicroBatch,
					before)
			}
			last[a.Stage] = a.MicroBatch
		}
	}
}

// matched checks the messages of a lowered schedule: both ends of each, and their order between each two ranks.
func (v *validator) matched() {
	sent, received := map[[2]int][]Action{}, map[[2]int][]Action{} // by sender and receiver
	for r, list := range v.s.Ranks {
		for _, a := range list {
			if m, ok := v.s.message(a); ok {
				v.follows(a.Op, m.send.Op, a.Stage, a.MicroBatch)
				v.follows(m.receive.Op, m.receive.Op, m.receive.Stage, a.MicroBatch)
				for _, needs := range m.needs() {
					if v.where(needs, m.receive.Stage, a.MicroBatch) > 0 {
						v.follows(m.receive.Op, needs, m.receive.Stage, a.MicroBatch)
					}
				}
			}
			switch a.Op {
			case SendF, SendB:
				pair := [2]int{r, v.s.Peer(a)}
				sent[pair] = append(sent[pair], a)
			case RecvF, RecvB:
				pair := [2]int{v.s.Peer(a), r}
				received[pair] = append(received[pair], a)
			}
		}
	}
	if v.unsound { // ends are missing
		return
	}
	for _, pair := range slices.SortedFunc(maps.Keys(sent), comparePairs) {
		v.sameOrder(pair, sent[pair], received[pair])
	}
}

// sameOrder checks that a rank receives another one's messages in the order in which they are sent.
func (v *validator) sameOrder(pair [2]int, sent, received []Action) {
	for i, a := range sent {
		if want := otherEnd(a); received[i] != want {
			v.unsoundly("message %d from rank %d to rank %d is sent by %v and received by %v: want the same order on "+
				"both", i+1, pair[0], pair[1], a, received[i])
			return
		}
	}
}

func comparePairs(a, b [2]int) int { return slices.Compare(a[:], b[:]) }

// sharding checks that stages are computed on while their parameters are gathered, and gradients are reduced when they
// are complete.
func (v *validator) sharding() {
	for r, list := range v.s.Ranks {
		gathers, gathered, reduced := map[int]bool{}, map[int]bool{}, map[int]bool{} // by stage
		for _, a := range list {
			gathers[a.Stage] = gathers[a.Stage] || a.Op == Unshard
		}
		for i, a := range list {
			fault := ""
			switch {
			case a.Op.Computes() && gathers[a.Stage] && !gathered[a.Stage]:
				fault = "the parameters of stage %d are not gathered: want UNSHARD before it"
			case a.Op.isBackward() && reduced[a.Stage]:
				fault = "the gradients of stage %d have been reduced: want REDUCE_GRAD after it"
			case a.Op == ReduceGrad && reduced[a.Stage]:
				fault = "the gradients of stage %d have been reduced: want REDUCE_GRAD once"
			case a.Op == Unshard && gathered[a.Stage]:
				fault = "the parameters of stage %d are gathered: want RESHARD before it"
			case a.Op == Reshard && !gathered[a.Stage]:
				fault = "the parameters of stage %d are not gathered: want UNSHARD before it"
			}
			if fault != "" {
				v.add("rank %d, action %d: %v, but "+fault, r, i+1, a, a.Stage)
			}
			switch a.Op {
			case Unshard, Reshard:
				gathered[a.Stage] = a.Op == Unshard
			case ReduceGrad:
				reduced[a.Stage] = true
			}
		}
		for _, stage := range slices.Sorted(maps.Keys(gathered)) {
			if gathered[stage] {
				v.add("rank %d: the parameters of stage %d stay gathered: want RESHARD after its last pass", r, stage)
			}
		}
	}
}
