// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/kernels/gemm"
)

// transposeTile is the side of the square that a transposing copy moves at a time, through compact scratch: lines of
// either side that lie a power of two apart would push each other out of the first-level cache.
const transposeTile = 32

// transposition returns the dim along which the input of a copy is contiguous, where the output is contiguous along the
// last one and the input is not; ok is false where a copy by runs is as good.
func (n *loops) transposition() (dim int, ok bool) {
	last := n.nd - 1
	if n.ops != 2 || n.size[0] != n.size[1] || n.stride[0][last] != n.size[0] || n.stride[1][last] <= n.size[1] ||
		n.shape[last] < 4 {
		return 0, false
	}
	for d := range last {
		if n.stride[1][d] == n.size[1] && n.shape[d] >= 4 {
			return d, true
		}
	}
	return 0, false
}

// transposeStrips copies strips lo to hi of the task's nest: a strip is 32 places along dim t.n[0], all along the last
// dim, at one place along the others.
func transposeStrips[T uint8 | uint16 | uint32 | uint64](t *task, ws *workspace, lo, hi int) {
	ws.reserve(transposeTile * transposeTile * int(unsafe.Sizeof(*new(T))))
	square := carve[T](ws, transposeTile*transposeTile)
	n, dim := &t.loops, t.n[0]
	last := n.nd - 1
	strips := (n.shape[dim] + transposeTile - 1) / transposeTile
	for u := lo; u < hi; u++ {
		i0 := u % strips * transposeTile
		dst := unsafe.Add(n.base[0], i0*n.stride[0][dim])
		src := unsafe.Add(n.base[1], i0*n.stride[1][dim])
		rest := u / strips
		for d := last - 1; d >= 0; d-- {
			if d != dim {
				at := rest % n.shape[d]
				rest /= n.shape[d]
				dst, src = unsafe.Add(dst, at*n.stride[0][d]), unsafe.Add(src, at*n.stride[1][d])
			}
		}
		rows := min(transposeTile, n.shape[dim]-i0)
		for j := 0; j < n.shape[last]; j += transposeTile {
			columns := min(transposeTile, n.shape[last]-j)
			transposeOne(square, unsafe.Add(dst, j*n.size[0]), n.stride[0][dim], unsafe.Add(src, j*n.stride[1][last]),
				n.stride[1][last], rows, columns)
		}
	}
}

// transposeOne sets row i, column j of dst to row j, column i of src; strides are those of rows, in bytes.
func transposeOne[T uint8 | uint16 | uint32 | uint64](square []T, dst unsafe.Pointer, dstStride int, src unsafe.Pointer,
	srcStride, rows, columns int) {
	if unsafe.Sizeof(*new(T)) == 4 && dstStride >= 4*columns && srcStride >= 0 {
		to := unsafe.Slice((*float32)(dst), (rows-1)*dstStride/4+columns)
		gemm.Transpose(to, dstStride/4, columns, rows, unsafe.Slice((*float32)(src), (columns-1)*srcStride/4+rows),
			srcStride/4)
		return
	}
	for j := range columns {
		copy(square[j*transposeTile:][:transposeTile], unsafe.Slice((*T)(unsafe.Add(src, j*srcStride)), rows))
	}
	for i := range rows {
		to := unsafe.Slice((*T)(unsafe.Add(dst, i*dstStride)), columns)
		from := square[i : (columns-1)*transposeTile+i+1]
		for j := range to {
			to[j] = from[j*transposeTile]
		}
	}
}

// transposeBodies are the copies by size of an element.
var transposeBodies = [9]body{1: transposeStrips[uint8], 2: transposeStrips[uint16], 4: transposeStrips[uint32],
	8: transposeStrips[uint64]}

// transpose runs a copy that transposes; it reports false if the copy is none.
func (t *task) transpose(c *backend.Call) bool {
	dim, ok := t.loops.transposition()
	if !ok || c.Out[0].DType != c.In[0].DType {
		return false
	}
	n := &t.loops
	t.n[0] = dim
	strips := (n.shape[dim] + transposeTile - 1) / transposeTile
	for d := range n.nd - 1 {
		if d != dim {
			strips *= n.shape[d]
		}
	}
	t.do(strips, max(1, elementGrain/(transposeTile*n.shape[n.nd-1])), transposeBodies[n.size[0]])
	return true
}
