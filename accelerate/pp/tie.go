// SPDX-License-Identifier: Apache-2.0

package pp

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate/accumulation"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// tie is a trained parameter that two stages have, such as the table of a tied embedding. One process adds, for each
// micro-batch, what the later stage computes of its gradient and then what the earlier one does. So the later stage
// sends its part for each micro-batch, the earlier stage adds its own to it, and adds up the micro-batches. At the end
// of a step the other rank gets the total.
type tie struct {
	param       tensor.Named
	first, last int         // stages
	ranks       [2]int      // of them
	group       *comm.Group // of the two ranks; nil on others, and if they are one
	sum         *accumulation.Shard
}

// tie finds the ties, and connects their ranks.
func (p *Pipeline) tie() error {
	of := map[*tensor.Tensor][]int{}
	for n, parts := range p.cfg.Stages {
		for _, q := range Parameters(p.cfg.Tree, parts) {
			of[q.Tensor] = append(of[q.Tensor], n)
		}
	}
	var apart []*tie
	var partitions []comm.Partition
	for _, q := range p.cfg.Tree.Parameters() {
		stages := of[q.Tensor]
		if len(stages) < 2 || !q.IsLeaf() {
			continue
		}
		if len(stages) > 2 {
			return fmt.Errorf("pp: stages %v have parameter %s: want at most two", stages, q.Name)
		}
		t := &tie{param: q, first: stages[0], last: stages[1]}
		t.ranks = [2]int{p.cfg.Schedule.StageToRank[t.first], p.cfg.Schedule.StageToRank[t.last]}
		if t.ranks[0] == p.rank {
			t.sum = accumulation.NewShard(p.root, p.cfg.Schedule.MicroBatches, p.cfg.DeterministicRanks)
		}
		p.ties = append(p.ties, t)
		if t.ranks[0] != t.ranks[1] {
			color := make([]int, p.cfg.Group.Size())
			for r := range color {
				if color[r] = -1; r == t.ranks[0] || r == t.ranks[1] {
					color[r] = 0
				}
			}
			apart = append(apart, t)
			partitions = append(partitions, comm.Partition{Name: fmt.Sprint("tied", len(apart)), Color: color})
		}
	}
	if len(apart) == 0 {
		return nil
	}
	groups, err := p.cfg.Group.Split(partitions...)
	if err != nil {
		return err
	}
	p.ended = make(chan struct{})
	for i, g := range groups {
		if apart[i].group = g; g != nil {
			go comm.EndTogether(p.cfg.Group, g, p.ended)
		}
	}
	return nil
}

// peer is the rank, in the tie's group, of the other end.
func (t *tie) peer() int { return 1 - t.group.Rank() }

// Close closes the groups that New made.
func (p *Pipeline) Close() error {
	if p.ended != nil {
		close(p.ended)
		p.ended = nil
	}
	for _, t := range p.ties {
		if t.sum != nil {
			t.sum.Reset()
		}
		if t.group != nil {
			if err := t.group.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}
