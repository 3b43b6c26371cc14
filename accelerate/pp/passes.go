// SPDX-License-Identifier: Apache-2.0

package pp

import (
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
	p := r.open(at)
	p.received = received
	for _, t := range received.tensors {
		if r.training && t.DType().IsFloat() {
			t = t.Boundary()
		}
		p.in = append(p.in, t)
	}
	out, err := r.cfg.Forward(p.c.WithStage(r.cfg.Stages[at.stage], p.in...), r.cfg.Model, r.batches[at.microBatch])
	if err != nil {
		return err
	}
	if p.out = out.Hidden; r.last(at) && (r.training || out.Loss != nil) {
		p.out = []*tensor.Tensor{out.Loss}
		r.losses[at.microBatch].Count = out.Count
		slot := tensor.Slice(r.root, r.block, 0, at.microBatch, at.microBatch+1)
		tensor.CopyInto(r.root, tensor.Reshape(r.root, slot, out.Loss.Shape()...), out.Loss)
	}
	return r.pass(p)
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
	var wrt []*tensor.Tensor
	for _, t := range p.in {
		if t.IsLeaf() {
			wrt = append(wrt, t)
		}
	}
	options := []tensor.BackwardOption{tensor.DelayWeightGrads(&p.store)}
	if whole {
		r.beginWeights(s, at.microBatch)
		options[0] = tensor.Accumulating()
	}
	lookups := r.lookups(s, &options)
	var found []*tensor.Tensor
	if len(roots) > 0 { // none: all of the stage is frozen, and all before it
		p.delayed = !whole
		found = tensor.Backward(p.c.Ctx, roots, grads.tensors, wrt, options...)
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
	r.endPass(p)
	return nil
}

// endPass ends a pass whose gradients are all computed.
func (r *runner) endPass(p *pass) {
	p.grads.free()
	delete(r.passes, p.place)
	r.endWeights(r.stages[p.stage], p.microBatch)
}

// seeds are the outputs of a pass that gradients flow to, and these gradients.
func (r *runner) seeds(p *pass) (roots []*tensor.Tensor, grads *parcel, err error) {
	if r.last(p.place) {
		loss := p.out[0]
		seed := tensor.Full(p.c.NoGrad(), loss.DType(), r.scale, loss.Shape()...)
		return p.out, &parcel{tensors: []*tensor.Tensor{seed}}, nil
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
func (r *runner) passBack(p *pass, found []*tensor.Tensor) error {
	if p.stage == 0 {
		p.end()
		return nil
	}
	out := &parcel{owned: true}
	for _, t := range p.in {
		var g *tensor.Tensor
		if t.IsLeaf() {
			g, found = found[0], found[1:]
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
	r.beginWeights(r.stages[p.stage], p.microBatch)
	if p.delayed {
		p.store.Pop(r.root)
	}
	r.endPass(p)
	return nil
}

// beginWeights readies a stage for the weight gradients of a micro-batch. Those of tied parameters stay apart.
func (r *runner) beginWeights(s *stage, microBatch int) {
	for _, t := range s.ties {
		t.setApart()
	}
	s.begin(r.number(microBatch), microBatch == len(r.batches)-1 && r.exchangesEarly(s))
}

// number is that of a micro-batch in the window, −1 if it repeats another rank's.
func (r *runner) number(microBatch int) int {
	if r.batches[microBatch].MicroBatch < 0 {
		return -1
	}
	return r.cfg.Job.Layout.MicroBatch(microBatch)
}

// endWeights ends beginWeights.
func (r *runner) endWeights(s *stage, microBatch int) {
	s.end()
	for _, t := range s.ties {
		if g := t.takeApart(); s.number == t.last {
			r.tied[t].head[microBatch] = g
		}
	}
}

// unshard brings the parameters of a stage.
func (r *runner) unshard(s *stage) {
	s.unshard()
	for _, t := range s.ties {
		t.unshard()
	}
}

// reshard gives up the parameters of a stage, tied ones when their gradients are complete.
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
