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
		s.sum.Begin(at.microBatch)
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
		return r.sendTied(s, at.microBatch)
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
		if err := r.takeTied(s, p.microBatch); err != nil {
			return err
		}
		s.queue = s.queue[1:]
		s.sum.Begin(p.microBatch)
		p.store.Pop(r.root)
		p.grads.free()
		delete(r.passes, p.place)
		if err := r.sendTied(s, p.microBatch); err != nil {
			return err
		}
	}
	return nil
}

// reduce ends the gradients of a stage.
func (r *runner) reduce(s *stage) error {
	if err := r.drain(s, true); err != nil {
		return err
	}
	s.sum.Finish()
	return nil
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
		if p := r.tied[tiedPlace{t, microBatch}]; s.number == t.first && (p == nil || !p.done()) {
			return false
		}
	}
	return true
}

// takeTied waits for the last stage's gradients of tied parameters, and makes this stage's be added to them.
func (r *runner) takeTied(s *stage, microBatch int) error {
	for _, t := range s.ties {
		if s.number != t.first {
			continue
		}
		at := tiedPlace{t, microBatch}
		p := r.tied[at]
		if err := p.wait(r.ctx); err != nil {
			return err
		}
		delete(r.tied, at)
		if len(p.tensors) > 0 { // none: no gradient came
			t.param.SwapGrad(p.tensors[0], true)
		}
	}
	r.expectTied(s, microBatch+1)
	return nil
}

// sendTied takes the gradients of tied parameters out of a pass's.
func (r *runner) sendTied(s *stage, microBatch int) error {
	for _, t := range s.ties {
		p := &parcel{owned: true}
		if g := t.param.Grad(); g != nil {
			p.tensors = append(p.tensors, t.param.SwapGrad(nil, false))
		}
		switch {
		case s.number == t.first:
			if len(p.tensors) > 0 {
				t.sum.Add(microBatch, p.tensors[0])
				p.free()
			}
		case t.group == nil:
			r.tied[tiedPlace{t, microBatch}] = p
		default:
			if len(p.tensors) == 0 {
				p.tensors = append(p.tensors, tensor.Zeros(r.root, t.param.GradDType(), t.param.Shape()...))
			}
			h := t.group.Send(comm.OfTensor(r.root, p.tensors[0]), t.peer(), comm.Label(t.param.Name))
			p.calls = append(p.calls, h)
			r.sent = append(r.sent, p)
		}
	}
	return nil
}

// finish gives both ends of a tie the total of its gradients.
func (r *runner) finish() error {
	if !r.training {
		return nil
	}
	var calls []*comm.Handle
	for _, t := range r.ties {
		switch r.rank {
		case t.ranks[0]:
			total := t.sum.Total()
			if total == nil {
				total = tensor.Zeros(r.root, t.param.GradDType(), t.param.Shape()...)
			}
			t.param.SwapGrad(total, true)
			if t.group != nil {
				calls = append(calls, t.group.Send(comm.OfTensor(r.root, total), t.peer(), comm.Label(t.param.Name)))
			}
		case t.ranks[1]:
			g := tensor.Empty(r.root, t.param.GradDType(), t.param.Shape()...)
			t.param.SwapGrad(g, true)
			calls = append(calls, t.group.Recv(comm.OfTensor(r.root, g), t.peer(), comm.Label(t.param.Name)))
		}
	}
	return comm.WaitAll(r.ctx, calls...)
}
