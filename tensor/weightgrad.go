// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"slices"
)

// WeightGradStore holds the weight gradients that Backwards with [DelayWeightGrads] have left to Pop, in the order of
// these Backwards. The zero value is empty. A store belongs to one goroutine at a time.
//
// The store holds the operands of the missing gradients: inputs of ops and gradients of their outputs. They outlive
// their scopes. Pop and Close free them, and the garbage collector does when the store is unreachable.
type WeightGradStore struct {
	passes []*weightPass
}

// DelayWeightGrads splits a Backward in two. The Backward itself computes the gradients of activations, and returns
// those that wrt names. s.Pop later computes the gradients of all other leaves, accumulates them in the order of the
// backward pass and runs the hooks of the leaves. Together they have the bits of one Backward with [Accumulating].
// Zero-bubble schedules of pipelines fill waiting time with such weight passes (Qi et al. 2023).
//
// Pop computes the matrix products and sums of Linear, AddMM, MatMul, Conv2D and Embedding, and scales the gradients of
// LinearCrossEntropy. All other ops, such as norms, compute the gradients of leaves together with those of activations:
// the store holds the results. A weight that is the result of an op is no leaf, so its products are not delayed either.
// A [Checkpoint] runs again in Backward only.
//
// Inputs of ops and the grads passed to Backward must not change before Pop.
func DelayWeightGrads(s *WeightGradStore) BackwardOption {
	return func(r *run) { r.store, r.delayed, r.accumulate = s, &weightPass{}, true }
}

// Len is the number of Backwards that wait for Pop.
func (s *WeightGradStore) Len() int { return len(s.passes) }

// Bytes is the size of the memory that the store holds. Memory that several tensors share counts once.
func (s *WeightGradStore) Bytes() int64 {
	seen, n := map[*storage]bool{}, 0
	for _, p := range s.passes {
		for _, t := range p.tasks {
			for _, r := range t.reads {
				if st := r.t.st; st.buf != nil && st.gen == r.t.gen && !seen[st] {
					seen[st] = true
					n += st.buf.Bytes()
				}
			}
		}
	}
	return int64(n)
}

// Pop computes the weight gradients of the oldest Backward in the store and frees what was held for them. c comes from
// the same NewCtx as the context of that Backward. Pop of an empty store is a misuse, and so is a held tensor that was
// changed or freed.
func (s *WeightGradStore) Pop(c *Ctx) {
	if len(s.passes) == 0 {
		c.fail("Pop", nil, "the store of weight gradients is empty: want one Pop for each Backward")
	}
	p := s.passes[0]
	s.passes = slices.Delete(s.passes, 0, 1)
	defer p.drop()
	c = c.NoGrad().plain().uncounted()
	for _, t := range p.tasks {
		t.perform(c)
	}
}

// Close empties the store. It returns an error if weight gradients were left, which are lost.
func (s *WeightGradStore) Close() error {
	left := s.passes
	s.passes = nil
	for _, p := range left {
		p.drop()
	}
	if len(left) == 0 {
		return nil
	}
	return &Error{Op: "WeightGradStore.Close",
		Msg: fmt.Sprintf("the weight gradients of %d Backwards are lost: want a Pop for each", len(left))}
}

// weightPass is what one Backward leaves to Pop, in the order of its walk. A Backward that Checkpoint runs inside adds
// to the pass of the outer one.
type weightPass struct {
	tasks []*task
}

// drop frees what no Pop has used.
func (p *weightPass) drop() {
	tasks := p.tasks
	p.tasks = nil
	for _, t := range tasks {
		t.release()
		t.run.abandon()
	}
}

// task is the part of a node's gradient function that computes the gradients of leaves.
type task struct {
	run   *run
	node  *Node
	parts []func(b *Back)
	reads []savedRef // held
}

// taskOf is a task for n; nil if no gradient of its inputs is delayed.
func (r *run) taskOf(n *Node) *task {
	if r.delayed == nil || !slices.ContainsFunc(n.in, func(e edge) bool { return e.wantedIn(r) && r.delays(e.leaf) }) {
		return nil
	}
	return &task{run: r, node: n}
}

// delays reports whether r leaves the gradient of a leaf, if it is wanted, to Pop.
func (r *run) delays(leaf *Tensor) bool { return leaf != nil && !slices.Contains(r.wrt, leaf) }

// delays reports whether the gradient of input i, if it is wanted, is left to Pop.
func (b *Back) delays(i int) bool { return b.task != nil && b.task.run.delays(b.node.in[i].leaf) }

// add leaves f to Pop and holds what it reads.
func (t *task) add(f func(b *Back), reads []*Tensor) {
	t.parts = append(t.parts, f)
	for _, x := range reads {
		x.st.hold()
		t.reads = append(t.reads, savedRef{x, x.st.ver})
	}
}

// perform computes the gradients and announces the leaves that are complete.
func (t *task) perform(c *Ctx) {
	r, n := t.run, t.node
	if r.c != c {
		r.c, r.back = c, Back{}
	}
	r.checkUnchanged(n, t.reads)
	n.run = r
	r.pullBack(n, func(b *Back) {
		for _, part := range t.parts {
			part(b)
		}
	})
	n.run = nil
	t.release()
	r.announce(n)
}

// release frees what the task holds.
func (t *task) release() {
	for _, r := range t.reads {
		r.release()
	}
	t.parts, t.reads = nil, nil
}
