// SPDX-License-Identifier: Apache-2.0

package tp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/placement"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Config is what a model is divided with.
type Config struct {
	Group *comm.Group // of the ranks that share the model; nil: one rank
	Plan  Plan
	// Parts (tp_parts) is how many parts each sum has that ranks share, on any number of ranks the same for the same
	// bits. 0 means the number of ranks; 1 leaves all sums, and the model, whole.
	Parts int
	// Made is called when this rank's parts are made, before the model changes: ranks that are goroutines may make
	// theirs from one another's models. nil: each part takes the place of its whole at once, which takes less memory.
	Made func() error
	// Compare makes fingerprints of what the rank and the next one have: see Division.Fingerprints.
	Compare bool
	// Later makes parts of deferred parameters when something uses them, for ranks that keep some of their parts: those
	// of their stages, or a shard of each.
	Later bool
}

// Division is a model whose matrices are divided.
type Division struct {
	group *comm.Group
	size  Size
	tree  *nn.Tree
	cuts  map[string]Cut
	whole []tensor.Named           // parameters as they were
	owner map[string]*nn.Parameter // of those that this rank has a part of

	summoned bool // the model is whole for a while
	prints   []Prints
}

// Divide divides the matrices of a model, which has the same values on each rank, and the biases that go with them. The
// memory of whole ones is freed, and the model computes with the parts in contexts with Division.Tree. Nothing is
// changed if the plan has faults; the error has all of them. Parameters that are not divided stay what they are.
func Divide(c *tensor.Ctx, m nn.Module, cfg Config) (d *Division, err error) {
	d = &Division{group: cfg.Group, size: Size{1, cfg.Parts}, cuts: map[string]Cut{},
		owner: map[string]*nn.Parameter{}}
	if cfg.Group != nil {
		d.size.Ranks = cfg.Group.Size()
	}
	if d.size.Ranks == 1 {
		d.group = nil
	} else {
		comm.SpareProcessor()
	}
	if d.size.Parts == 0 {
		d.size.Parts = d.size.Ranks
	}
	before := nn.Walk(m)
	before.EachParameter(func(name string, p *nn.Parameter) {
		if p.Whole() != nil {
			err = fmt.Errorf("tp: %s is divided already: want Join first", name)
		}
	})
	if err != nil {
		return nil, err
	}
	layers, cuts, err := cfg.Plan.resolve(before, d.size)
	if err != nil {
		return nil, err
	}
	for _, cut := range cuts {
		d.cuts[cut.Name] = cut
	}
	d.whole = before.Parameters()
	if err := d.divide(c.NoGrad(), before, cfg); err != nil {
		return nil, err
	}
	d.tree = nn.Walk(m)
	for _, l := range layers {
		d.hook(l)
	}
	if part := d.rank(); d.group != nil {
		d.tree.Modules(func(_ string, m nn.Module) {
			if s, ok := m.(interface{ Traits() nn.Traits }); ok && s.Traits().HeadDim > 0 {
				d.tree.AddHooks(m, &nn.Hooks{HeadPart: &part})
			}
		})
	}
	return d, nil
}

// divide gives the parameters of a model their parts, if there are several ranks.
func (d *Division) divide(c *tensor.Ctx, tree *nn.Tree, cfg Config) (err error) {
	if d.group == nil {
		return nil
	}
	parts := map[string]*tensor.Tensor{}
	put := func(name string, p *nn.Parameter) {
		p.Divide(parts[name])
		if whole := p.Whole(); !whole.Unloaded() {
			whole.Unload()
		}
		p.Whole().OnMissing(nil) // what made it is of no use any more
		d.owner[name] = p
	}
	tree.EachParameter(func(name string, p *nn.Parameter) {
		cut, ok := d.cuts[name]
		if !ok || err != nil {
			return
		}
		parts[name], err = d.make(c, p, cut, cfg)
		if err == nil && cfg.Made == nil {
			put(name, p)
		}
	})
	if err != nil || cfg.Made == nil {
		return err
	}
	if err := cfg.Made(); err != nil {
		return err
	}
	tree.EachParameter(func(name string, p *nn.Parameter) {
		if parts[name] != nil {
			put(name, p)
		}
	})
	return nil
}

// make makes this rank's part of a parameter: of the whole, or without it where a part can be made alone.
func (d *Division) make(c *tensor.Ctx, p *nn.Parameter, cut Cut, cfg Config) (part *tensor.Tensor, err error) {
	source, deferred := p.DeferredPart(), p.Unloaded()
	fill := p.Deferred()
	err = tensor.Try(func() {
		later := cfg.Later && fill != nil && !slices.Contains(d.partShape(cut), 0)
		if later && !cfg.Compare {
			part = d.later(p, source, fill, cut)
			return
		}
		if source == nil {
			part = d.partOf(c, p.Tensor, cut)
		} else {
			part = source(c, d.own(cut))
		}
		if cfg.Compare {
			d.prints = append(d.prints, d.printsOf(c, part, source, cut))
		}
		if c.Sync(); deferred && !p.Unloaded() {
			p.Unload()
		}
		if later {
			part.Free()
			part = d.later(p, source, fill, cut)
		}
	})
	return part, err
}

