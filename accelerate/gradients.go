// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// gradients is what becomes of the gradients of a window: how those of its leaves are added up, how the ranks exchange
// them, and which part of the sum is this rank's to update parameters with.
type gradients interface {
	// begin readies the backward pass of a leaf; last: it is this rank's last of the window.
	begin(leaf int, last bool)
	// sends reports whether gradients of the pass under way are exchanged: then ready is called for each.
	sends() bool
	// ready announces that the gradient of trained parameter i is complete in the pass, or that it has none.
	ready(i int)
	// end ends the pass.
	end()
	// finish ends the window: trained has the sums as gradients.
	finish(ctx context.Context) error
	// trained is what this rank's optimizer updates.
	trained() []tensor.Named
	// check refuses an optimizer that is not one of trained.
	check(opt *optim.Optimizer) error
	// norm is the L2 norm of the sums.
	norm(ctx context.Context) (float64, error)
	// local are the parameters whose gradients norm measures, if this rank can do that by itself and on its device; nil
	// if not.
	local() []tensor.Named
	// stepped makes known what the optimizer did.
	stepped(ctx context.Context) error
	// reset forgets gradients and readies the next window.
	reset()
	// close ends the exchange. With whole it is collective, and gives parameters that are sharded back.
	close(whole bool) error
}

// sumOf makes the sum of a rank's leaves.
func sumOf(a *Accelerator) *accumulator {
	return newAccumulator(a.ctx.NoGrad(), a.params, int(a.layout.Leaves()), a.plan.exchange.deterministicRanks)
}

// whole are the gradients of a rank that has all parameters and exchanges nothing.
type whole struct {
	a    *Accelerator
	sum  *accumulator
	last bool // the pass under way is the rank's last of the window
}

func newWhole(a *Accelerator) *whole {
	return &whole{a: a, sum: sumOf(a)}
}

func (w *whole) begin(leaf int, last bool) {
	w.sum.begin(leaf)
	w.last = last
}

func (w *whole) sends() bool                   { return false }
func (w *whole) ready(int)                     {}
func (w *whole) end()                          { w.last = false }
func (w *whole) trained() []tensor.Named       { return w.a.params }
func (w *whole) stepped(context.Context) error { return nil }
func (w *whole) reset()                        { w.sum.reset() }
func (w *whole) close(bool) error              { return nil }

func (w *whole) check(*optim.Optimizer) error { return nil }

func (w *whole) finish(context.Context) error { return tensor.Try(w.sum.finish) }

func (w *whole) local() []tensor.Named { return w.a.params }

func (w *whole) norm(context.Context) (float64, error) {
	return optim.GradNorm(w.a.ctx, w.a.params), nil
}

// reduced are the gradients of a rank that has all parameters and sums gradients with the other ranks.
type reduced struct {
	*whole
	ddp   *ddp.Reducer
	hook  ddp.Hook
	steps int64 // of the job so far
}

// reduceGradients makes a's gradients those.
func reduceGradients(a *Accelerator, g *comm.Group, o ddp.Options) error {
	d, err := ddp.New(a.ctx, g, a.params, o)
	if err != nil {
		return err
	}
	r := &reduced{newWhole(a), d, o.Hook, 0}
	r.sum.settle(d.Views())
	a.grads = r
	return nil
}

func (r *reduced) sends() bool { return r.last }

func (r *reduced) ready(i int) {
	r.sum.finishParam(i)
	r.ddp.Ready(i)
}

func (r *reduced) finish(ctx context.Context) error {
	if err := r.whole.finish(ctx); err != nil {
		return err
	}
	r.steps++
	return r.ddp.Finish(ctx)
}

// rebuild cuts the buckets anew once the order of gradients is known.
func (r *reduced) rebuild(ctx context.Context) error {
	rebuilt, err := r.ddp.Rebuild(ctx)
	if rebuilt {
		r.sum.settle(r.ddp.Views())
	}
	return err
}

func (r *reduced) close(bool) error {
	r.sum.settle(nil) // the buckets go
	return r.ddp.Close()
}

// sharded are the gradients of a rank that owns a shard of them.
type sharded struct {
	*shard.Sharder
	a      *Accelerator
	mine   []tensor.Named
	sum    *accumulator // of this rank's leaves, where the sums are exchanged once; nil where each leaf is
	last   bool
	rounds int // passes of the window that were exchanged
}

