// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"context"
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate/accumulation"
	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// begin readies the next pass.
func (s *Sharder) begin() {
	s.next = 0
	for _, f := range s.flats {
		f.begin()
	}
}

// Begin implements strategy.Strategy.
func (s *Sharder) Begin(microBatch int, last bool) (sends bool) {
	if s.sum != nil {
		if s.sum.Begin(microBatch); last {
			s.beginPass(0, s.repeats())
		}
		s.sends = last
		return last
	}
	l := s.job.Layout
	if want := l.MicroBatch(s.rounds); microBatch >= 0 && microBatch != want {
		panic(&tensor.Error{Op: "accelerate.Backward", Msg: fmt.Sprintf("micro-batch %d on rank %d of %d after %d of "+
			"its own: want micro-batch %d: with sharded gradients ranks have micro-batches round robin "+
			"(samplers.WindowLayout.MicroBatch)",
			microBatch, l.Rank, l.WorldSize, s.rounds, want)})
	}
	s.beginPass(s.rounds, microBatch < 0)
	s.sends = true
	return true
}

// repeats reports whether this rank's sums are those of another rank, too: of ranks that share the tokens of
// micro-batches, and have added up what they have of them, the first counts.
func (s *Sharder) repeats() bool { return s.tokens > 1 && s.job.Peers.Tokens.Rank() > 0 }

// beginPass readies the backward pass of this rank's micro-batch number round. A phantom repeats one of another rank:
// it makes this rank take part in what the others exchange, and leaves no gradient.
func (s *Sharder) beginPass(round int, phantom bool) {
	if !s.checked {
		if err := s.check(context.Background()); err != nil {
			panic(&tensor.Error{Op: "shard", Msg: err.Error(), Cause: err})
		}
	}
	s.round, s.phantom = round, phantom
	s.begin()
	s.openNext()
}

// check is an error if the ranks differ in what they train: backward passes that differ would gather other parameters
// than the others. It is collective, and comes once in a window.
func (s *Sharder) check(ctx context.Context) error {
	s.checked = true
	if !s.parameters {
		return nil
	}
	return ddp.CheckFrozen(ctx, s.job.Peers.Loss, s.params)
}

// openNext makes the buffers that gradients come to next, where no unit's pass does so.
func (s *Sharder) openNext() {
	if !s.gradients || s.parameters && !s.staged {
		return
	}
	for _, f := range s.flats[s.next:min(s.next+ring, len(s.flats))] {
		f.open(s)
	}
}

// Ready implements strategy.Strategy.
func (s *Sharder) Ready(i int) {
	if s.sum != nil {
		s.sum.FinishParam(i)
	}
	s.ready(i)
}

// ready sends a buffer when all gradients of it are complete, and those before it are on their way.
func (s *Sharder) ready(i int) {
	p := s.slots[i]
	if s.params[i].Grad() != nil && !s.phantom {
		s.usage.Here[i] = true
	}
	p.flat.fill(s, p.at, s.phantom)
	for s.next < len(s.flats) && s.flats[s.next].left == 0 {
		s.send(s.flats[s.next])
		s.next++
		s.openNext()
	}
}

// End implements strategy.Strategy.
func (s *Sharder) End() {
	if s.sends {
		s.endPass()
	}
}

// endPass announces what the pass left without a gradient, and gives up what is not needed until the next.
func (s *Sharder) endPass() {
	if s.sum != nil {
		s.sum.Finish()
	}
	for i := range s.params {
		if p := s.slots[i]; !p.flat.filled[p.at] {
			s.ready(i)
		}
	}
	s.took = s.took || !s.phantom
	s.phantom = false
	for _, u := range s.units {
		u.users = 0
	}
	s.leaveAll()
	s.rounds++
	s.sends = false
}

// ring is how many buffers of gradients are on their way at most.
const ring = 2

// exchange is the gradients of a flat on their way.
type exchange struct {
	flat   *flat
	round  int
	handle *comm.Handle
	grads  *tensor.Tensor // the buffer, that of the flat no more; nil where it stays
	parts  *tensor.Tensor // what all ranks sent for this rank's shard, one by one; nil: their sum is in grads
}

// send begins the exchange of a buffer.
func (s *Sharder) send(f *flat) {
	for len(s.flying) >= ring*len(f.unit.flats) && s.gradients {
		s.land()
	}
	x := &exchange{flat: f, round: s.round}
	label := comm.Label(fmt.Sprintf("gradients %s", f.name))
	switch {
	case s.options.Reduce.IsHalf():
		s.sendRounded(x, label)
	case f.sum == nil || s.summed():
		x.handle = s.group.ReduceScatter(comm.OfTensor(s.c, f.shard(s, f.grads)), comm.OfTensor(s.c, f.grads), comm.Sum,
			label)
	default:
		x.parts = tensor.Empty(s.c, f.grads.DType(), f.pack.Numel())
		x.handle = s.group.AllToAll(comm.OfTensor(s.c, x.parts), comm.OfTensor(s.c, f.grads), label)
	}
	if f.sum != nil && x.grads == nil {
		x.grads, f.grads = f.grads, nil
	}
	s.flying = append(s.flying, x)
}

// sendRounded begins an exchange in the dtype of Options.Reduce.
func (s *Sharder) sendRounded(x *exchange, label comm.CallOption) {
	f, dt := x.flat, s.options.Reduce
	x.grads, x.parts = tensor.Empty(s.c, dt, f.pack.Numel()), tensor.Empty(s.c, dt, f.pack.Numel())
	tensor.CopyInto(s.c, x.grads, f.grads)
	if f.sum != nil {
		f.grads.Free()
		f.grads = nil
	}
	x.handle = s.group.AllToAll(comm.OfTensor(s.c, x.parts), comm.OfTensor(s.c, x.grads), label)
}

