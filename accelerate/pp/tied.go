// SPDX-License-Identifier: Apache-2.0

package pp

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// tiedSum is a step's work on a tie, on the rank of its later stage.
type tiedSum struct {
	next       int                    // micro-batch to be added
	head       map[int]*tensor.Tensor // the gradients of the later stage, by micro-batch; nil: none came
	lookup     map[int]*lookup        // what comes from the earlier stage, by micro-batch
	resharding int                    // stages that have given up the parameter
}

// lookup is what the earlier stage of a tie adds to the gradient for a micro-batch: values [n,C] to rows [n].
type lookup struct {
	*tie
	rows, values *parcel
}

// lookups makes a backward pass of a stage give the lookups of its tied tables.
func (r *runner) lookups(s *stage, options *[]tensor.BackwardOption) (list []*lookup) {
	for _, t := range s.ties {
		if s.number != t.first {
			continue
		}
		l := &lookup{t, &parcel{owned: true}, &parcel{owned: true}}
		list = append(list, l)
		*options = append(*options, tensor.SparseGrads(t.param.Tensor, func(rows, values *tensor.Tensor) {
			ids := tensor.Empty(r.root, tensor.Int64, rows.Numel())
			tensor.CopyInto(r.root, ids, rows)
			l.rows.tensors = append(l.rows.tensors, ids)
			l.values.tensors = append(l.values.tensors, tensor.Clone(r.root, values))
		}))
	}
	return list
}

// join makes one pair of tensors of those of several lookups, which follow each other.
func (l *lookup) join(c *tensor.Ctx) {
	for _, p := range []*parcel{l.rows, l.values} {
		if len(p.tensors) > 1 {
			whole := tensor.Concat(c, 0, p.tensors...)
			p.free()
			p.tensors, p.owned = []*tensor.Tensor{whole}, true
		}
	}
}

func (l *lookup) free() {
	l.rows.free()
	l.values.free()
}

// sendLookup passes a lookup on to the later stage.
func (r *runner) sendLookup(l *lookup, microBatch int) error {
	if l.join(r.root); l.group == nil {
		r.tied[l.tie].lookup[microBatch] = l
		return nil
	}
	n, err := r.rows(l.tie, microBatch)
	switch {
	case err != nil:
		return err
	case len(l.rows.tensors) == 0 && n == 0:
		return nil
	case len(l.rows.tensors) == 0 || l.rows.tensors[0].Numel() != n:
		return fmt.Errorf("%s has a gradient for other rows than on a device without values: want %d", l.param.Name, n)
	}
	for _, p := range []*parcel{l.rows, l.values} {
		h := l.group.Send(comm.OfTensor(r.root, p.tensors[0]), l.peer(), comm.Label(l.param.Name))
		p.calls = append(p.calls, h)
		r.sent = append(r.sent, p)
	}
	return nil
}

// rows is how many rows a lookup of a tied table has for a micro-batch: none while the table is frozen.
func (r *runner) rows(t *tie, microBatch int) (int, error) {
	if !t.param.IsLeaf() {
		return 0, nil
	}
	f, err := r.flow(r.batches[microBatch])
	if err != nil {
		return 0, err
	}
	return f.rows[t], nil
}

// beginTied readies the sums of ties for a step.
func (r *runner) beginTied() error {
	for _, t := range r.ties {
		if r.rank != t.ranks[1] {
			continue
		}
		w := &tiedSum{head: map[int]*tensor.Tensor{}, lookup: map[int]*lookup{}}
		r.tied[t] = w
		if err := r.expect(t, w); err != nil {
			return err
		}
	}
	return nil
}

// expect begins to receive the next lookup.
func (r *runner) expect(t *tie, w *tiedSum) error {
	if t.group == nil || w.next == len(r.batches) {
		return nil
	}
	n, err := r.rows(t, w.next)
	if err != nil || n == 0 {
		return err
	}
	get := func(d tensor.DType, shape ...int) *parcel {
		x := tensor.Empty(r.root, d, shape...)
		h := t.group.Recv(comm.OfTensor(r.root, x), t.peer(), comm.Label(t.param.Name))
		return &parcel{tensors: []*tensor.Tensor{x}, calls: []*comm.Handle{h}, owned: true}
	}
	w.lookup[w.next] = &lookup{t, get(tensor.Int64, n), get(t.param.GradDType(), n, t.param.Size(1))}
	return nil
}

// takeLookup waits for the next lookup; nil: there are no rows.
func (r *runner) takeLookup(w *tiedSum) (*lookup, error) {
	l := w.lookup[w.next]
	if l == nil || len(l.rows.tensors) == 0 {
		return nil, nil
	}
	for _, p := range []*parcel{l.rows, l.values} {
		if err := r.wait(p); err != nil {
			return nil, err
		}
	}
	delete(w.lookup, w.next)
	return l, nil
}

