// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/accumulation"
	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Options are the settings of a Sharder; all ranks must give the same.
type Options struct {
	Strategy Strategy // not None
	Wrap     Wrap
	// Gather makes ranks of one host gather parameters too. Else they have them together, whole and once, in memory
	// that they share, where the group can (comm.Group.SharesMemory) and the device computes in host memory: a step's
	// shards are written where the others read them, and nothing is gathered.
	Gather bool
	// Zeros makes this rank's shards of parameters that come and go, in memory of the caller's choice; nil: in the
	// device's.
	Zeros optim.Zeros
	// Lower is the dtype in which a training step computes products, Invalid if that is the parameters'; Projected are
	// the parameters that products alone read: their rounded copies are gathered, or shared, in their place.
	Lower     tensor.DType
	Projected map[string]bool
	// Reduce is the dtype in which gradients travel; they are added in float32. Invalid leaves them as they are.
	Reduce tensor.DType
	// Prefetch gathers the parameters of the next unit while one computes.
	Prefetch bool
}

// Factory makes sharders with these options.
func (o Options) Factory() strategy.Factory {
	return strategy.Factory{Sharded: true, Interleaved: o.Strategy.ShardsGradients(),
		New: func(j strategy.Job) (strategy.Strategy, error) { return New(j, o) }}
}

// Sharder keeps the shards of a rank: it is a strategy.Strategy. Where gradients are sharded, they are exchanged in
// each backward pass; otherwise each rank adds up its own micro-batches, and the sums are exchanged in the last pass.
type Sharder struct {
	c       *tensor.Ctx // without a Scope
	job     strategy.Job
	group   *comm.Group
	options Options
	host    bool // the device computes in host memory

	gradients  bool                      // ranks exchange gradients after each pass and keep the sum of their shard
	parameters bool                      // whole parameters come for the pass of their unit and go after it
	staged     bool                      // they come by Unshard alone: the passes are those of a stage
	shared     bool                      // parameters are in memory that all ranks have together
	keep       bool                      // what came for the forward pass stays until the backward pass is done
	stay       func(p tensor.Named) bool // whether a parameter is whole at all times; nil: none is
	tokens     int                       // ranks of the group that share each micro-batch, see strategy.Peers.Tokens
	// microBatches are those of a window over the group's ranks; on up to so many ranks their sums have the same bits
	microBatches int
	ranks        int

	params  []tensor.Named   // trained, in registration order
	slots   []slot           // of params
	local   []*tensor.Tensor // what this rank owns of each of params; nil: nothing
	trained []tensor.Named   // see Trained
	placed  []tensor.Placed  // see Placed; nil until it is called
	units   []*unit
	flats   []*flat // in the order in which their gradients are sent
	usage   *ddp.Usage
	unhook  []func()
	old     []*tensor.Tensor // the parameters' memory before they moved

	sum     *accumulation.Accumulator // of this rank's micro-batches, exchanged once; nil: each pass is exchanged
	sends   bool                      // gradients of the pass under way are exchanged
	rounds  int                       // passes of the window that were exchanged
	round   int                       // of the pass under way: micro-batch / ranks
	next    int                       // first flat whose gradients are not sent
	took    bool                      // this rank had a backward pass in this window
	phantom bool                      // the pass under way repeats another's micro-batch, and counts nowhere
	checked bool                      // that all ranks train the same parameters in this window
	pins    int                       // calls of Unshard without their Reshard
	alone   bool                      // this rank runs what the others do not, see Alone
	flying  []*exchange
	guests  []*unit // that something used outside of their passes
	write   bool    // what is given up was changed, and the shard takes it
	order   []*unit // in which units were first entered
	seen    map[*unit]int
}

// slot is where a trained parameter lies.
type slot struct {
	flat *flat
	at   int
}

// unit is a Unit with its buffers.
type unit struct {
	Unit
	flats []*flat
	users int          // passes that need its parameters now
	lower tensor.DType // in which its last forward pass computes products
	root  bool
}

