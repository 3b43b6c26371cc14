// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"iter"
	"slices"
)

// Schedule is the order in which the ranks of a pipeline run the passes of one step. A schedule as [New] makes it has
// the passes alone; [Schedule.Lower] adds the messages between ranks.
type Schedule struct {
	Name         string // of the generator, or of the file
	MicroBatches int    // of a step, on each stage
	StageToRank  []int  // the rank that holds each stage
	Ranks        [][]Action
	// ForwardOnly marks the schedule of an evaluation, which has no backward passes.
	ForwardOnly bool
}

// Stages is the number of stages.
func (s *Schedule) Stages() int { return len(s.StageToRank) }

// StagesOf lists the stages that a rank holds, in ascending order.
func (s *Schedule) StagesOf(rank int) (stages []int) {
	for stage, r := range s.StageToRank {
		if r == rank {
			stages = append(stages, stage)
		}
	}
	return stages
}

// Lowered reports whether the schedule lists the messages between ranks.
func (s *Schedule) Lowered() bool {
	return slices.ContainsFunc(s.Ranks, func(list []Action) bool {
		return slices.ContainsFunc(list, func(a Action) bool { return a.Op.moves() })
	})
}

// Truncate is the schedule of a step with fewer micro-batches: the same one without the actions of micro-batch n and
// those after it. A schedule without a deadlock stays one, since nothing waits for what is left out, and no rank's peak
// grows. It serves the last, shorter step of an epoch, whatever the schedule demands of its micro-batches.
func (s *Schedule) Truncate(n int) (*Schedule, error) {
	if n < 1 || n > s.MicroBatches {
		return nil, fmt.Errorf("schedule %s for a step of %d micro-batches: want 1 to %d, as many as it was made for",
			s.Name, n, s.MicroBatches)
	}
	t := s.filter(func(a Action) bool { return a.MicroBatch < n })
	t.MicroBatches = n
	return t, nil
}

// Refuses says why [New] has no schedule of this name, stages and ranks for a step of n micro-batches, for which
// [Schedule.Truncate] has an order all the same. It is nil where New has one, and of a schedule that New does not know.
func (s *Schedule) Refuses(n int) error {
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == s.Name })
	if i < 0 {
		return nil
	}
	ranks := len(s.Ranks)
	return kinds[i].check(Shape{Ranks: ranks, StagesPerRank: s.Stages() / ranks, MicroBatches: n})
}

// Forward is the schedule of an evaluation: the same one without the backward passes.
func (s *Schedule) Forward() *Schedule {
	t := s.filter(func(a Action) bool {
		switch a.Op {
		case I, W, B, SendB, RecvB, ReduceGrad:
			return false
		}
		return true
	})
	t.ForwardOnly = true
	return t
}

// filter is the schedule with some of its actions, and without empty cells.
func (s *Schedule) filter(keep func(Action) bool) *Schedule {
	t := *s
	t.StageToRank = slices.Clone(s.StageToRank)
	t.Ranks = make([][]Action, len(s.Ranks))
	for r, list := range s.Ranks {
		kept := make([]Action, 0, len(list))
		for cell := range cells(list) {
			from := len(kept)
			for _, a := range cell {
				if a.Op != Idle && keep(a) {
					kept = append(kept, a)
				}
			}
			for i := from; i < len(kept); i++ {
				kept[i].Overlap = i+1 < len(kept)
			}
		}
		t.Ranks[r] = kept
	}
	return &t
}

// cells divides a rank's list into the cells of a table: single actions, and those that overlap.
func cells(list []Action) iter.Seq[[]Action] {
	return func(yield func([]Action) bool) {
		from := 0
		for i, a := range list {
			if a.Overlap && i+1 < len(list) {
				continue
			}
			if !yield(list[from : i+1]) {
				return
			}
			from = i + 1
		}
	}
}

// Loop gives the stages to the ranks round robin: rank r holds stages r, r + ranks, r + 2·ranks, …
func Loop(ranks, stagesPerRank int) []int {
	to := make([]int, ranks*stagesPerRank)
	for stage := range to {
		to[stage] = stage % ranks
	}
	return to
}

// V gives the stages to the ranks forth and back: with two stages per rank, rank r holds stages r and 2·ranks − 1 − r,
// so that the first rank holds the first stage and the last.
func V(ranks, stagesPerRank int) []int {
	to := Loop(ranks, stagesPerRank)
	for stage := range to {
		if stage/ranks%2 == 1 {
			to[stage] = ranks - 1 - to[stage]
		}
	}
	return to
}
