// SPDX-License-Identifier: Apache-2.0

// Package tree combines the buffers of several ranks in the order that package comm specifies: a binary tree over
// ranks, per element.
//
// Partners at distance 1, 2, 4, … are combined, rank i with rank i+d, and one without a partner is carried up. float32
// and float64 are combined in their own precision; bfloat16 and float16 in float32, with one rounding at the end. Each
// element's result depends only on the ranks' values of that element.
//
// It is NOT an engine: it sees buffers side by side and moves nothing between ranks.
package tree

import (
	"fmt"
	"math/bits"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/backend/cpu"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// blockBytes is the size of one input's part that is combined at a time, so that a tree's partial results stay in the
// nearest caches.
const blockBytes = 8 << 10

// maxDepth is the largest number of unmerged subtrees plus one: enough for a million ranks.
const maxDepth = 21

// Combiner combines inputs; it owns the memory for partial results. It is for one goroutine at a time; the zero value
// is ready.
type Combiner struct {
	scratch []byte
}

// Accumulator returns the dtype that partial results of d have: float32 for the half-precision types, else d.
func Accumulator(d dtype.DType) dtype.DType {
	if d.IsHalf() {
		return dtype.Float32
	}
	return d
}

// Combine sets dst to the combination of inputs, all of dtype d and equally long. dst may be one of the inputs, but
// must not overlap them otherwise. fast permits another order (rank by rank). It panics if the lengths differ.
func (c *Combiner) Combine(dst []byte, inputs [][]byte, d dtype.DType, op comm.ReduceOp, fast bool) {
	c.run(dst, inputs, d, op, fast, d.IsHalf())
}

// Partial is Combine, but dst has the dtype Accumulator(d): half-precision results are not rounded yet.
func (c *Combiner) Partial(dst []byte, inputs [][]byte, d dtype.DType, op comm.ReduceOp, fast bool) {
	c.run(dst, inputs, d, op, fast, false)
}

// Finish rounds a partial result, of dtype Accumulator(d), to d.
func Finish(dst, partial []byte, d dtype.DType) {
	switch d {
	case dtype.BFloat16, dtype.Float16:
		cpu.RoundHost(dst, dtype.Elements[float32](partial), d)
	default:
		copy(dst, partial)
	}
}

// run goes through the buffers block by block.
func (c *Combiner) run(dst []byte, inputs [][]byte, d dtype.DType, op comm.ReduceOp, fast, narrow bool) {
	size := d.Size()
	n := len(inputs[0]) / size
	acc := Accumulator(d)
	outSize := acc.Size()
	if narrow {
		outSize = size
	}
	if len(dst) != n*outSize {
		panic(fmt.Sprintf("tree: dst has %d bytes: want %d", len(dst), n*outSize))
	}
	for _, in := range inputs {
		if len(in) != len(inputs[0]) {
			panic(fmt.Sprintf("tree: inputs of %d and %d bytes", len(inputs[0]), len(in)))
		}
	}
	step := blockBytes / acc.Size()
	levels := bits.Len(uint(len(inputs))) + 1
	if need := levels * blockBytes; len(c.scratch) < need {
		c.scratch = comm.Aligned(need)
	}
	for lo := 0; lo < n; lo += step {
		hi := min(lo+step, n)
		b := block{c: c, inputs: inputs, lo: lo, hi: hi, dtype: d, acc: acc, op: op, bytes: (hi - lo) * acc.Size()}
		out := dst[lo*outSize : hi*outSize]
		if narrow {
			Finish(out, b.combine(nil, fast), d)
		} else {
			b.combine(out, fast)
		}
	}
}

// block is one stretch of elements of all inputs.
type block struct {
	c          *Combiner
	inputs     [][]byte
	lo, hi     int
	dtype, acc dtype.DType
	op         comm.ReduceOp
	bytes      int // of one partial result
}

func (b *block) level(i int) []byte { return b.c.scratch[i*blockBytes : i*blockBytes+b.bytes] }

// leaf returns rank i's elements in the accumulator's dtype, using scratch level at if they must be converted.
func (b *block) leaf(i, at int) []byte {
	in := b.inputs[i][b.lo*b.dtype.Size() : b.hi*b.dtype.Size()]
	if b.acc == b.dtype {
		return in
	}
	wide := b.level(at)
	cpu.WidenHost(dtype.Elements[float32](wide), in, b.dtype)
	return wide
}

// combine runs a binary counter over the ranks: stack position k holds a subtree, and equal ones merge. The result lies
// in out, or in scratch if out is nil. Partial results use the scratch level of their stack position, so that a merge
// writes where its left side lies.
func (b *block) combine(out []byte, fast bool) []byte {
	var stack [maxDepth][]byte
	var ranks [maxDepth]int
	depth := 0
	merge := func() {
		depth--
		to := b.level(depth - 1)
		if depth == 1 && out != nil && b.last(ranks[0]+ranks[1]) {
			to = out
		}
		combine(to, stack[depth-1], stack[depth], b.acc, b.op)
		stack[depth-1] = to
		ranks[depth-1] += ranks[depth]
	}
	for i := range b.inputs {
		stack[depth], ranks[depth] = b.leaf(i, depth), 1
		depth++
		for depth > 1 && (fast || ranks[depth-1] == ranks[depth-2]) {
			merge()
		}
	}
	for depth > 1 {
		merge()
	}
	if out != nil && len(b.inputs) == 1 {
		copy(out, stack[0])
		return out
	}
	return stack[0]
}

// last reports whether a subtree of so many ranks is the whole tree: only then may the output, which may be an input,
// be written.
func (b *block) last(ranks int) bool { return ranks == len(b.inputs) }