// New moves the parameters of the units into flat buffers and cuts them into shards. It is collective. Options.Factory
// asks for the ranks and the layout that it needs.
func New(j strategy.Job, o Options) (*Sharder, error) {
	switch known := []Strategy{Optimizer, Gradients, GradOp, Full}; {
	case !slices.Contains(known, o.Strategy):
		return nil, fmt.Errorf("shard: no strategy is called %q: want one of %q", o.Strategy, known)
	case j.Peers.Shards == nil:
		return nil, errors.New("shard: the job has no ranks to spread the model over (strategy.Peers.Shards): want " +
			"Options.Factory, and a mesh with dp_shard of at least 2")
	case o.Strategy.ShardsGradients() && !j.Layout.Interleaved && j.Layout.WorldSize != 1:
		return nil, fmt.Errorf("shard: %s exchanges the gradients of each micro-batch, and the ranks take no turns: "+
			"want Options.Factory, which asks for an interleaved layout", o.Strategy)
	}
	s := &Sharder{c: j.Ctx.NoGrad(), job: j, group: j.Peers.Shards, options: o, params: j.Params, seen: map[*unit]int{},
		host: j.Ctx.Device().HostMemory(), gradients: o.Strategy.ShardsGradients(), keep: o.Strategy == GradOp,
		slots: make([]slot, len(j.Params)), local: make([]*tensor.Tensor, len(j.Params)),
		usage: ddp.NewUsage(j.Params, j.Exchange), staged: j.Model == nil, tokens: sizeOf(j.Peers.Tokens)}
	replicas := sizeOf(j.Peers.Replicas)
	s.microBatches, s.ranks = int(j.Layout.MicroBatches())/replicas, max(1, j.DeterministicRanks/replicas)
	units, err := s.choose()
	if err != nil {
		return nil, err
	}
	for i, u := range units {
		if err := s.add(u, i == 0 && u.Module != nil); err != nil {
			return nil, err
		}
		s.freeOld() // so that never more than one unit is there twice
	}
	if err := tensor.Try(s.cut); err != nil {
		return nil, err
	}
	switch {
	case s.parameters && !s.staged:
		s.watch()
	case s.shared:
		if err := s.shareAll(); err != nil {
			return nil, err
		}
	case !s.gradients:
		if err := s.addUp(); err != nil {
			return nil, err
		}
	}
	s.begin()
	return s, nil
}

// sizeOf is the number of ranks of a group; nil means this rank alone.
func sizeOf(g *comm.Group) int {
	if g == nil {
		return 1
	}
	return g.Size()
}

// samples is how many ranks of the group see different samples.
func (s *Sharder) samples() int { return s.group.Size() / s.tokens }

// choose chooses the units, and whether parameters come and go or are shared.
func (s *Sharder) choose() (units []Unit, err error) {
	o, j := s.options, &s.job
	if s.stay, err = o.Wrap.staying(j.Tree); err != nil {
		return nil, err
	}
	buckets := Buckets(j.Params, cmp.Or(j.BucketBytes, ddp.BucketBytes))
	if !o.Strategy.ShardsParameters() {
		return buckets, nil
	}
	modules, err := o.Wrap.units(j.Tree, j.Units) // also where they are shared: what is wrong on two hosts must not
	if err != nil {                               // pass on one
		return nil, err
	}
	if s.shared = o.Zeros == nil && !o.Gather && s.group.SharesMemory() && s.host; s.shared {
		if j.Main {
			j.Log.Info("parameters are in memory that the ranks share", "engine", s.group.Describe().Name)
		}
		return buckets, nil
	}
	s.parameters = true
	units, moved, err := Units(j.Tree, j.Model, modules)
	units = s.held(units)
	if len(moved) > 0 && j.Main {
		j.Log.Info("parameters that several units use belong to the unit around them", "parameters", moved)
	}
	return units, err
}

