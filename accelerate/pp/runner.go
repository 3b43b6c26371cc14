// SPDX-License-Identifier: Apache-2.0

package pp

import (
	"context"
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate/cp"
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
	step     *step
	batches  []*data.Batch
	training bool
	scale    float64

	at     int            // action
	block  *tensor.Tensor // the losses of the micro-batches, or of their chunks
	counts []float64      // of their loss terms
	passes map[place]*pass
	inputs map[place]*parcel // of a stage
	grads  map[place]*parcel // of a stage's outputs
	tied   map[*tie]*tiedSum // those that are summed here
	sent   []*parcel
	record *record // nil: nobody listens
}

// place is a stage and a micro-batch.
type place struct{ stage, microBatch int }

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
	batches  []*data.Batch // the micro-batch, or this rank's chunks of it: tensors below are in their order
	chunks   *cp.Batch     // nil: its sequences are whole
	received *parcel
	grads    *parcel          // of out, which stores may hold
	in       []*tensor.Tensor // of received, as ends of the graph
	out      []*tensor.Tensor
	sent     *parcel                  // of out; nil on the last stage
	stores   []tensor.WeightGradStore // of batches
	delayed  bool                     // stores have weight gradients
}

// run runs the rank's actions.
func (r *runner) run() (losses []Loss, err error) {
	n := len(r.batches) * r.chunks()
	r.block, r.counts = tensor.Zeros(r.root, tensor.Float64, max(n, 1)), make([]float64, n)
	if err := r.attempt("begin of a step", r.begin); err != nil {
		return nil, err
	}
	r.beginRecord()
	for i, a := range r.step.Ranks[r.rank] {
		r.at = i
		var err error
		act := func() error { return r.do(a) }
		if fault := tensor.Recover(func() { err = r.recorded(i, a, act) }); fault != nil {
			err = r.batches[a.MicroBatch].Explain(fault)
		}
		if err != nil {
			return nil, fmt.Errorf("pp: rank %d, %v: %w", r.cfg.Group.JobRank(r.rank), a, err)
		}
		r.reap()
	}
	total := func() (err error) {
		losses, err = r.total()
		return err
	}
	for _, f := range []func() error{r.finish, r.endRecord, total} {
		if err := r.attempt("end of a step", f); err != nil {
			return nil, err
		}
	}
	return losses, nil
}

// total is the losses of the micro-batches, on the rank of the last stage.
func (r *runner) total() ([]Loss, error) {
	if r.stages[len(r.stages)-1] == nil {
		return nil, nil
	}
	sums := tensor.ToSlice[float64](r.root, r.block)
	losses, shares := make([]Loss, len(r.batches)), make([][]cp.Sum, len(r.batches))
	for i, count := range r.counts {
		micro := i / r.chunks()
		losses[micro] = Loss{sums[i], count}
		shares[micro] = append(shares[micro], cp.Sum{Loss: sums[i], Count: count})
	}
	if r.cfg.Tokens == nil {
		return losses, nil
	}
	totals, err := r.cfg.Tokens.Totals(r.ctx, shares)
	for i, total := range totals {
		losses[i] = Loss{total.Loss, total.Count}
	}
	return losses, err
}

// attempt calls f, which may panic with an error.
func (r *runner) attempt(what string, f func() error) (err error) {
	if fault := tensor.Recover(func() { err = f() }); fault != nil {
		err = fault
	}
	if err != nil {
		err = fmt.Errorf("pp: rank %d, %s: %w", r.cfg.Group.JobRank(r.rank), what, err)
	}
	return err
}

// begin readies what this rank trains for a step.
func (r *runner) begin() error {
	if !r.training {
		return nil
	}
	r.reset()
	for _, t := range r.all() {
		if err := t.Open(r.ctx); err != nil {
			return err
		}
	}
	return r.beginTied()
}

// open is the pass at a place, which the first action there begins.
func (r *runner) open(at place) (*pass, error) {
	p := r.passes[at]
	if p != nil {
		return p, nil
	}
	root, b := r.cfg.Job.Ctx, r.batches[at.microBatch]
	if !r.training {
		root = r.root
	}
	p = &pass{place: at, batches: []*data.Batch{b}}
	r.passes[at] = p
	p.c, p.close = r.cfg.Context(root, r.cfg.Job.Tree, b, r.training).OpenScope()
	if t := r.cfg.Tokens; t != nil {
		var err error
		if p.chunks, err = t.Open(r.ctx, p.c, b); err != nil {
			return nil, err
		}
		p.batches = p.chunks.Chunks
	}
	p.stores = make([]tensor.WeightGradStore, len(p.batches))
	return p, nil
}

// each calls f for the micro-batch, or for each of its chunks, which meet in attentions.
func (p *pass) each(f func(i int) error) error {
	if p.chunks == nil {
		return f(0)
	}
	return p.chunks.Each(f)
}

// context is that of the forward pass of batch i.
func (p *pass) context(i int) *nn.Ctx {
	if p.chunks == nil {
		return p.c
	}
	return p.chunks.Context(i)
}

// of is what batch i has of tensors of all.
func (p *pass) of(i int, all []*tensor.Tensor) []*tensor.Tensor {
	n := len(all) / len(p.batches)
	return all[i*n : (i+1)*n : (i+1)*n]
}

// do runs an action, after the sums of tied gradients that are due.
func (r *runner) do(a schedule.Action) error {
	if err := r.addTied(false); err != nil {
		return err
	}
	return r.observed(a, func() error { return r.act(a) })
}

// observed calls f, which runs an action.
func (r *runner) observed(a schedule.Action, f func() error) error {
	if r.observe == nil {
		return f()
	}
	r.observe(r, a, false)
	err := f()
	r.observe(r, a, true)
	return err
}

// act runs an action.
func (r *runner) act(a schedule.Action) error {
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
	case schedule.Unshard:
		r.unshard(r.stages[a.Stage])
	case schedule.Reshard:
		r.reshard(r.stages[a.Stage])
	case schedule.ReduceGrad:
		return r.reduce(r.stages[a.Stage])
	}
	return nil
}

// exchangesEarly reports whether the gradients of a stage are exchanged in its last pass, and completed after it. In
// steps of fewer micro-batches than the schedule's, of which other pipelines may have more or none, that waits for the
// end.
func (r *runner) exchangesEarly(s *stage) bool {
	return len(r.batches) == r.cfg.Schedule.MicroBatches && r.early[s.number]
}
