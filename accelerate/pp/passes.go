// SPDX-License-Identifier: Apache-2.0

package pp

import (
	"slices"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

func (r *runner) last(at place) bool { return at.stage == len(r.stages)-1 }

// forward runs a forward pass.
func (r *runner) forward(at place) error {
	received, err := r.take(r.inputs, at)
	if err != nil {
		return err
	}
	p, err := r.open(at)
	if err != nil {
		return err
	}
	p.received = received
	for _, t := range received.tensors {
		if r.training && t.DType().IsFloat() {
			t = t.Boundary()
		}
		p.in = append(p.in, t)
	}
	outs := make([]Output, len(p.batches))
	if err := p.each(func(i int) (err error) {
		c := p.context(i).WithStage(r.cfg.Stages[at.stage], p.of(i, p.in)...)
		outs[i], err = r.cfg.Forward(c, r.cfg.Model, p.batches[i])
		return err
	}); err != nil {
		return err
	}
	for i, out := range outs {
		if !r.last(at) {
			p.out = append(p.out, out.Hidden...)
		} else if r.training || out.Loss != nil {
			p.out = append(p.out, out.Loss)
			r.setLoss(at.microBatch, i, out)
		}
	}
	if f := r.cfg.Joined; f != nil && r.last(at) {
		if err := f(r.ctx, p.c, r.batches[at.microBatch]); err != nil {
			return err
		}
	}
	return r.pass(p)
}

// setLoss enters the loss of a micro-batch, or of this rank's chunk i of it.
func (r *runner) setLoss(microBatch, i int, out Output) {
	at := microBatch
	if t := r.cfg.Tokens; t != nil {
		at = microBatch*r.chunks() + t.Layout().Own()[i]
	}
	r.counts[at] = out.Count
	slot := tensor.Slice(r.root, r.block, 0, at, at+1)
	tensor.CopyInto(r.root, tensor.Reshape(r.root, slot, out.Loss.Shape()...), out.Loss)
}

// pass leaves the outputs of a forward pass where the next stage, or a send, finds them.
func (r *runner) pass(p *pass) error {
	if !r.training {
		delete(r.passes, p.place)
		p.received.free()
	}
	if r.last(p.place) {
		if !r.training {
			p.close()
		}
		return nil
	}
	out := &parcel{tensors: make([]*tensor.Tensor, len(p.out)), owned: !r.training}
	for i, t := range p.out {
		out.tensors[i] = tensor.Contiguous(p.c.NoGrad(), t)
	}
	if p.sent = out; !r.training {
		p.close(out.tensors...)
	}
	r.inputs[place{p.stage + 1, p.microBatch}] = out
	return nil
}

// outputs are those of a forward pass that go to another rank.
func (r *runner) outputs(at place) *parcel {
	next := place{at.stage + 1, at.microBatch}
	p := r.inputs[next]
	delete(r.inputs, next)
	return p
}

// backward runs a backward pass, which computes the gradients of the stage's inputs and, if whole, of its weights.
func (r *runner) backward(at place, whole bool) error {
	p, s := r.passes[at], r.stages[at.stage]
	roots, grads, err := r.seeds(p)
	if err != nil {
		return err
	}
	var sums *chunkSums // nil: gradients of weights are accumulated, or wait
	if whole {
		sums = r.beginWeights(p)
	}
	p.delayed = !whole && len(roots) > 0 // none: all of the stage is frozen, and all before it
	lookups, found := r.lookups(s, len(p.batches)), make([][]*tensor.Tensor, len(p.batches))
	if err := p.each(func(i int) error {
		wrt, c, options := leaves(p.of(i, p.in)), p.context(i).Ctx, []tensor.BackwardOption(nil)
		for _, l := range lookups {
			options = append(options, l.option(r.root, i))
		}
		roots, grads := p.of(i, roots), p.of(i, grads.tensors)
		switch {
		case sums != nil:
			found[i] = sums.backward(c, roots, grads, wrt, i, options)
		case len(roots) == 0:
		case whole:
			found[i] = tensor.Backward(c, roots, grads, wrt, append(options, tensor.Accumulating())...)
		default:
			found[i] = tensor.Backward(c, roots, grads, wrt, append(options, tensor.DelayWeightGrads(&p.stores[i]))...)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := r.passBack(p, found); err != nil {
		return err
	}
	for _, l := range lookups {
		if err := r.sendLookup(l, at.microBatch); err != nil {
			return err
		}
	}
	if p.grads = grads; !whole {
		return nil
	}
	return r.endPass(p, sums)
}

// leaves are those of list that are.
func leaves(list []*tensor.Tensor) (of []*tensor.Tensor) {
	for _, t := range list {
		if t.IsLeaf() {
			of = append(of, t)
		}
	}
	return of
}

// endPass ends a pass whose gradients are all computed.
func (r *runner) endPass(p *pass, sums *chunkSums) error {
	p.grads.free()
	delete(r.passes, p.place)
	return r.endWeights(p, sums)
}

// seeds are the outputs of a pass that gradients flow to, and these gradients.
func (r *runner) seeds(p *pass) (roots []*tensor.Tensor, grads *parcel, err error) {
	if r.last(p.place) {
		seeds := &parcel{}
		for _, loss := range p.out {
			seed := tensor.Full(p.c.NoGrad(), loss.DType(), r.scale, loss.Shape()...)
			seeds.tensors = append(seeds.tensors, seed)
		}
		return p.out, seeds, nil
	}
	all, err := r.take(r.grads, p.place)
	if err != nil {
		return nil, nil, err
	}
	if p.sent != nil { // the scope that it lies in ends soon
		if err := r.wait(p.sent); err != nil {
			return nil, nil, err
		}
	}
	grads = &parcel{owned: all.owned}
	for i, t := range p.out {
		if t.RequiresGrad() {
			roots, grads.tensors = append(roots, t), append(grads.tensors, all.tensors[i])
		} else if all.owned {
			all.tensors[i].Free()
		}
	}
	return roots, grads, nil
}

// passBack ends the graph of a pass and leaves the gradients of its inputs where the previous stage, or a send, finds
// them.
func (r *runner) passBack(p *pass, found [][]*tensor.Tensor) error {
	if p.stage == 0 {
		p.end()
		return nil
	}
	out, list := &parcel{owned: true}, slices.Concat(found...)
	for _, t := range p.in {
		var g *tensor.Tensor
		if t.IsLeaf() {
			g, list = list[0], list[1:]
		}
		if g == nil {
			g = tensor.Zeros(p.c.NoGrad(), t.DType(), t.Shape()...)
		}
		out.tensors = append(out.tensors, tensor.Contiguous(p.c.NoGrad(), g))
	}
	p.end(out.tensors...)
	r.grads[place{p.stage - 1, p.microBatch}] = out
	return nil
}

// end closes the scope of a pass, whose weight gradients may still wait.
func (p *pass) end(out ...*tensor.Tensor) {
	p.close(out...)
	p.received.free()
	p.close, p.in, p.out, p.c = nil, nil, nil, nil
}

// weights computes the weight gradients of a pass.
func (r *runner) weights(p *pass) error {
	sums := r.beginWeights(p)
	switch {
	case !p.delayed:
	case sums != nil:
		for i := range p.stores {
			sums.pop(&p.stores[i], i)
		}
	default:
		p.stores[0].Pop(r.root)
	}
	return r.endPass(p, sums)
}

// beginWeights readies a stage for the weight gradients of a micro-batch. Those of tied parameters stay apart. The
// result takes those of chunks; nil: the sequences are whole.
func (r *runner) beginWeights(p *pass) *chunkSums {
	s := r.stages[p.stage]
	if p.chunks == nil {
		for _, t := range s.ties {
			t.setApart()
		}
	}
	s.begin(r.number(p.microBatch), p.microBatch == len(r.batches)-1 && r.exchangesEarly(s))
	if p.chunks == nil {
		return nil
	}
	return r.chunkSums(s)
}

// number is that of a micro-batch in the window, −1 if it repeats another rank's.
func (r *runner) number(microBatch int) int {
	if r.batches[microBatch].MicroBatch < 0 {
		return -1
	}
	return r.cfg.Job.Layout.MicroBatch(microBatch)
}

// endWeights ends beginWeights.
func (r *runner) endWeights(p *pass, sums *chunkSums) error {
	s := r.stages[p.stage]
	if sums != nil {
		if err := sums.deliver(r.ctx); err != nil {
			return err
		}
	}
	s.end()
	for i, t := range s.ties {
		var heads []*tensor.Tensor
		if sums != nil {
			heads = sums.heads[i]
		} else {
			heads = []*tensor.Tensor{t.takeApart()}
		}
		if s.number == t.last {
			r.tied[t].head[p.microBatch] = heads
		}
	}
	return nil
}

// unshard brings the parameters of a stage.
func (r *runner) unshard(s *stage) {
	s.unshard()
	for _, t := range s.ties {
		t.unshard()
	}
}

// reshard releases the parameters of a stage, tied ones when their gradients are complete.
func (r *runner) reshard(s *stage) {
	s.reshard()
	for _, t := range s.ties {
		if w := r.tied[t]; w != nil && w.next < len(r.batches) && r.training {
			w.resharding++
		} else {
			t.reshard()
		}
	}
}

// reduce completes the gradients of a stage.
func (r *runner) reduce(s *stage) error {
	if !r.exchangesEarly(s) {
		return nil
	}
	s.complete = true
	return s.Finish(r.ctx)
}

// finish completes the gradients that are not, and gives the other end of each tie its total.
func (r *runner) finish() error {
	if !r.training {
		return nil
	}
	if err := r.addTied(true); err != nil {
		return err
	}
	for _, n := range r.order {
		if s := r.stages[n]; !s.complete {
			if err := s.Finish(r.ctx); err != nil {
				return err
			}
		}
	}
	var calls []*comm.Handle
	for _, t := range r.ties {
		h, err := r.finishTie(t)
		if err != nil {
			return err
		}
		calls = append(calls, h...)
	}
	return comm.WaitAll(r.ctx, calls...)
}