// addTied adds up the gradients of ties: those micro-batches that are due, or, if it may wait, all.
func (r *runner) addTied(wait bool) error {
	for _, t := range r.ties {
		w := r.tied[t]
		if w == nil {
			continue
		}
		for w.next < len(r.batches) && (wait || w.next < r.step.due[t][r.at]) {
			if err := r.addNext(t, w); err != nil {
				return err
			}
		}
		for ; w.next == len(r.batches) && w.resharding > 0; w.resharding-- {
			t.reshard()
		}
	}
	return nil
}

// addNext adds the gradients of the next micro-batch: those of the later stage, and then the rows of the earlier one.
func (r *runner) addNext(t *tie, w *tiedSum) error {
	l, err := r.takeLookup(w)
	if err != nil {
		return err
	}
	g := w.head[w.next]
	delete(w.head, w.next)
	if l != nil {
		if g == nil {
			g = tensor.Zeros(r.root, t.param.GradDType(), t.param.Shape()...)
		}
		r.addRows(g, l)
		l.free()
	}
	t.begin(r.number(w.next), false)
	t.add(r.root, g)
	t.end()
	w.next++
	return r.expect(t, w)
}

// addRows adds a lookup to the gradient of a tie, with the bits of a backward pass: see tensor.SparseGrads.
func (r *runner) addRows(g *tensor.Tensor, l *lookup) {
	rows, values := l.rows.tensors[0], l.values.tensors[0]
	if d := r.cfg.Job.Divided; d == nil || !d.Of[l.param.Name].Parted {
		tensor.AddRowsInto(r.root, g, rows, values)
		return
	}
	tensor.AddOwnRowsInto(r.root, g, rows, values)
}

// free gives up what a step that failed has left.
func (w *tiedSum) free(done func(*parcel)) {
	for _, g := range w.head {
		if g != nil {
			g.Free()
		}
	}
	for _, l := range w.lookup {
		done(l.rows)
		done(l.values)
	}
}

// finishTie completes the gradient of a tied parameter: what this rank trains of it.
func (r *runner) finishTie(t *tie) (calls []*comm.Handle, err error) {
	sums := r.tied[t] != nil
	if !sums && r.rank != t.ranks[0] {
		return nil, nil
	}
	if sums {
		if err := t.Finish(r.ctx); err != nil {
			return nil, err
		}
	}
	if !t.param.IsLeaf() { // it was frozen after Prepare, on all ranks
		return nil, nil
	}
	for _, q := range t.Trained() {
		switch {
		case !sums:
			t.receive(q, tensor.Empty(r.root, q.GradDType(), q.Shape()...))
		case q.Grad() == nil:
			t.receive(q, tensor.Zeros(r.root, q.GradDType(), q.Shape()...))
		}
		switch g := comm.OfTensor(r.root, q.Grad()); {
		case t.group == nil:
		case sums:
			calls = append(calls, t.group.Send(g, t.peer(), comm.Label(t.param.Name)))
		default:
			calls = append(calls, t.group.Recv(g, t.peer(), comm.Label(t.param.Name)))
		}
	}
	return calls, nil
}

// due is, for each tie that is summed on this rank and each action, how many micro-batches can be added before it:
// those whose gradients and rows are there on a clock on which each pass takes one tick. So no two ranks wait for each
// other, and ranks that train the parameter together compute and exchange in the same order.
func (p *Pipeline) due(sim *schedule.Simulation) map[*tie][]int {
	due := map[*tie][]int{}
	for _, t := range p.ties {
		if t.ranks[1] != p.rank || sim.Schedule.ForwardOnly {
			continue
		}
		came := make([]float64, sim.Schedule.MicroBatches)
		for _, end := range []struct {
			stage, rank int
			op          schedule.Op
		}{{t.first, t.ranks[0], schedule.I}, {t.last, t.ranks[1], schedule.W}} {
			for i, a := range sim.Schedule.Ranks[end.rank] {
				if a.Stage != end.stage || a.Op != schedule.B && a.Op != end.op {
					continue
				}
				at := sim.Timeline[end.rank][i].End
				if end.rank != p.rank {
					at++ // on its way
				}
				came[a.MicroBatch] = max(came[a.MicroBatch], at)
			}
		}
		now, count := 0.0, 0
		for _, span := range sim.Timeline[p.rank] {
			now = max(now, span.Start)
			for count < len(came) && came[count] <= now {
				count++
			}
			due[t] = append(due[t], count)
		}
	}
	return due
}