// held keeps of units what the rank holds. What lies in none of the modules goes by its first parameter in a stage,
// since a rank may have several.
func (s *Sharder) held(units []Unit) (list []Unit) {
	for i, u := range units {
		u.Params = slices.DeleteFunc(u.Params, func(p tensor.Named) bool { return !s.holds(p) })
		root := i == 0 && !s.staged
		if i == 0 && len(u.Params) > 0 && s.staged {
			u.Name = u.Params[0].Name
		}
		if root || len(u.Params) > 0 {
			list = append(list, u)
		}
	}
	return list
}

// holds reports whether the rank has a parameter of the model.
func (s *Sharder) holds(p tensor.Named) bool {
	return slices.ContainsFunc(s.job.Held, func(q tensor.Named) bool { return q.Tensor == p.Tensor })
}

// addUp makes the sum of this rank's micro-batches, in the buffers that are exchanged.
func (s *Sharder) addUp() error {
	views, err := s.views()
	if err != nil {
		return err
	}
	s.sum = s.job.Accumulator()
	s.sum.Settle(views)
	return nil
}

// stays reports whether a parameter is whole on every rank where others come and go.
func (s *Sharder) stays(p tensor.Named) bool {
	return s.parameters && s.stay != nil && s.stay(p)
}

// add makes the buffers of a unit.
func (s *Sharder) add(from Unit, root bool) error {
	u := &unit{Unit: from, root: root}
	kinds := map[string][]tensor.Named{}
	var names []string
	for _, p := range from.Params {
		stays := s.stays(p)
		if !p.IsLeaf() && (stays || !s.parameters && !s.shared) {
			continue
		}
		name := fmt.Sprintf("%s %v", from.Name, p.DType())
		if !p.IsLeaf() {
			name += " frozen"
		}
		if stays {
			name += " whole"
		}
		if s.isRounded(p) {
			name += fmt.Sprintf(" as %v", s.options.Lower)
		}
		if kinds[name] == nil {
			names = append(names, name)
		}
		kinds[name] = append(kinds[name], p)
	}
	for _, name := range names {
		f, err := newFlat(s, u, name, kinds[name], kinds[name][0].IsLeaf())
		if err != nil {
			return err
		}
		u.flats = append(u.flats, f)
		if f.comes {
			f.leave(s)
		}
		if s.isRounded(f.params[0]) {
			if err := f.makeLow(s, u); err != nil {
				return err
			}
		}
	}
	s.units = append(s.units, u)
	return nil
}

// cut makes the local tensors, and the sums of gradients.
func (s *Sharder) cut() {
	number := map[*tensor.Tensor]int{}
	for i, p := range s.params {
		number[p.Tensor] = i
	}
	for _, u := range s.units {
		for _, f := range u.flats {
			if f.number == nil {
				continue
			}
			s.flats = append(s.flats, f)
			for i, p := range f.params {
				n := number[p.Tensor]
				f.number[i], s.slots[n] = n, slot{f, i}
				if own := f.local(s, f.own, i); own != nil {
					s.local[n] = own.SetRequiresGrad(true)
				}
			}
			if s.gradients {
				f.sum = s.newSum()
			}
		}
	}
	if s.parameters { // modules come in the order of the forward pass, and the root's gradients last
		slices.Reverse(s.flats)
	}
	for i, t := range s.local {
		if t != nil {
			s.trained = append(s.trained, tensor.Named{Name: s.params[i].Name, Tensor: t})
		}
	}
}

// newSum makes the sum of a flat's gradients.
func (s *Sharder) newSum() *accumulation.Shard {
	if n := s.samples(); n > 1 && s.summed() {
		return accumulation.NewShard(s.c, s.microBatches/n, s.microBatches/n)
	}
	return accumulation.NewShard(s.c, s.microBatches, s.ranks)
}

// summed reports whether the group's own tree over the ranks is the part of the micro-batches' tree that a round makes:
// then gradients are summed on their way. Below it is the tree over the ranks that share a micro-batch.
func (s *Sharder) summed() bool {
	n, m := s.samples(), s.microBatches
	return !s.options.Reduce.IsHalf() &&
		(n == 1 || n&(n-1) == 0 && m%n == 0 && accumulation.Groups(m, s.ranks) == m)
}