// shardGradients makes a's gradients those, and moves the parameters into shards.
func shardGradients(a *Accelerator, g *comm.Group, modules []nn.Module) (err error) {
	replicas := a.Replicas().size
	o := shard.Options{
		Gradients: a.sharding.Strategy.ShardsGradients(), Prefetch: !a.sharding.NoPrefetch,
		Parameters:         a.sharding.Strategy.ShardsParameters(),
		KeepAfterForward:   a.sharding.Strategy == shard.GradOp,
		Leaves:             int(a.layout.Leaves()) / replicas,
		DeterministicRanks: max(1, a.plan.exchange.deterministicRanks/replicas),
		All:                a.Loss().group, Replicas: a.Replicas().group,
		Usage: a.plan.exchange.buckets,
	}
	if o.Stay, err = staying(a); err != nil {
		return err
	}
	if a.sharding.Rounded {
		o.Reduce = tensor.BFloat16
	}
	o.Lower, o.Projected = a.plan.lower.train, a.tree.Projected()
	for name := range o.Projected {
		if a.own.has(name) {
			delete(o.Projected, name)
		}
	}
	if o.Parameters { // also where they are shared: what is wrong on two hosts must not pass on one
		if modules, err = wrapped(a, modules); err != nil {
			return err
		}
	}
	o.Zeros = zerosOf(a.disk.params)
	if o.Parameters && o.Zeros == nil && !a.sharding.Gather && g.SharesMemory() && a.dev.HostMemory() {
		o.Shared, o.Parameters = true, false
		a.log.Info("parameters are in memory that the ranks share", "engine", g.Describe().Name)
	}
	units := shard.Buckets(a.params, cmp.Or(a.plan.exchange.buckets.BucketBytes, ddp.BucketBytes))
	if o.Parameters {
		var moved []string
		if units, moved, err = shard.Units(a.tree, a.model, modules); err != nil {
			return fmt.Errorf("accelerate: %w", err)
		}
		if len(moved) > 0 && a.IsMain() {
			a.log.Info("parameters that several units use belong to the unit around them", "parameters", moved)
		}
	}
	s, err := shard.New(a.ctx, g, a.tree, units, o)
	if err != nil {
		return fmt.Errorf("accelerate: %w", err)
	}
	w := &sharded{Sharder: s, a: a, mine: s.Local()}
	if !o.Gradients {
		views, err := s.Views()
		if err != nil {
			return fmt.Errorf("accelerate: %w", err)
		}
		w.sum = sumOf(a)
		w.sum.settle(views)
	}
	a.grads = w
	return nil
}

// begin takes −1 for a pass that repeats another rank's leaf.
func (s *sharded) begin(leaf int, last bool) {
	s.last = last
	if s.sum != nil {
		if s.sum.begin(leaf); last {
			s.BeginPass(0, false)
		}
		return
	}
	if want := s.a.layout.Leaf(s.rounds); leaf >= 0 && leaf != want {
		panic(&tensor.Error{Op: "accelerate.Backward",
			Msg: fmt.Sprintf("leaf %d on rank %d of %d after %d of its own: "+
				"want leaf %d: with sharded gradients ranks have leaves in turns (Layout.Leaf)", leaf, s.a.Data().rank,
				s.a.Data().size, s.rounds, want)})
	}
	s.BeginPass(s.rounds, leaf < 0)
}

func (s *sharded) sends() bool { return s.sum == nil || s.last }

func (s *sharded) ready(i int) {
	if s.sum != nil {
		s.sum.finishParam(i)
	}
	s.Ready(i)
}

func (s *sharded) end() {
	if s.sends() {
		s.pass()
	}
}

// pass sends what a pass left.
func (s *sharded) pass() {
	if s.sum != nil {
		s.sum.finish()
	}
	s.EndPass()
	s.rounds++
	s.last = false
}

// finish exchanges what this rank's passes did not: without a leaf of its own, a rank takes part all the same.
func (s *sharded) finish(ctx context.Context) error {
	rounds := s.a.layout.AccumulationSteps
	if s.sum != nil {
		rounds = 1
	}
	if err := tensor.Try(func() {
		for s.rounds < rounds {
			s.BeginPass(s.rounds, s.sum == nil)
			s.pass()
		}
	}); err != nil {
		return err
	}
	s.rounds = 0
	return s.Finish(ctx)
}

func (s *sharded) trained() []tensor.Named { return s.mine }

// check refuses an optimizer over whole parameters.
func (s *sharded) check(opt *optim.Optimizer) error {
	mine := map[*tensor.Tensor]bool{}
	for _, p := range s.mine {
		mine[p.Tensor] = true
	}
	if names := opt.NeedsWhole(); len(names) > 0 {
		return fmt.Errorf(
			"accelerate: optimizer %s: %s needs whole parameters, and they are sharded: want no fsdp and "+
				"zero_stage, or transforms that are optim.Traits.Elementwise", opt.Name(), strings.Join(names, ", "))
	}
	for _, p := range opt.Params() {
		if !mine[p.Tensor] {
			return fmt.Errorf("accelerate: the optimizer has the whole parameter %s, which is sharded: want one over "+
				"the parameters that Prepare passes to its OptimizerFunc", p.Name)
		}
	}
	return nil
}

func (s *sharded) local() []tensor.Named { return nil }

func (s *sharded) norm(ctx context.Context) (float64, error) {
	squares, err := s.Squares(ctx)
	return math.Sqrt(squares), err
}

func (s *sharded) stepped(ctx context.Context) error { return s.Publish(ctx) }

func (s *sharded) reset() {
	s.rounds, s.last = 0, false
	s.Reset()
	if s.sum != nil {
		s.sum.reset()
	}
}

func (s *sharded) close(whole bool) error {
	if s.sum != nil {
		s.sum.settle(nil)
	}
	return s.Close(whole)
}
