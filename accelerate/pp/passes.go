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
	if p.out = out.Hidden; r.last(at) {
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
	apart := !whole || slices.ContainsFunc(s.ties, func(t *tie) bool { return t.first == at.stage })
	option := tensor.DelayWeightGrads(&p.store)
	if !apart {
		r.beginWeights(s, at.microBatch, nil)
		option = tensor.Accumulating()
	}
	var found []*tensor.Tensor
	if len(roots) > 0 {
		found = tensor.Backward(p.c.Ctx, roots, grads.tensors, wrt, option)
	}
	if err := r.passBack(p, found); err != nil {
		return err
	}
	p.grads = grads
	switch {
	case !apart:
		grads.free()
		delete(r.passes, at)
		r.endWeights(s, at.microBatch)
	case whole:
		return r.weights(p)
	}
	return nil
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
		if err := p.sent.wait(r.ctx); err != nil {
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

// weights computes the weight gradients of a pass, or puts it into the stage's queue while the gradient of a tied
// parameter has not come.
func (r *runner) weights(p *pass) error {
	s := r.stages[p.stage]
	s.queue = append(s.queue, p)
	return r.drain(s, false)
}

// drain computes the weight gradients in the queue. If it may not wait, it stops at those that have to.
func (r *runner) drain(s *stage, wait bool) error {
	for len(s.queue) > 0 {
		p := s.queue[0]
		if !wait && !r.tiedHere(s, p.microBatch) {
			return nil
		}
		tied, err := r.takeTied(s, p.microBatch)
		if err != nil {
			return err
		}
		s.queue = s.queue[1:]
		r.beginWeights(s, p.microBatch, tied)
		p.store.Pop(r.root)
		p.grads.free()
		delete(r.passes, p.place)
		r.endWeights(s, p.microBatch)
	}
	if s.resharding {
		r.reshard(s)
	}
	return nil
}

// beginWeights readies a stage for the weight gradients of a micro-batch. Those of tied parameters are added to what
// tied has.
func (r *runner) beginWeights(s *stage, microBatch int, tied map[*tie]*tensor.Tensor) {
	for _, t := range s.ties {
		if s.number == t.first {
			t.begin(r.batches[microBatch].MicroBatch, false)
		}
		t.setApart(tied[t])
	}
	s.begin(r.batches[microBatch].MicroBatch, r.whole() && microBatch == len(r.batches)-1 && !r.late(s.number))
}

// endWeights ends beginWeights.
func (r *runner) endWeights(s *stage, microBatch int) {
	s.end()
	for _, t := range s.ties {
		g := t.takeApart()
		if s.number == t.first {
			t.add(r.root, g)
			t.end()
		} else {
			r.sendTied(t, microBatch, g)
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

// reshard gives up the parameters of a stage, when no pass needs them any more.
func (r *runner) reshard(s *stage) {
	if s.resharding = len(s.queue) > 0; s.resharding {
		return
	}
	s.reshard()
	for _, t := range s.ties {
		t.reshard()
	}
}

// reduce completes the gradients of a stage.
func (r *runner) reduce(s *stage) error {
	if !r.whole() || r.late(s.number) {
		return nil
	}
	s.complete = true
	return s.Finish(r.ctx)
}

// expectTied begins to receive the gradients of tied parameters for a micro-batch.
func (r *runner) expectTied(s *stage, microBatch int) {
	if microBatch >= len(r.batches) {
		return
	}
	for _, t := range s.ties {
		if s.number != t.first || t.group == nil {
			continue
		}
		g := tensor.Empty(r.root, t.param.GradDType(), t.param.Shape()...)
		h := t.group.Recv(comm.OfTensor(r.root, g), t.peer(), comm.Label(t.param.Name))
		r.tied[tiedPlace{t, microBatch}] = &parcel{tensors: []*tensor.Tensor{g}, calls: []*comm.Handle{h}, owned: true}
	}
}

// tiedHere reports whether a stage can go on with the weight gradients of a micro-batch.
func (r *runner) tiedHere(s *stage, microBatch int) bool {
	for _, t := range s.ties {
		if s.number == t.first && t.group == nil && r.tied[tiedPlace{t, microBatch}] == nil {
			return false
		}
	}
	due := r.step.due[s.number]
	return due == nil || microBatch < due[r.at]
}

// takeTied waits for the last stage's gradients of tied parameters.
func (r *runner) takeTied(s *stage, microBatch int) (map[*tie]*tensor.Tensor, error) {
	tied := map[*tie]*tensor.Tensor{}
	for _, t := range s.ties {
		if s.number != t.first {
			continue
		}
		at := tiedPlace{t, microBatch}
		p := r.tied[at]
		if err := p.wait(r.ctx); err != nil {
			return nil, err
		}
		delete(r.tied, at)
		if len(p.tensors) > 0 { // none: no gradient came
			tied[t] = p.tensors[0]
		}
	}
	r.expectTied(s, microBatch+1)
	return tied, nil
}

// sendTied passes the last stage's gradient of a tied parameter on; nil stands for none.
func (r *runner) sendTied(t *tie, microBatch int, g *tensor.Tensor) {
	p := &parcel{owned: true}
	if g != nil {
		p.tensors = append(p.tensors, g)
	}
	if t.group == nil {
		r.tied[tiedPlace{t, microBatch}] = p
		return
	}
	if g == nil {
		p.tensors = append(p.tensors, tensor.Zeros(r.root, t.param.GradDType(), t.param.Shape()...))
	}
	h := t.group.Send(comm.OfTensor(r.root, p.tensors[0]), t.peer(), comm.Label(t.param.Name))
	p.calls = append(p.calls, h)
	r.sent = append(r.sent, p)
}

// finish completes the gradients that are not, and gives the other end of each tie its total.
func (r *runner) finish() error {
	if !r.training {
		return nil
	}
	for _, s := range r.stages {
		if s != nil {
			if err := r.drain(s, true); err != nil {
				return err
			}
		}
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

// finishTie completes the gradient of a tied parameter: what this rank trains of it.
func (r *runner) finishTie(t *tie) (calls []*comm.Handle, err error) {
	first := r.rank == t.ranks[0]
	if !first && r.rank != t.ranks[1] {
		return nil, nil
	}
	if first {
		if err := t.Finish(r.ctx); err != nil {
			return nil, err
		}
	}
	for _, q := range t.Trained() {
		switch {
		case !first:
			t.receive(q, tensor.Empty(r.root, q.GradDType(), q.Shape()...))
		case q.Grad() == nil:
			t.receive(q, tensor.Zeros(r.root, q.GradDType(), q.Shape()...))
		}
		switch g := comm.OfTensor(r.root, q.Grad()); {
		case t.group == nil:
		case first:
			calls = append(calls, t.group.Send(g, t.peer(), comm.Label(t.param.Name)))
		default:
			calls = append(calls, t.group.Recv(g, t.peer(), comm.Label(t.param.Name)))
		}
	}
	return calls, nil
}