// freeOld frees the memory that the parameters had before, if nothing of the model lies there any more.
func (s *Sharder) freeOld() {
	for _, old := range s.old {
		if !slices.ContainsFunc(s.job.Tree.State(), func(t tensor.Named) bool { return t.SharesMemory(old) }) {
			old.Free()
		}
	}
	s.old = nil
}

// views are the buffers of the parameters' gradients, between windows, where gradients are not sharded.
func (s *Sharder) views() ([]*tensor.Tensor, error) {
	views := make([]*tensor.Tensor, len(s.params))
	for _, f := range s.flats {
		if f.grads == nil {
			var err error
			if f.gmemory, f.grads, err = alloc(s, f.params[0].GradDType(), f.pack.Numel()); err != nil {
				return nil, err
			}
		}
		if err := tensor.Try(func() { f.point(s) }); err != nil {
			return nil, err
		}
		for i, n := range f.number {
			views[n] = f.views[i]
		}
	}
	return views, nil
}

// Trained implements strategy.Strategy: what this rank owns of the trained parameters, in registration order. They are
// vectors; a parameter of which the rank owns nothing is not there.
func (s *Sharder) Trained() []tensor.Named { return s.trained }

// Local implements strategy.Strategy.
func (s *Sharder) Local() bool { return false }

// Open implements strategy.Strategy.
func (s *Sharder) Open(ctx context.Context) error { return s.check(ctx) }

// Stepped implements strategy.Strategy.
func (s *Sharder) Stepped(ctx context.Context, changed bool) error {
	if !changed {
		return nil
	}
	return s.Publish(ctx)
}

// Shards implements strategy.Strategy.
func (s *Sharder) Shards() strategy.Shards { return s }

// Parameters implements strategy.Strategy.
func (s *Sharder) Parameters() strategy.Parameters { return s }

// Averages implements strategy.Strategy.
func (s *Sharder) Averages() strategy.Averages { return nil }

// Gathers implements strategy.Parameters.
func (s *Sharder) Gathers() bool { return s.parameters }

// Close implements strategy.Strategy. It gives the parameters their own memory and removes the hooks. Without whole
// what other ranks own of those that are away is NaN: nothing is computed with a model of which parts are lost.
func (s *Sharder) Close(whole bool) error {
	if s.sum != nil {
		s.sum.Settle(nil)
	}
	s.Reset()
	for _, f := range s.unhook {
		f()
	}
	var errs []error
	for _, u := range s.units {
		for _, f := range u.flats {
			errs = append(errs, s.restore(f, whole))
		}
	}
	return errors.Join(errs...)
}

// restore gives the parameters of a buffer their own memory.
func (s *Sharder) restore(f *flat, whole bool) error {
	err := tensor.Try(func() {
		if f.low.is() {
			for _, p := range f.params {
				p.LendLowered(nil)
			}
			f.low.OnMissing(nil)
		}
		f.whole.OnMissing(nil)
		switch {
		case !f.whole.Unloaded():
		case whole:
			f.arrive(s, &f.whole)
		default:
			f.whole.Reload(tensor.Full(s.c, f.dtype, math.NaN(), f.pack.Numel()))
			tensor.CopyInto(s.c, f.shard(s, f.whole.Tensor), f.own)
		}
		for _, p := range f.params {
			if f.number != nil {
				p.SwapGrad(nil, false)
			}
			p.Rehome(s.c, tensor.Empty(s.c, f.dtype, p.Shape()...))
		}
		s.c.Sync()
		f.whole.Free()
		if f.low.is() {
			f.low.Free()
		}
	})
	for _, m := range []*comm.Memory{f.memory, f.lmemory, f.gmemory} {
		if m != nil {
			err = errors.Join(err, m.Free())
		}
	}
	return err
}