// later is this rank's part of a parameter, made when it is used: by source, or of the whole that fill makes.
func (d *Division) later(p *nn.Parameter, source nn.PartFunc, fill func(c *tensor.Ctx) *tensor.Tensor,
	cut Cut) *tensor.Tensor {
	return tensor.NewDeferred(p.Device(), p.DType(), d.partShape(cut), func(c *tensor.Ctx) *tensor.Tensor {
		if source != nil {
			return source(c, d.own(cut))
		}
		whole := fill(c)
		part := d.partOf(c, whole, cut)
		c.Sync()
		whole.Free()
		return part
	})
}

// partShape is the shape of this rank's part.
func (d *Division) partShape(cut Cut) []int {
	shape := slices.Clone(cut.Shape)
	shape[cut.Dim] = placement.Len(d.own(cut).Box[cut.Dim])
	return shape
}

// rank is this rank among those that share the model.
func (d *Division) rank() int {
	if d.group == nil {
		return 0
	}
	return d.group.Rank()
}

// partOf is a copy of this rank's part of a parameter.
func (d *Division) partOf(c *tensor.Ctx, t *tensor.Tensor, cut Cut) *tensor.Tensor {
	part := tensor.Empty(c.NoGrad(), t.DType(), d.partShape(cut)...)
	d.copyPart(c, part, t, cut)
	return part
}

// copyPart sets part to this rank's part of a whole parameter.
func (d *Division) copyPart(c *tensor.Ctx, part, whole *tensor.Tensor, cut Cut) {
	c.NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		at := 0
		for _, r := range d.own(cut).Box[cut.Dim] {
			tensor.CopyInto(c, tensor.Slice(c, part, cut.Dim, at, at+r.Len()),
				tensor.Slice(c, whole, cut.Dim, r.Start, r.Stop))
			at += r.Len()
		}
		return nil
	})
}

// own is what this rank has of a parameter.
func (d *Division) own(cut Cut) tensor.Placement { return cut.Of(d.rank(), d.size.Ranks) }

// hook makes a divided layer compute with its part.
func (d *Division) hook(l *layer) {
	if l.rule.byRows() && d.size.Parts > 1 {
		d.hookRows(l)
		return
	}
	cut, ok := d.cuts[l.weight()]
	if !ok {
		return
	}
	own := d.size.Parts / d.size.Ranks
	a := &across{group: d.group, path: l.path, width: own * cut.length(), size: cut.size()}
	sum := &tensor.PartedSum{Rowwise: l.rule.rowwise(), Parts: own}
	switch {
	case l.rule.byVocabulary():
		sum.Vocabulary = &tensor.PartedVocabulary{Size: cut.size(), First: cut.at(0, d.rank()*own),
			Length: cut.length()}
	case !sum.Rowwise:
		sum.Fused = cut.Fused
	}
	h := &nn.Hooks{Context: func(c *tensor.Ctx) *tensor.Ctx {
		if d.summoned {
			return c
		}
		return c.WithPartedSum(sum)
	}}
	if d.group != nil {
		sum.Ranks = a.sum
		if sum.Vocabulary != nil {
			sum.Vocabulary.Gather = a.stacked
		}
		switch l.rule.Style {
		case ColwiseGatherOutput:
			h.Outputs = d.unlessSummoned(a.gather())
		case RowwiseSplitInput:
			h.Inputs = d.unlessSummoned(a.split())
		}
	}
	d.tree.AddHooks(l.module, h)
}

// hookRows makes a whole layer compute this rank's rows.
func (d *Division) hookRows(l *layer) {
	p := &pieces{across: across{group: d.group, path: l.path}, own: d.size.Parts / d.size.Ranks, ranks: d.size.Ranks,
		tokens: l.rule.Style == SequenceParallel, names: map[string]bool{}}
	for _, q := range l.params {
		p.names[q.Name] = true
	}
	d.tree.AddHooks(l.module, &nn.Hooks{Around: func(c *nn.Ctx, run nn.RunFunc, in []*tensor.Tensor) []*tensor.Tensor {
		if d.summoned {
			return run(c, in)
		}
		return p.around(c, run, in)
	}})
}

// transform is what a hook makes of a module's inputs or outputs.
type transform = func(c *nn.Ctx, ts []*tensor.Tensor) []*tensor.Tensor

// unlessSummoned is f while the model is divided.
func (d *Division) unlessSummoned(f transform) transform {
	return func(c *nn.Ctx, ts []*tensor.Tensor) []*tensor.Tensor {
		if d.summoned {
			return ts
		}
		return f(c, ts)
	}
}

// Parts is how many parts each sum has that ranks share.
func (d *Division) Parts() int { return d.size.Parts }

