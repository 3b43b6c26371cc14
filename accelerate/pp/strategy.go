// SPDX-License-Identifier: Apache-2.0

package pp

import (
	"context"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// trained are the parameters of a stage, or one of two stages, under the strategy of the ranks that train them.
type trained struct {
	strategy.Strategy
	held   []tensor.Named
	params []tensor.Named // of held, that are trained
	sends  bool           // the pass under way announces gradients
	hooks  []func()
}

// train makes the strategy of parameters that this rank holds. parts are those of their stage.
func (p *Pipeline) train(held []tensor.Named, parts []nn.Part) (*trained, error) {
	j := p.cfg.Job
	j.Model, j.Held, j.Units, j.Params = nil, held, unitsOf(j.Units, parts), nil
	for _, q := range held {
		if q.IsLeaf() {
			j.Params = append(j.Params, q)
		}
	}
	t := &trained{held: held, params: j.Params}
	if p.cfg.Strategy == nil || len(held) == 0 {
		t.Strategy = strategy.NewSingle(j)
		return t, nil
	}
	var err error
	if t.Strategy, err = p.cfg.Strategy(j); err != nil {
		return nil, err
	}
	return t, nil
}

// unitsOf are those units that lie in parts.
func unitsOf(units []nn.Module, parts []nn.Part) []nn.Module {
	in := map[nn.Module]bool{}
	for _, m := range slices.Concat(parts...) {
		nn.Walk(m).Modules(func(_ string, m nn.Module) { in[m] = true })
	}
	return slices.DeleteFunc(slices.Clone(units), func(m nn.Module) bool { return !in[m] })
}

// hook makes the strategy hear of gradients, until unhook.
func (t *trained) hook() {
	for i, q := range t.params {
		t.hooks = append(t.hooks, q.AfterGrad(func(*tensor.Ctx, *tensor.Tensor) {
			if t.sends {
				t.Ready(i)
			}
		}))
	}
}

func (t *trained) unhook() {
	for _, f := range t.hooks {
		f()
	}
	t.hooks = nil
}

func (t *trained) begin(microBatch int, last bool) { t.sends = t.Begin(microBatch, last) }

func (t *trained) end() {
	t.End()
	t.sends = false
}

// unshard brings the parameters until reshard.
func (t *trained) unshard() {
	if s := t.Parameters(); s != nil {
		s.Unshard()
	}
}

func (t *trained) reshard() {
	if s := t.Parameters(); s != nil {
		s.Reshard()
	}
}

// all are what this rank trains: of its stages in ascending order, and then of the ties with an end here.
func (p *Pipeline) all() (list []*trained) {
	for _, s := range p.stages {
		if s != nil {
			list = append(list, s.trained)
		}
	}
	for _, t := range p.ties {
		if t.trained != nil {
			list = append(list, t.trained)
		}
	}
	return list
}

// Trained is what an optimizer of this rank updates, as strategy.Strategy has it, in the order of the whole model.
func (p *Pipeline) Trained() (list []tensor.Named) {
	of := map[string]tensor.Named{}
	for _, t := range p.all() {
		for _, q := range t.Trained() {
			of[q.Name] = q
		}
	}
	for _, q := range p.params {
		if t, ok := of[q.Name]; ok {
			list = append(list, t)
		}
	}
	return list
}

// Placement is what this rank trains of a parameter, as strategy.Shards has it.
func (p *Pipeline) Placement(name string) (at tensor.Placement, ok bool) {
	for _, t := range p.all() {
		if s := t.Shards(); s != nil {
			if at, ok = s.Placement(name); ok {
				return at, true
			}
		} else if i := slices.IndexFunc(t.params, func(q tensor.Named) bool { return q.Name == name }); i >= 0 {
			return p.cfg.Job.Place(t.params[i]), true
		}
	}
	return at, false
}

// Norm is the L2 norm of the gradients of the whole model, with the bits of one process. It is collective.
func (p *Pipeline) Norm(ctx context.Context) (float64, error) {
	type part struct {
		tensor.Named
		of *trained
	}
	mine, across := map[string]part{}, (*comm.Group)(nil)
	for _, t := range p.all() {
		if t.Shards() != nil {
			across = p.cfg.Job.Peers.Shards
		}
		for _, q := range t.Trained() {
			mine[q.Name] = part{q, t}
		}
	}
	for _, t := range p.ties { // they count on their first rank
		if t.ranks[0] != p.rank {
			delete(mine, t.param.Name)
		}
	}
	all := slices.Clone(p.cfg.Job.Tree.Parameters())
	all = slices.DeleteFunc(all, func(q tensor.Named) bool { return !q.IsLeaf() })
	return p.cfg.Job.Norm(ctx, all, func(i int) (*tensor.Tensor, int) {
		q, ok := mine[all[i].Name]
		if !ok {
			return nil, 0
		}
		first := 0
		if s := q.of.Shards(); s != nil {
			at, _ := s.Placement(q.Name)
			first = at.Flat.Start
		}
		return q.Grad(), first
	}, across, p.cfg.Group)
}

// Stepped makes known what optimizers did, as strategy.Strategy has it. It is collective.
func (p *Pipeline) Stepped(ctx context.Context, changed bool) error {
	for _, t := range p.all() {
		if err := t.Stepped(ctx, changed); err != nil {
			return err
		}
	}
	return nil
}

// sort finds the order in which a whole step completes the gradients of this rank's stages: first those that are
// reduced right after their last pass. All ranks that train a stage together keep it, also in steps of fewer
// micro-batches, so that their calls match.
func (p *Pipeline) sort(s *step) {
	p.early = map[int]bool{}
	last := -1 // the stage of the last pass
	for _, a := range s.Ranks[p.rank] {
		switch a.Op {
		case schedule.W, schedule.B:
			last = a.Stage
		case schedule.F, schedule.I:
			last = -1
		case schedule.ReduceGrad:
			if a.Stage == last {
				p.early[a.Stage] = true
				p.order = append(p.order, a.Stage)
			}
			last = -1
		}
	}
	for _, n := range p.cfg.Schedule.StagesOf(p.rank) {
		if !p.early[n] {
			p.order = append(p.order, n)
		}
	}
}
