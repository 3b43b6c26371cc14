// SPDX-License-Identifier: Apache-2.0

package algorithms

import (
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/internal/tree"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// Runner carries calls out, one at a time. It owns the memory for what is received and combined.
type Runner struct {
	// ChunkBytes is how much of a rank's share of a reduction goes at a time, so that adding overlaps sending, and
	// memory is bounded.
	ChunkBytes int

	combiner tree.Combiner
	scratch  []byte
	inputs   [][]byte
}

// Run carries out a call of at least one element, except for a barrier. The elements of an all-reduce's result are of
// the given dtype: the call's, or what they are rounded to. Errors are those of the links.
func (r *Runner) Run(l Links, c *comm.Call, result dtype.DType) error {
	if len(r.inputs) != l.Size() {
		r.inputs = make([][]byte, l.Size())
	}
	x := &exchange{r: r, l: l, c: c, me: l.Rank(), n: l.Size(), size: c.DType.Size(), result: result}
	return x.run()
}

// exchange is one call.
type exchange struct {
	r      *Runner
	l      Links
	c      *comm.Call
	me, n  int
	size   int // of an element
	result dtype.DType
}

func (x *exchange) run() error {
	c := x.c
	block := c.Count * x.size
	part := func(b []byte) func(int) []byte {
		return func(r int) []byte { return b[r*block : (r+1)*block] }
	}
	all := func(b []byte) func(int) []byte { return func(int) []byte { return b } }
	root := c.Root == x.me
	switch c.Op {
	case comm.AllReduce, comm.Reduce:
		if x.result == c.DType && Choose(c, x.n) == Ring {
			return x.ringAllReduce()
		}
		return x.reduce()
	case comm.ReduceScatter:
		if Choose(c, x.n) == Ring {
			return x.ringReduceScatter()
		}
		return x.reduceScatter()
	case comm.AllGather:
		return x.move(all(c.In), part(c.Out))
	case comm.AllToAll:
		return x.move(part(c.In), part(c.Out))
	case comm.Broadcast, comm.Scatter:
		if !root {
			return x.l.Begin(nil, []Part{{c.Root, c.Out}}).Received()
		}
		give := all(c.In)
		if c.Op == comm.Scatter {
			give = part(c.In)
			copy(c.Out, give(x.me))
		}
		return x.begin(give, nil).Received()
	case comm.Gather:
		if !root {
			return x.l.Begin([]Part{{c.Root, c.In}}, nil).Received()
		}
		keep(c.In, part(c.Out)(x.me))
		return x.begin(nil, part(c.Out)).Received()
	}
	return nil
}

// begin begins a round with all other ranks; nil gives or takes nothing, and so does an empty part.
func (x *exchange) begin(give, take func(rank int) []byte) Round {
	var send, receive []Part
	for r := range x.n {
		if r == x.me {
			continue
		}
		if give != nil {
			send = append(send, Part{r, give(r)})
		}
		if take != nil {
			receive = append(receive, Part{r, take(r)})
		}
	}
	return round(x.l, send, receive)
}

// move gives to all and takes from all.
func (x *exchange) move(give, take func(rank int) []byte) error {
	keep(give(x.me), take(x.me))
	return x.begin(give, take).Received()
}

// keep copies what a rank has for itself, unless it lies there.
func keep(from, to []byte) {
	if &from[0] != &to[0] {
		copy(to, from)
	}
}

// room returns n bytes of scratch memory.
func (r *Runner) room(n int) []byte {
	if len(r.scratch) < n {
		r.scratch = comm.Aligned(n)
	}
	return r.scratch[:n]
}

// combine sets dst to the combination of inputs.
func (x *exchange) combine(dst []byte, inputs ...[]byte) {
	x.r.combiner.Combine(dst, inputs, x.c.DType, x.c.Reduce, x.c.Fast)
}
