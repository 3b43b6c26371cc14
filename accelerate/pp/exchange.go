// SPDX-License-Identifier: Apache-2.0

package pp

import (
	"context"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// label names the tensors of a message after its send, so that both ends have the same.
func label(send schedule.Action, i int) comm.CallOption {
	if i == 0 {
		return comm.Label(send.String())
	}
	return comm.Label(fmt.Sprint(send, ".", i))
}

// send sends a parcel, which is given up when it has arrived.
func (r *runner) send(p *parcel, a schedule.Action) error {
	for i, t := range p.tensors {
		h := r.cfg.Group.Send(comm.OfTensor(r.root, t), r.step.Peer(a), label(a, i))
		p.calls = append(p.calls, h)
	}
	r.sent = append(r.sent, p)
	return nil
}

// sendOf is the send of a receive.
func sendOf(a schedule.Action) schedule.Action {
	if a.Op == schedule.RecvB {
		return schedule.Action{Op: schedule.SendB, Stage: a.Stage + 1, MicroBatch: a.MicroBatch}
	}
	return schedule.Action{Op: schedule.SendF, Stage: a.Stage - 1, MicroBatch: a.MicroBatch}
}

// receive begins to receive what flows over a border.
func (r *runner) receive(into map[place]*parcel, at place, number int, a schedule.Action) error {
	f, err := r.flow(r.batches[at.microBatch])
	if err != nil {
		return err
	}
	send := sendOf(a)
	of, err := r.open(at)
	if err != nil {
		return err
	}
	p, c := &parcel{}, of.c.NoGrad()
	into[at] = p
	for i, b := range slices.Repeat(f.borders[number], len(of.batches)) {
		t := tensor.Empty(c, b.dtype, b.shape...)
		p.tensors = append(p.tensors, t)
		p.calls = append(p.calls, r.cfg.Group.Recv(comm.OfTensor(r.root, t), r.step.Peer(a), label(send, i)))
	}
	return nil
}

// take waits for a parcel and takes it out of the map.
func (r *runner) take(from map[place]*parcel, at place) (*parcel, error) {
	p := from[at]
	if p == nil {
		return &parcel{}, nil
	}
	if err := r.wait(p); err != nil {
		return nil, err // the calls have the buffers until they end
	}
	delete(from, at)
	return p, nil
}

// reap frees what has been sent.
func (r *runner) reap() {
	left := r.sent[:0]
	for _, p := range r.sent {
		if !p.done() {
			left = append(left, p)
			continue
		}
		p.free()
	}
	r.sent = left
}

// reset forgets the gradients of the step before.
func (p *Pipeline) reset() {
	for _, t := range p.ties {
		t.forget()
	}
	for _, t := range p.all() {
		t.Reset()
	}
	for _, s := range p.stages {
		if s != nil {
			s.complete = false
		}
	}
}

// clear frees what the step has made. Calls that are under way own their buffers until they end.
func (r *runner) clear() {
	free := func(p *parcel) {
		_ = p.wait(context.Background()) // after an error the group is dead, which ends all calls
		p.free()
	}
	for _, p := range r.sent {
		free(p)
	}
	for _, list := range []map[place]*parcel{r.inputs, r.grads} {
		for _, p := range list {
			free(p)
		}
	}
	for _, w := range r.tied {
		w.free(free)
	}
	for _, p := range r.passes { // none, unless there was an error
		for i := range p.stores {
			_ = p.stores[i].Close()
		}
		if p.close != nil {
			p.close()
		}
		for _, q := range []*parcel{p.received, p.grads} {
			if q != nil {
				q.free()
			}
		}
	}
	for _, s := range r.stages {
		if s != nil {
			for _, q := range s.params {
				q.DropLowered()
			}
			for _, t := range s.ties {
				t.param.DropLowered()
			}
		}
	}
	if r.block != nil {
		r.block.Free()
	}
}
