// SPDX-License-Identifier: Apache-2.0

package pp

import (
	"context"
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// runner is one step of a pipeline on one rank.
type runner struct {
	*Pipeline
	ctx      context.Context
	schedule *schedule.Schedule
	batches  []*data.Batch
	training bool
	scale    float64

	block  *tensor.Tensor // the losses of the micro-batches
	losses []Loss
	passes map[place]*pass
	inputs map[place]*parcel     // of a stage
	grads  map[place]*parcel     // of a stage's outputs
	tied   map[tiedPlace]*parcel // gradients of tied parameters, from the last stage
	sent   []*parcel
}

// place is a stage and a micro-batch.
type place struct{ stage, microBatch int }

// tiedPlace is the gradient of a tie for a micro-batch.
type tiedPlace struct {
	*tie
	microBatch int
}

// parcel is what flows from one stage to another, maybe on its way.
type parcel struct {
	tensors []*tensor.Tensor
	calls   []*comm.Handle
	owned   bool // the tensors lie outside of scopes, and are freed with the parcel
}

func (p *parcel) wait(ctx context.Context) error { return comm.WaitAll(ctx, p.calls...) }

// done reports whether wait would not wait.
func (p *parcel) done() bool {
	for _, h := range p.calls {
		select {
		case <-h.Done():
		default:
			return false
		}
	}
	return true
}

func (p *parcel) free() {
	if p.owned {
		for _, t := range p.tensors {
			t.Free()
		}
	}
	p.tensors, p.owned = nil, false
}

// pass is a stage's work on a micro-batch, between its passes.
type pass struct {
	place
	c        *nn.Ctx // its scope is open
	close    func(out ...*tensor.Tensor)
	received *parcel
	grads    *parcel          // of out, which store may hold
	in       []*tensor.Tensor // of received, as ends of the graph
	out      []*tensor.Tensor
	sent     *parcel // of out; nil on the last stage
	store    tensor.WeightGradStore
}

// step runs the rank's actions.
func (r *runner) step() (losses []Loss, err error) {
	n := len(r.batches)
	r.block, r.losses = tensor.Zeros(r.root, tensor.Float64, n), make([]Loss, n)
	if r.training {
		r.reset()
		for _, s := range r.stages {
			if s != nil {
				r.expectTied(s, 0)
			}
		}
	}
	for _, a := range r.schedule.Ranks[r.rank] {
		var err error
		if fault := tensor.Recover(func() { err = r.do(a) }); fault != nil {
			err = r.batches[a.MicroBatch].Explain(fault)
		}
		if err != nil {
			return nil, fmt.Errorf("pp: rank %d, %v: %w", r.cfg.Group.JobRank(r.rank), a, err)
		}
		r.reap()
	}
	if fault := tensor.Recover(func() { err = r.finish() }); fault != nil {
		err = fault
	}
	if err != nil {
		return nil, fmt.Errorf("pp: rank %d, end of a step: %w", r.cfg.Group.JobRank(r.rank), err)
	}
	if r.stages[len(r.stages)-1] == nil {
		return nil, nil
	}
	for i, sum := range tensor.ToSlice[float64](r.root, r.block) {
		r.losses[i].Sum = sum
	}
	return r.losses, nil
}

// open is the pass at a place, which the first action there begins.
func (r *runner) open(at place) *pass {
	p := r.passes[at]
	if p != nil {
		return p
	}
	root := r.cfg.Ctx
	if !r.training {
		root = r.root
	}
	p = &pass{place: at}
	r.passes[at] = p
	p.c, p.close = r.cfg.Context(root, r.cfg.Tree, r.batches[at.microBatch], r.training).OpenScope()
	return p
}

// do runs an action.
func (r *runner) do(a schedule.Action) error {
	at := place{a.Stage, a.MicroBatch}
	switch a.Op {
	case schedule.F:
		return r.forward(at)
	case schedule.I, schedule.B:
		return r.backward(at, a.Op == schedule.B)
	case schedule.W:
		return r.weights(r.passes[at])
	case schedule.SendF:
		return r.send(r.outputs(at), a)
	case schedule.SendB:
		return r.send(r.grads[place{a.Stage - 1, a.MicroBatch}], a)
	case schedule.RecvF:
		return r.receive(r.inputs, at, a.Stage-1, a)
	case schedule.RecvB:
		return r.receive(r.grads, at, a.Stage, a)
	case schedule.ReduceGrad:
		return r.reduce(r.stages[a.Stage])
	}
	return nil // parameters are not sharded
}
