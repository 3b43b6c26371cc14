// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/misspelt"
	"github.com/lockstep-ml/lockstep/internal/quantity"
)

// Shape is the size of a pipeline.
type Shape struct {
	Ranks         int
	MicroBatches  int // of a step
	StagesPerRank int // 0: as few as the schedule permits
}

// kind is a family of schedules.
type kind struct {
	name        string
	least, most int // stages per rank
	place       func(ranks, stagesPerRank int) []int
	// refuse reports a shape that the schedule is not defined for; nil: it is for all.
	refuse func(Shape) error
	// full is the least number of micro-batches that order can handle; nil: 1. Fewer are truncated.
	full  func(ranks int) int
	order func(l *line, rank int, of Shape)
}

const anyNumber = maxIndex

var kinds = []kind{
	{name: "gpipe", least: 1, most: 1, place: Loop, order: breadthFirst},
	{name: "1f1b", least: 1, most: 1, place: Loop, order: oneForwardOneBackward},
	{name: "interleaved_1f1b", least: 2, most: anyNumber, place: Loop, order: interleaved, refuse: wholeRounds},
	{name: "looped_bfs", least: 2, most: anyNumber, place: Loop, order: breadthFirst},
	{name: "zb_h1", least: 1, most: 1, place: Loop, order: zeroBubbleH1},
	{name: "zbv", least: 2, most: 2, place: V, order: zeroBubbleV, full: func(ranks int) int { return 2*ranks - 1 }},
	{name: "dualpipev", least: 2, most: 2, place: V, order: dualPipeV, refuse: twoPerRank},
}

// Names lists the schedules that New generates.
func Names() []string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.name
	}
	return names
}

// New generates the schedule of a name (see [Names]) for a pipeline. The error lists everything that the schedule does
// not permit about the shape.
func New(name string, of Shape) (*Schedule, error) {
	for _, k := range kinds {
		if k.name == name {
			return k.generate(of)
		}
	}
	return nil, fmt.Errorf("unknown schedule %q; %s", name,
		misspelt.Suggestion(name, "", Names(), "the schedules are "+strings.Join(Names(), ", ")))
}

func (k *kind) generate(of Shape) (*Schedule, error) {
	if of.StagesPerRank == 0 {
		of.StagesPerRank = k.least
	}
	if err := k.check(of); err != nil {
		return nil, err
	}
	n := of.MicroBatches
	if k.full != nil {
		of.MicroBatches = max(n, k.full(of.Ranks))
	}
	s := &Schedule{Name: k.name, MicroBatches: of.MicroBatches, StageToRank: k.place(of.Ranks, of.StagesPerRank),
		Ranks: make([][]Action, of.Ranks)}
	held := make([][]int, of.Ranks) // stages
	for stage, rank := range s.StageToRank {
		held[rank] = append(held[rank], stage)
	}
	for rank, stages := range held {
		l := newLine(stages, of.MicroBatches)
		k.order(l, rank, of)
		s.Ranks[rank] = l.actions
	}
	if n < s.MicroBatches {
		return s.Truncate(n)
	}
	return s, nil
}

// check lists everything that is wrong with a shape.
func (k *kind) check(of Shape) error {
	f := faults{of: "schedule " + k.name}
	if of.Ranks < 1 {
		f.add("%d ranks: want at least 1", of.Ranks)
	}
	if of.MicroBatches < 1 {
		f.add("%d micro-batches: want at least 1", of.MicroBatches)
	}
	if v := of.StagesPerRank; v < k.least || v > k.most {
		f.add("%s per rank: want %s", quantity.Of(v, "stage"), k.stages())
	}
	if f.none() && (of.Ranks > maxRanks || float64(of.Ranks)*float64(of.StagesPerRank)*float64(of.MicroBatches) >
		maxPasses) {
		f.add("%d ranks × %d stages × %d micro-batches: want at most %d ranks and %d forward passes", of.Ranks,
			of.StagesPerRank, of.MicroBatches, maxRanks, maxPasses)
	}
	if f.none() && k.refuse != nil {
		if err := k.refuse(of); err != nil {
			f.add("%v", err)
		}
	}
	return f.err()
}

func (k *kind) stages() string {
	if k.most == anyNumber {
		return fmt.Sprintf("at least %d", k.least)
	}
	return fmt.Sprint(k.least)
}

func wholeRounds(of Shape) error {
	if of.MicroBatches%of.Ranks == 0 {
		return nil
	}
	return fmt.Errorf("%s on %s: want a multiple of %d", quantity.Of(of.MicroBatches, "micro-batch"),
		quantity.Of(of.Ranks, "rank"), of.Ranks)
}

func twoPerRank(of Shape) error {
	if of.MicroBatches >= 2*of.Ranks {
		return nil
	}
	return fmt.Errorf("%s on %s: want at least %d, two for each rank", quantity.Of(of.MicroBatches, "micro-batch"),
		quantity.Of(of.Ranks, "rank"), 2*of.Ranks)
}