// land waits for the oldest exchange and adds what it brought.
func (s *Sharder) land() {
	x := s.flying[0]
	s.flying = s.flying[1:]
	err := x.handle.Wait(context.Background())
	if err != nil {
		x.free()
		fail("gradients "+x.flat.name, err)
	}
	switch f := x.flat; {
	case f.sum == nil && x.parts != nil:
		sum := accumulation.NewShard(s.c, s.samples(), s.samples())
		s.addParts(sum, 0, x)
		total := sum.Total()
		f.total = f.shard(s, f.grads)
		tensor.CopyInto(s.c, f.total, total)
		total.Free()
	case f.sum == nil:
		f.total = f.shard(s, f.grads)
	case x.parts == nil:
		f.sum.Add(x.round, f.shard(s, x.grads))
	default:
		s.addParts(f.sum, x.round*s.samples(), x)
	}
	x.free()
}

// addParts adds what the ranks sent for this rank's shard, micro-batch by micro-batch, in float32.
func (s *Sharder) addParts(sum *accumulation.Shard, first int, x *exchange) {
	for microBatch := range s.samples() {
		parts := make([]*tensor.Tensor, s.tokens)
		for i := range parts {
			lo := (microBatch*s.tokens + i) * x.flat.pack.Shard
			parts[i] = tensor.Slice(s.c, x.parts, 0, lo, lo+x.flat.pack.Shard)
			if s.options.Reduce.IsHalf() {
				parts[i] = tensor.Cast(s.c, parts[i], tensor.Float32)
			}
		}
		for d := 1; d < len(parts); d *= 2 { // in the order of the group's own sums
			for i := 0; i+d < len(parts); i += 2 * d {
				tensor.AddInto(s.c, parts[i], parts[i+d])
			}
		}
		sum.Add(first+microBatch, parts[0])
		if s.options.Reduce.IsHalf() {
			for _, p := range parts {
				p.Free()
			}
		}
	}
}

func (x *exchange) free() {
	for _, t := range []*tensor.Tensor{x.grads, x.parts} {
		if t != nil {
			t.Free()
		}
	}
}

// Finish implements strategy.Strategy. It exchanges what this rank's passes did not, since without a micro-batch a rank
// takes part all the same, and makes the sums the gradients of the local tensors. A parameter that had a gradient on no
// rank has none.
func (s *Sharder) Finish(ctx context.Context) error {
	rounds := s.job.Layout.AccumulationSteps
	if s.sum != nil {
		rounds = 1
	}
	if err := tensor.Try(func() {
		for s.rounds < rounds {
			s.beginPass(s.rounds, s.sum == nil || s.repeats())
			s.endPass()
		}
	}); err != nil {
		return err
	}
	s.rounds, s.checked = 0, false
	if err := s.usage.Send(s.job.Peers.Loss, s.took); err != nil {
		return err
	}
	if err := tensor.Try(func() {
		for len(s.flying) > 0 {
			s.land()
		}
	}); err != nil {
		return err
	}
	if err := s.usage.Agree(ctx); err != nil {
		return err
	}
	if err := s.meet("gradients are complete"); err != nil { // and nobody reads parameters any more
		return err
	}
	if err := s.totals(ctx); err != nil {
		return err
	}
	return tensor.Try(func() {
		for _, f := range s.flats {
			for i, n := range f.number {
				if own := s.local[n]; own != nil && s.usage.All[n] {
					own.SwapGrad(f.local(s, f.total, i), true)
				}
			}
		}
	})
}

// totals completes the sums of this rank's shards, over all replicas.
func (s *Sharder) totals(ctx context.Context) error {
	var handles []*comm.Handle
	if err := tensor.Try(func() {
		for _, f := range s.flats {
			if f.sum != nil {
				f.total = f.sum.Total()
			}
			if s.job.Peers.Replicas != nil {
				handles = append(handles, s.job.Peers.Replicas.AllReduce(comm.OfTensor(s.c, f.total), comm.Sum,
					comm.Label("gradients of replicas "+f.name)))
			}
		}
	}); err != nil {
		return err
	}
	var first error
	for _, h := range handles {
		if err := h.Wait(ctx); err != nil && first == nil {
			first = fmt.Errorf("shard: adding gradients of replicas: %w", err)
		}
	}
	return first
}

// Reset implements strategy.Strategy. Memory of gradients is freed, once the exchanges that are under way have ended.
func (s *Sharder) Reset() {
	for _, x := range s.flying {
		_ = x.handle.Wait(context.Background()) // the memory is theirs until then; the error came, or does not matter
		x.free()
	}
	s.flying, s.rounds, s.sends, s.took, s.phantom, s.pins = nil, 0, false, false, false, 0
	clear(s.usage.Here)
	for _, own := range s.local {
		if own != nil {
			own.SwapGrad(nil, false)
		}
	}
	for _, f := range s.flats {
		if f.sum == nil {
			f.total = nil // part of grads
			continue
		}
		f.sum.Reset()
		for _, t := range []**tensor.Tensor{&f.total, &f.grads} {
			if *t != nil {
				(*t).Free()
				*t = nil
			}
		}
		for _, p := range f.params {
			if old := p.SwapGrad(nil, false); old != nil {
				old.Free()
			}
		}
	}
	s.guests = nil
	for _, u := range s.units {
		u.users = 0
		_ = tensor.Try(func() { s.release(u) }) // fails with the group; what was on its way is gone
	}
	s.begin()
	if s.sum != nil {
		s.sum.Reset()
	}
}
