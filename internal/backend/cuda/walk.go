// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"math/bits"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
)

// maxOperands is the largest number of operands of a walk.
const maxOperands = 4

// walk is the way over the elements of operands of one shape, with as few dims as their strides allow. Dim 0 is the
// innermost. It becomes Dims of kernels/dims.cuh.
type walk struct {
	ops    int
	at     [maxOperands]cuda.Ptr
	bytes  [maxOperands]int // of an element
	n, nd  int
	size   [backend.MaxDims]int
	stride [maxOperands][backend.MaxDims]int // in elements
}

// newWalk makes the walk of views, of which the first is written. Its order is that of the first one's memory: dims of
// size one go, and neighbours that all operands walk as one are joined.
func (s *stream) newWalk(views ...*backend.View) walk { return s.walkOf(true, views...) }

// walkOf is newWalk, in row-major order unless it is sorted.
func (s *stream) walkOf(sorted bool, views ...*backend.View) walk {
	w := walk{ops: len(views), n: views[0].Numel()}
	for k, v := range views {
		w.at[k], w.bytes[k] = s.addr(v), v.DType.Size()
	}
	out := views[0]
	var order [backend.MaxDims]int // dims of a size other than one, the smallest stride of the output first
	nd := 0
	for d := out.NDim - 1; d >= 0; d-- {
		if out.Shape[d] == 1 {
			continue
		}
		i := nd
		for ; sorted && i > 0 && out.Stride[order[i-1]] > out.Stride[d]; i-- {
			order[i] = order[i-1]
		}
		order[i] = d
		nd++
	}
	for _, d := range order[:nd] {
		joined := w.nd > 0
		for k, v := range views {
			joined = joined && v.Stride[d] == w.stride[k][w.nd-1]*w.size[w.nd-1]
		}
		if joined {
			w.size[w.nd-1] *= out.Shape[d]
			continue
		}
		w.size[w.nd] = out.Shape[d]
		for k, v := range views {
			w.stride[k][w.nd] = v.Stride[d]
		}
		w.nd++
	}
	if w.nd == 0 {
		w.nd, w.size[0] = 1, 1
		for k := range views {
			w.stride[k][0] = 1
		}
	}
	return w
}

// contiguous reports whether all operands are walked element by element.
func (w *walk) contiguous() bool {
	if w.nd > 1 {
		return false
	}
	for k := range w.ops {
		if w.stride[k][0] != 1 {
			return false
		}
	}
	return true
}

// aligned reports whether the operands begin at multiples of n of their elements, or of 16 bytes if that is less.
func (w *walk) aligned(n int) bool {
	for k := range w.ops {
		if w.at[k]%cuda.Ptr(min(16, n*w.bytes[k])) != 0 {
			return false
		}
	}
	return true
}

// maxWalk is the number of elements that a kernel walks over at most.
const maxWalk = 1<<31 - 1

// split finds how to cut the walk into pieces of up to `most` elements: dim level into steps, those inside of it not at
// all, those outside into single indices. inner are the elements inside.
func (w *walk) split(most int) (level, step, inner int) {
	inner = 1
	for level < w.nd-1 && inner*w.size[level] <= most {
		inner *= w.size[level]
		level++
	}
	return level, min(w.size[level], max(1, most/inner)), inner
}

// pieces is the number of those pieces.
func (w *walk) pieces(most int) int {
	if w.n == 0 {
		return 0
	}
	level, step, _ := w.split(most)
	n := (w.size[level] + step - 1) / step
	for _, size := range w.size[level+1 : w.nd] {
		n *= size
	}
	return n
}

// piece is number i of them.
func (w *walk) piece(most, i int) walk {
	level, step, inner := w.split(most)
	p := *w
	move := func(d, by int) {
		for k := range w.ops {
			p.at[k] += cuda.Ptr(by * w.stride[k][d] * w.bytes[k])
		}
	}
	steps := (w.size[level] + step - 1) / step
	first := i % steps * step
	move(level, first)
	i /= steps
	for d := level + 1; d < w.nd; d++ {
		move(d, i%w.size[d])
		i /= w.size[d]
	}
	p.size[level] = min(step, w.size[level]-first)
	p.nd, p.n = level+1, inner*p.size[level]
	return p
}

// dims packs the walk as Dims.
func (a *args) dims(w *walk) {
	a.align(8)
	a.u32(uint32(w.n))
	a.u32(uint32(w.nd))
	var mul, shift [backend.MaxDims]uint32
	for d := range w.nd {
		mul[d], shift[d] = divisor(uint32(w.size[d]))
	}
	for d := range backend.MaxDims {
		a.u32(uint32(w.size[d]))
	}
	for _, m := range mul {
		a.u32(m)
	}
	for _, m := range shift {
		a.u32(m)
	}
	for k := range maxOperands {
		for d := range backend.MaxDims {
			a.i64(w.stride[k][d])
		}
	}
}

// divisor prepares i / n for i < 2³¹: it is (mulhi(i, mul) + i) >> shift. Granlund & Montgomery 1994.
func divisor(n uint32) (mul, shift uint32) {
	shift = uint32(bits.Len32(n - 1)) // the least with 2^shift ≥ n
	mul = uint32(((uint64(1)<<shift-uint64(n))<<32)/uint64(n) + 1)
	return mul, shift
}

// threads is the number of threads of a block of elementwise kernels.
const threads = 256

// gridFor is a grid for loops over n things, one a thread at a time: no more blocks than run beside each other a few
// times over.
func (s *stream) gridFor(n int) [3]uint32 {
	return [3]uint32{min(blocksFor(n, threads), uint32(16*s.sms())), 1, 1}
}

var block256 = [3]uint32{threads, 1, 1}
