// SPDX-License-Identifier: Apache-2.0

package pp

import (
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// tie is a trained parameter that two stages have: a table that the earlier one looks up, by tensor.Embedding alone,
// and the later one multiplies by. One process adds, for each micro-batch, what the later stage computes of its
// gradient and then what the earlier one adds to some rows. So the earlier stage sends these rows for each micro-batch,
// and the later stage adds them to its own; the sum of the micro-batches is made there. At the end of a step the other
// rank gets the total, or the part of it that it trains.
type tie struct {
	*trained    // nil on ranks without an end
	param       tensor.Named
	first, last int         // stages
	ranks       [2]int      // of them
	group       *comm.Group // of the two ranks; nil on others, and if they are one

	sum    *tensor.Tensor // the parameter's gradient, while another is in its place
	filled bool           // sum is a gradient, not only memory for one
	got    []received     // gradients that did not come from the strategy
}

// received is a gradient that is freed at the end.
type received struct {
	of         tensor.Named
	grad, home *tensor.Tensor // home is what was in its place
}

// setApart takes the parameter's gradient away, so that another comes in its place.
func (t *tie) setApart() {
	t.filled = t.param.Grad() != nil
	t.sum = t.param.SwapGrad(nil, false)
}

// takeApart ends setApart and gives the gradient that came, nil if there was none.
func (t *tie) takeApart() *tensor.Tensor {
	g := t.param.Grad()
	t.param.SwapGrad(t.sum, t.filled)
	t.sum = nil
	return g
}

// add adds the gradient of a micro-batch, which may be nil, to the parameter's.
func (t *tie) add(c *tensor.Ctx, g *tensor.Tensor) {
	if g == nil {
		return
	}
	t.setApart()
	switch {
	case t.sum == nil:
		t.sum, g = g, nil
	case t.filled:
		tensor.AddInto(c, t.sum, g)
	default:
		tensor.CopyInto(c, t.sum, g)
	}
	t.filled = true
	t.takeApart()
	if g != nil {
		g.Free()
	}
}

// receive makes g the gradient of what this rank trains of the parameter.
func (t *tie) receive(q tensor.Named, g *tensor.Tensor) {
	t.got = append(t.got, received{q, g, q.SwapGrad(g, true)})
}

// forget frees what receive was given.
func (t *tie) forget() {
	for _, g := range t.got {
		g.of.SwapGrad(g.home, false)
		g.grad.Free()
	}
	t.got = nil
}

// tie finds the ties, and connects their ranks.
func (p *Pipeline) tie() error {
	of := map[*tensor.Tensor][]int{}
	for n, parts := range p.cfg.Stages {
		for _, q := range Parameters(p.cfg.Job.Tree, parts) {
			of[q.Tensor] = append(of[q.Tensor], n)
		}
	}
	var apart []*tie
	var partitions []comm.Partition
	for _, q := range p.cfg.Job.Tree.Parameters() {
		stages := of[q.Tensor]
		if len(stages) < 2 || !q.IsLeaf() {
			continue
		}
		if len(stages) > 2 {
			return fmt.Errorf("pp: stages %v have parameter %s: want at most two", stages, q.Name)
		}
		t := &tie{param: q, first: stages[0], last: stages[1]}
		t.ranks = [2]int{p.cfg.Schedule.StageToRank[t.first], p.cfg.Schedule.StageToRank[t.last]}
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

// Close ends the strategies, with whole as strategy.Strategy has it, and closes the groups that New made.
func (p *Pipeline) Close(whole bool) error { return errors.Join(p.release(whole), p.disconnect()) }

// release ends the strategies.
func (p *Pipeline) release(whole bool) error {
	for _, t := range p.ties {
		t.forget()
	}
	var errs []error
	for _, t := range p.all() {
		t.Reset()
		t.unhook()
		errs = append(errs, t.Close(whole))
	}
	return errors.Join(errs...)
}

// disconnect closes the groups.
func (p *Pipeline) disconnect() error {
	if p.ended != nil {
		close(p.ended)
		p.ended = nil
	}
	var errs []error
	for _, t := range p.ties {
		if t.group != nil {
			errs = append(errs, t.group.Close())
		}
	}
	return errors.Join(errs...)
}
