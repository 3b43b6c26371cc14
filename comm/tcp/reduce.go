// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/internal/tree"
	"github.com/lockstep-ml/lockstep/comm/internal/window"
)

// reduceScatter sends each rank its block and combines what comes for this one, chunk by chunk.
func (x *exchange) reduceScatter() error {
	c, e := x.c, x.e
	block, chunkBytes := c.Count*x.size, e.over.ChunkBytes
	for lo := 0; lo < block; lo += chunkBytes { // the streams are cut alike on all ranks
		hi := min(lo+chunkBytes, block)
		for r, p := range e.peers {
			if p != nil {
				p.out.push(c.In[r*block+lo : r*block+hi])
			}
		}
	}
	for lo := 0; lo < block; lo += chunkBytes {
		hi := min(lo+chunkBytes, block)
		if err := x.collect(c.In[e.rank*block+lo:e.rank*block+hi], hi-lo); err != nil {
			return err
		}
		e.combiner.Combine(c.Out[lo:hi], e.inputs, c.DType, c.Reduce, c.Fast)
	}
	return nil
}

// collect reads n bytes from every other rank, and lists them beside this rank's own.
func (x *exchange) collect(own []byte, n int) error {
	x.places(own, n)
	for r, p := range x.e.peers {
		if p != nil {
			if err := x.read(r, x.e.inputs[r]); err != nil {
				return err
			}
		}
	}
	return nil
}

// places makes room for n bytes of every other rank, and lists it beside this rank's own.
func (x *exchange) places(own []byte, n int) {
	e := x.e
	if need := n * len(e.peers); len(e.scratch) < need {
		e.scratch = comm.Aligned(need)
	}
	for r, p := range e.peers {
		e.inputs[r] = own
		if p != nil {
			e.inputs[r] = e.scratch[r*n : (r+1)*n]
		}
	}
}

// input returns the place of a rank's bytes.
func (x *exchange) input(rank int) []byte { return x.e.inputs[rank] }

// reduceScatterAtOnce is reduceScatter for a transport that exchanges parts at once.
func (x *exchange) reduceScatterAtOnce() error {
	c, e := x.c, x.e
	block, chunk := c.Count*x.size, e.over.ChunkBytes
	for lo := 0; lo < block; lo += chunk {
		hi := min(lo+chunk, block)
		x.places(c.In[e.rank*block+lo:e.rank*block+hi], hi-lo)
		if err := x.swap(func(r int) []byte { return c.In[r*block+lo : r*block+hi] }, x.input); err != nil {
			return err
		}
		e.combiner.Combine(c.Out[lo:hi], e.inputs, c.DType, c.Reduce, c.Fast)
	}
	return nil
}

// reduceAtOnce is reduce for such a transport: the ranks exchange the slices of a chunk, then the results.
func (x *exchange) reduceAtOnce() error {
	c, e := x.c, x.e
	chunk := e.over.ChunkBytes / x.size * len(e.peers)
	for k := range (c.Count + chunk - 1) / chunk {
		own := x.share(k, chunk, e.rank)
		x.places(own, len(own))
		if err := x.swap(func(r int) []byte { return x.share(k, chunk, r) }, x.input); err != nil {
			return err
		}
		result := x.add(k, chunk)
		give := func(r int) []byte {
			if !x.gets(r) {
				return nil
			}
			return result
		}
		take := func(r int) []byte {
			if !x.gets(e.rank) {
				return nil
			}
			return x.place(k, chunk, r)
		}
		if err := x.swap(give, take); err != nil {
			return err
		}
	}
	return nil
}

// gets reports whether a rank is to have the result.
func (x *exchange) gets(rank int) bool { return x.c.Op != comm.Reduce || rank == x.c.Root }

// reduce is all-reduce and reduce: every rank combines its share of each chunk and sends the result to all, or to the
// root. Two chunks are on their way at any time; on each connection follow one another the slices of chunks 0 and 1,
// the result of 0, the slices of 2, the result of 1, and so on.
func (x *exchange) reduce() error {
	chunk := x.e.over.ChunkBytes / x.size * len(x.e.peers)
	n := (x.c.Count + chunk - 1) / chunk
	sent := make([][]int, n) // by chunk and rank: the number of the slice in its writer
	scatter := func(k int) {
		if k >= n {
			return
		}
		sent[k] = make([]int, len(x.e.peers))
		for r, p := range x.e.peers {
			if p != nil {
				sent[k][r] = p.out.push(x.share(k, chunk, r))
			}
		}
	}
	scatter(0)
	scatter(1)
	for k := range n + 1 {
		if k < n {
			if err := x.combine(k, chunk); err != nil {
				return err
			}
			scatter(k + 2)
		}
		if k > 0 {
			if err := x.results(k-1, chunk, sent[k-1]); err != nil {
				return err
			}
		}
	}
	return nil
}

// share returns rank's part of a chunk of this rank's buffer.
func (x *exchange) share(k, chunk, rank int) []byte {
	from, to := x.bounds(k, chunk, rank)
	return x.c.In[from*x.size : to*x.size]
}

// place returns where rank's part of a chunk of the result belongs: where its share is, unless the result has another
// dtype.
func (x *exchange) place(k, chunk, rank int) []byte {
	from, to := x.bounds(k, chunk, rank)
	return x.c.Out[from*x.result.Size() : to*x.result.Size()]
}

func (x *exchange) bounds(k, chunk, rank int) (from, to int) {
	lo := k * chunk
	hi := min(lo+chunk, x.c.Count)
	from, to = window.Share(hi-lo, len(x.e.peers), rank, 16)
	return lo + from, lo + to
}

// combine adds this rank's share of a chunk and sends the result on.
func (x *exchange) combine(k, chunk int) error {
	own := x.share(k, chunk, x.e.rank)
	if err := x.collect(own, len(own)); err != nil {
		return err
	}
	result := x.add(k, chunk)
	for r, p := range x.e.peers {
		if p != nil && x.gets(r) {
			p.out.push(result)
		}
	}
	return nil
}

// add combines what was collected of this rank's share of a chunk, and returns the result, which lies where it belongs
// if this rank is to have it.
func (x *exchange) add(k, chunk int) []byte {
	c, e := x.c, x.e
	result := e.inputs[e.rank]
	if !x.gets(e.rank) {
		result = make([]byte, len(result)) // the buffer keeps what it held
	}
	e.combiner.Combine(result, e.inputs, c.DType, c.Reduce, c.Fast)
	if len(result) > 0 && &c.In[0] != &c.Out[0] {
		rounded := x.place(k, chunk, e.rank)
		tree.Finish(rounded, result, x.result)
		result = rounded
	}
	return result
}

// results reads the other ranks' shares of a chunk into the buffer. A share's place was sent to that very rank, which
// has combined it: it is free, and the writer knows it.
func (x *exchange) results(k, chunk int, sent []int) error {
	if !x.gets(x.e.rank) {
		return nil
	}
	for r, p := range x.e.peers {
		if p == nil {
			continue
		}
		if err := p.out.wait(sent[r]); err != nil {
			return x.e.explain(x.c, r, err, []int{r})
		}
		if err := x.read(r, x.place(k, chunk, r)); err != nil {
			return err
		}
	}
	return nil
}
