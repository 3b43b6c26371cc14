// SPDX-License-Identifier: Apache-2.0

package pp

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/tensor"
)

// tiedSum is a step's work on a tie, on the rank of its later stage.
type tiedSum struct {
	next       int                      // micro-batch to be added
	head       map[int][]*tensor.Tensor // of the later stage, by micro-batch and chunk; nil: none came
	lookup     map[int]*lookup          // what comes from the earlier stage, by micro-batch
	resharding int                      // stages that have given up the parameter
}

// lookup is what the earlier stage of a tie adds to the gradient for a micro-batch: values [n,C] to rows [n], those of
// all of its chunks and of all lookups in each, one after the other.
type lookup struct {
	*tie
	rows, values *parcel
	came         [][2][]*tensor.Tensor // rows and values, by chunk, before they are joined
}

// lookups are those of the tied tables of a stage, in its backward passes of so many chunks.
func (r *runner) lookups(s *stage, chunks int) (list []*lookup) {
	for _, t := range s.ties {
		if s.number == t.first {
			list = append(list, &lookup{t, &parcel{owned: true}, &parcel{owned: true},
				make([][2][]*tensor.Tensor, chunks)})
		}
	}
	return list
}

// option makes the backward pass of a chunk give the lookups.
func (l *lookup) option(c *tensor.Ctx, chunk int) tensor.BackwardOption {
	return tensor.SparseGrads(l.param.Tensor, func(rows, values *tensor.Tensor) {
		ids := tensor.Empty(c, tensor.Int64, rows.Numel())
		tensor.CopyInto(c, ids, rows)
		came := &l.came[chunk]
		came[0] = append(came[0], ids)
		came[1] = append(came[1], tensor.Clone(c, values))
	})
}

// join makes one pair of tensors of those of several lookups.
func (l *lookup) join(c *tensor.Ctx) {
	for _, came := range l.came {
		l.rows.tensors = append(l.rows.tensors, came[0]...)
		l.values.tensors = append(l.values.tensors, came[1]...)
	}
	l.came = nil
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
	n, err := r.rows(l.tie, microBatch)
	if err != nil {
		return err
	}
	switch l.join(r.root); {
	case len(l.rows.tensors) == 0 && len(n) == 0:
		return nil
	case len(l.rows.tensors) == 0 || l.rows.tensors[0].Numel() != r.ownChunks()*total(n):
		return fmt.Errorf("%s has a gradient for other rows than on a device without values: want %d in each of %s",
			l.param.Name, n, quantity.Of(r.ownChunks(), "chunk"))
	case l.group == nil:
		r.tied[l.tie].lookup[microBatch] = l
		return nil
	}
	for _, p := range []*parcel{l.rows, l.values} {
		h := l.group.Send(comm.OfTensor(r.root, p.tensors[0]), l.peer(), comm.Label(l.param.Name))
		p.calls = append(p.calls, h)
		r.sent = append(r.sent, p)
	}
	return nil
}

// rows is how many rows each lookup of a tied table has for a micro-batch, or for a chunk of it, in the order of a
// backward pass: none while the table is frozen.
func (r *runner) rows(t *tie, microBatch int) ([]int, error) {
	if !t.param.IsLeaf() {
		return nil, nil
	}
	f, err := r.flow(r.batches[microBatch])
	if err != nil {
		return nil, err
	}
	return f.rows[t], nil
}

// total is the sum of rows.
func total(rows []int) (n int) {
	for _, m := range rows {
		n += m
	}
	return n
}

// beginTied readies the sums of ties for a step.
func (r *runner) beginTied() error {
	for _, t := range r.ties {
		if r.rank != t.ranks[1] {
			continue
		}
		w := &tiedSum{head: map[int][]*tensor.Tensor{}, lookup: map[int]*lookup{}}
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
	rows, err := r.rows(t, w.next)
	n := r.ownChunks() * total(rows)
	if err != nil || n == 0 {
		return err
	}
	get := func(d tensor.DType, shape ...int) *parcel {
		x := tensor.Empty(r.root, d, shape...)
		h := t.group.Recv(comm.OfTensor(r.root, x), t.peer(), comm.Label(t.param.Name))
		return &parcel{tensors: []*tensor.Tensor{x}, calls: []*comm.Handle{h}, owned: true}
	}
	w.lookup[w.next] = &lookup{t, get(tensor.Int64, n), get(t.param.GradDType(), n, t.param.Size(1)), nil}
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

// addNext adds the gradients of the next micro-batch: for each chunk those of the later stage, and then the rows of the
// earlier one, lookup by lookup.
func (r *runner) addNext(t *tie, w *tiedSum) error {
	l, err := r.takeLookup(w)
	if err != nil {
		return err
	}
	parts := make([]*tensor.Tensor, r.ownChunks())
	copy(parts, w.head[w.next])
	delete(w.head, w.next)
	if l != nil {
		defer l.free()
		if err := r.addLookups(parts, l, w.next); err != nil {
			return err
		}
	}
	t.begin(r.number(w.next), false)
	if err := r.addChunks(t, parts); err != nil {
		return err
	}
	t.end()
	w.next++
	return r.expect(t, w)
}

// addLookups adds the lookups of a micro-batch to the gradients of its chunks.
func (r *runner) addLookups(parts []*tensor.Tensor, l *lookup, microBatch int) error {
	rows, err := r.rows(l.tie, microBatch)
	if err != nil {
		return err
	}
	at := 0
	for i := range parts {
		if parts[i] == nil {
			parts[i] = tensor.Zeros(r.root, l.param.GradDType(), l.param.Shape()...)
		}
		for _, n := range rows {
			of := func(p *parcel) *tensor.Tensor { return tensor.Slice(r.root, p.tensors[0], 0, at, at+n) }
			r.addRows(parts[i], l.param.Name, of(l.rows), of(l.values))
			at += n
		}
	}
	return nil
}

// addRows adds a lookup to the gradient of a tie, with the bits of a backward pass: see tensor.SparseGrads.
func (r *runner) addRows(g *tensor.Tensor, name string, rows, values *tensor.Tensor) {
	if d := r.cfg.Job.Divided; d == nil || !d.Of[name].Parted {
		tensor.AddRowsInto(r.root, g, rows, values)
		return
	}
	tensor.AddOwnRowsInto(r.root, g, rows, values)
}

// free releases what a step that failed has left.
func (w *tiedSum) free(done func(*parcel)) {
	for _, list := range w.head {
		for _, g := range list {
			if g != nil {
				g.Free()
			}
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