// Tree is that of the divided model, with the hooks of its layers.
func (d *Division) Tree() *nn.Tree { return d.tree }

// Placement is what this rank has of a parameter; ok is false if there is none of the name.
func (d *Division) Placement(name string) (p tensor.Placement, ok bool) {
	if cut, ok := d.cuts[name]; ok {
		return d.own(cut), true
	}
	i := slices.IndexFunc(d.whole, func(q tensor.Named) bool { return q.Name == name })
	if i < 0 {
		return p, false
	}
	return d.whole[i].Placed().Placement, true
}

// Divided is what this rank has of the model, for the strategy of a job.
func (d *Division) Divided() *strategy.Divided {
	parts := map[string]strategy.Part{}
	for _, q := range d.whole {
		part := strategy.Part{Placement: q.Placed().Placement, Grain: strategy.Cell, Counts: d.rank() == 0}
		if cut, divided := d.cuts[q.Name]; divided {
			part = strategy.Part{Placement: d.own(cut), Grain: cut.grain(), Parted: true, Counts: true}
		}
		parts[q.Name] = part
	}
	return &strategy.Divided{Group: d.group, Of: parts}
}

// Norm is the L2 norm of the gradients of those parameters of Tree that are trained, with the same bits on any number
// of ranks that share the same parts. A parameter that all ranks have counts once. It is collective.
func (d *Division) Norm(ctx context.Context, c *tensor.Ctx) (float64, error) {
	var trained []tensor.Named
	for _, p := range d.tree.Parameters() {
		if p.IsLeaf() {
			trained = append(trained, p)
		}
	}
	j := strategy.Job{Ctx: c, Divided: d.Divided()}
	return j.Norm(ctx, trained, func(i int) (*tensor.Tensor, int) { return trained[i].Grad(), 0 })
}

// Join makes the model whole again, with the values that the ranks have, and frees the parts with their gradients. Tree
// and its hooks are void then. It is collective.
func (d *Division) Join(ctx context.Context, c *tensor.Ctx) error {
	err := d.join(ctx, c, func(part *tensor.Tensor) {
		part.ZeroGrad()
		part.DropLowered()
		part.Free()
	})
	if err == nil {
		clear(d.owner)
	}
	return err
}

// join makes the model whole, one parameter after the other, and tells after which of the parts.
func (d *Division) join(ctx context.Context, c *tensor.Ctx, after func(part *tensor.Tensor)) error {
	for _, q := range d.whole {
		p := d.owner[q.Name]
		if p == nil {
			continue
		}
		part := p.Tensor
		whole, err := d.gather(ctx, c.NoGrad(), part, d.cuts[q.Name])
		if err != nil {
			return err
		}
		q.DropLowered()
		q.Reload(whole)
		p.Join()
		after(part)
	}
	c.Sync()
	return nil
}

// Whole puts together what ranks have of a tensor that is divided as the parameter of a name, such as the optimizer's
// state of it. It is collective. The result is the caller's.
func (d *Division) Whole(ctx context.Context, c *tensor.Ctx, name string, part *tensor.Tensor) (*tensor.Tensor, error) {
	cut, ok := d.cuts[name]
	if !ok {
		return nil, fmt.Errorf("tp: parameter %s is not divided: want one of %v", name,
			slices.Sorted(maps.Keys(d.cuts)))
	}
	return d.gather(ctx, c.NoGrad(), part, cut)
}

// gather puts a divided tensor together.
func (d *Division) gather(ctx context.Context, c *tensor.Ctx, part *tensor.Tensor, cut Cut) (whole *tensor.Tensor,
	err error) {
	whole = tensor.Empty(c, part.DType(), cut.Shape...)
	fault := tensor.Try(func() {
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			shape := slices.Clone(part.Shape())
			shape[cut.Dim] = cut.Fused*cut.length()*cut.Parts/d.size.Ranks - shape[cut.Dim]
			part = tensor.Concat(c, cut.Dim, part, tensor.Zeros(c, part.DType(), shape...)) // as long as the others
			all := tensor.Unsqueeze(c, part, 0)
			if d.group != nil {
				all = tensor.Empty(c, part.DType(), append([]int{d.size.Ranks}, part.Shape()...)...)
				if err = d.group.AllGather(comm.OfTensor(c, all), comm.OfTensor(c, part), comm.Label(cut.Name)).Wait(
					ctx); err != nil {
					return nil
				}
			}
			for r := range d.size.Ranks {
				of := tensor.Squeeze(c, tensor.Slice(c, all, 0, r, r+1), 0)
				at := 0
				for _, strip := range cut.Of(r, d.size.Ranks).Box[cut.Dim] {
					tensor.CopyInto(c, tensor.Slice(c, whole, cut.Dim, strip.Start, strip.Stop),
						tensor.Slice(c, of, cut.Dim, at, at+strip.Len()))
					at += strip.Len()
				}
			}
			return nil
		})
	})
	return whole, errors.Join(err, fault)
}
