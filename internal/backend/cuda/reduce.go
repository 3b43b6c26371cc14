// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

var reductionOps = map[backend.Op]row{
	backend.OpSum: {reduction("sum", false), signed}, backend.OpMax: {reduction("max", false), signed},
	backend.OpMin: {reduction("min", false), signed}, backend.OpArgMax: {reduction("argmax", true), signed},
	backend.OpArgMin: {reduction("argmin", true), signed}, backend.OpSumSq: {sumSq, floats},
}

// The pieces of a reduction: they are part of its order, and so follow only from the shape.
const (
	fewElements = 32        // up to which one thread takes them all
	blockPart   = 8192      // elements of a part that a block takes
	eachPart    = 64        // elements of a part that a thread takes, at least
	eachUnits   = 131072    // threads that are enough for a device
	eachParts   = 4096      // parts of an output, at most
	maxGridY    = 1<<16 - 1 // blocks
)

// cut is how a reduction is divided.
type cut struct {
	block       bool
	threads     int
	part, parts int
}

// cutOf divides the reduction of total elements for each of a number of outputs. last says that the last dim goes.
func cutOf(outputs, total int, last bool) cut {
	if total <= fewElements {
		return cut{part: max(1, total), parts: 1}
	}
	if !last {
		parts := min((total+eachPart-1)/eachPart, max(1, eachUnits/max(1, outputs)), eachParts)
		part := (total + parts - 1) / parts
		return cut{part: part, parts: (total + part - 1) / part}
	}
	part := blockPart
	for (total+part-1)/part > maxGridY {
		part *= 2
	}
	k := cut{block: true, part: part, parts: (total + part - 1) / part, threads: 256}
	switch {
	case total <= 256:
		k.threads = 32
	case total <= 2048:
		k.threads = 128
	}
	return k
}

// stateBytes are the sizes of partial results.
func stateBytes(op backend.Op, dt dtype.DType) int {
	wide := 4
	if dt.Size() == 8 {
		wide = 8
	}
	switch op {
	case backend.OpSum:
		return 8
	case backend.OpArgMax, backend.OpArgMin:
		return wide + 8
	}
	return wide
}

// wideSums are the kernels of sums of half types that are not rounded to them.
var wideSums = [3]names{
	namesOf("sum_wide", "_each", halfTypes), namesOf("sum_wide", "_block", halfTypes),
	namesOf("sum_wide", "_parts", halfTypes),
}

func reduction(name string, index bool) launcher {
	each, block, parts := namesOf(name, "_each", signed), namesOf(name, "_block", signed),
		namesOf(name, "_parts", signed)
	return func(s *stream, c *backend.Call) {
		in, out := &c.In[0], &c.Out[0]
		dt, to := in.DType, in.DType
		if index {
			to = dtype.Int64
		}
		each, block, parts := &each, &block, &parts
		if c.Op == backend.OpSum && dt.IsHalf() && out.DType == dtype.Float32 { // of a bias's gradient
			to, each, block, parts = out.DType, &wideSums[0], &wideSums[1], &wideSums[2]
		}
		if out.DType != to {
			s.fault(c, "no kernel from %s to %s", dt, out.DType)
		}
		kept, gone, last := s.geometry(c)
		if index {
			if dim := c.Ints[0]; dim < 0 || dim >= in.NDim || gone.n != in.Shape[dim] {
				s.fault(c, "dim %d: input of shape %v, output of shape %v", dim, in.Shape[:in.NDim],
					out.Shape[:out.NDim])
			}
		}
		if kept.n == 0 {
			return
		}
		if gone.n == 0 && c.Op != backend.OpSum {
			s.fault(c, "no elements to choose from: input of shape %v", in.Shape[:in.NDim])
		}
		if gone.n > maxWalk {
			s.fault(c, "%d elements for one output: want at most %d", gone.n, maxWalk)
		}
		k := cutOf(kept.n, gone.n, last)
		var scratch cuda.Ptr
		if k.parts > 1 {
			scratch = s.scratch(kept.n * k.parts * stateBytes(c.Op, dt))
		}
		first := 0
		for i := range kept.pieces(maxWalk) {
			w := kept.piece(maxWalk, i)
			var a args
			a.dims(&w)
			a.dims(&gone)
			a.u32(uint32(k.parts))
			a.u32(uint32(k.part))
			a.i64(first)
			a.ptr(w.at[1])
			a.ptr(scratch)
			whole := a
			a.ptr(w.at[0])
			if k.block {
				s.kernel(block[dt], [3]uint32{uint32(w.n), uint32(k.parts), 1}, [3]uint32{uint32(k.threads), 1, 1}, 0,
					&a)
			} else {
				s.kernel(each[dt], s.gridFor(w.n*k.parts), block256, 0, &a)
			}
			if k.parts > 1 {
				s.kernel(parts[dt], s.gridFor(32*w.n), block256, 0, &whole)
			}
			first += w.n
		}
	}
}

// geometry splits the dims of the input by whether the output keeps them. kept walks over input and output, gone over
// the input in row-major order. last says that the last dim of a size other than one goes, or that none stays.
func (s *stream) geometry(c *backend.Call) (kept, gone walk, last bool) {
	in, out := &c.In[0], &c.Out[0]
	wrong := in.NDim != out.NDim
	keptIn, keptOut, goneIn := *in, *out, *in
	keptIn.NDim, keptOut.NDim, goneIn.NDim = 0, 0, 0
	add := func(v *backend.View, size, stride int) {
		v.Shape[v.NDim], v.Stride[v.NDim] = size, stride
		v.NDim++
	}
	last = true
	for d := 0; d < in.NDim && !wrong; d++ {
		switch size := in.Shape[d]; {
		case size == 1 && out.Shape[d] == 1:
		case size == out.Shape[d]:
			add(&keptIn, size, in.Stride[d])
			add(&keptOut, size, out.Stride[d])
			last = false
		case out.Shape[d] == 1:
			add(&goneIn, size, in.Stride[d])
			last = true
		default:
			wrong = true
		}
	}
	if wrong {
		s.fault(c, "input of shape %v, output of shape %v", in.Shape[:in.NDim], out.Shape[:out.NDim])
	}
	kept, gone = s.newWalk(&keptIn, &keptOut), s.walkOf(false, &goneIn)
	if gone.n == 0 {
		gone.nd, gone.size[0] = 1, 1
	}
	return kept, gone, last
}

// sumSqBlock is the number of elements per output of OpSumSq.
const sumSqBlock = 4096

var sumSqKernels = namesOf("sum_sq_many", "", floats)

func sumSq(s *stream, c *backend.Call) {
	m := s.listSumSq(c)
	s.launchListed(&m)
}

// listSumSq is the sums of one tensor's squares, as part of those of several.
func (s *stream) listSumSq(c *backend.Call) (m listed) {
	in, out := &c.In[0], &c.Out[0]
	n := in.Numel()
	if !in.Contiguous() || !out.Contiguous() || out.DType != dtype.Float64 ||
		out.Numel() != (n+sumSqBlock-1)/sumSqBlock {
		s.fault(c, "want contiguous input and a float64 output per %d elements, not %s of shape %v", sumSqBlock,
			out.DType, out.Shape[:out.NDim])
	}
	if sumSqKernels[in.DType] == "" {
		s.fault(c, "no kernel for %s", in.DType)
	}
	m.listKey = listKey{kernel: sumSqKernels[in.DType], operands: 2, chunk: sumSqBlock, bytes: 4 * in.DType.Size(),
		narrow: 1}
	m.n, m.at[0], m.at[1] = n, s.addr(out), s.addr(in)
	return m
}
