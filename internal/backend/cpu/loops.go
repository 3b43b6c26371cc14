// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// blockLen is the number of elements that a strided operand is gathered in at a time: small enough for the first-level
// cache.
const blockLen = 512

// elementGrain is the number of elements below which a loop is not worth a second worker.
const elementGrain = 16384

// block computes n elements: p[0] is the output, p[1:] the inputs, all contiguous.
type block func(c *backend.Call, p *[4]unsafe.Pointer, n int)

// loops is the loop nest over up to four operands of one shape, with as few dims as their strides allow. Operand 0 is
// the output.
type loops struct {
	nd     int
	shape  [backend.MaxDims]int
	ops    int
	base   [4]unsafe.Pointer
	size   [4]int                  // bytes of an element
	stride [4][backend.MaxDims]int // bytes
}

// set makes the loops of the views: dims of size one go, and neighbours that every operand walks as one are merged.
func (n *loops) set(views ...*backend.View) {
	n.ops = len(views)
	for k, v := range views {
		n.base[k] = at(v, v.Offset)
		n.size[k] = v.DType.Size()
	}
	n.nd = 0
	for d := range views[0].NDim {
		size := views[0].Shape[d]
		if size == 1 {
			continue
		}
		merge := n.nd > 0
		for k, v := range views {
			merge = merge && n.stride[k][n.nd-1] == v.Stride[d]*n.size[k]*size
		}
		if !merge {
			n.nd++
			n.shape[n.nd-1] = 1
		}
		n.shape[n.nd-1] *= size
		for k, v := range views {
			n.stride[k][n.nd-1] = v.Stride[d] * n.size[k]
		}
	}
	if n.nd == 0 {
		n.nd, n.shape[0] = 1, 1
		for k := range views {
			n.stride[k][0] = n.size[k]
		}
	}
}

func (n *loops) numel() int {
	total := 1
	for _, s := range n.shape[:n.nd] {
		total *= s
	}
	return total
}

// elementwise runs the task's block function over elements lo to hi of its nest, in row-major order: a run of the last
// dim at a time.
func elementwise(t *task, ws *workspace, lo, hi int) {
	n := &t.loops
	last := n.nd - 1
	length := n.shape[last]
	var index [backend.MaxDims]int
	rest := lo
	for d := last; d >= 0; d-- {
		index[d] = rest % n.shape[d]
		rest /= n.shape[d]
	}
	direct := true
	for k := range n.ops {
		direct = direct && n.stride[k][last] == n.size[k]
	}
	fresh := true // the index has moved by more than one run
	for pos := lo; pos < hi; {
		for k := range n.ops {
			if !fresh {
				ws.runs[k] = unsafe.Add(ws.runs[k], n.stride[k][last-1])
				continue
			}
			offset := 0
			for d := range n.nd {
				offset += index[d] * n.stride[k][d]
			}
			ws.runs[k] = unsafe.Add(n.base[k], offset)
		}
		count := min(length-index[last], hi-pos)
		if direct {
			for k := range n.ops { // one by one, as they were written: a wider load would wait for the stores
				ws.p[k] = ws.runs[k]
			}
			t.block(t.c, &ws.p, count)
		} else {
			t.runBlocks(ws, count)
		}
		pos += count
		fresh = index[last] != 0
		index[last] += count
		for d := last; d > 0 && index[d] == n.shape[d]; d-- {
			index[d] = 0
			index[d-1]++
			fresh = fresh || d < last
		}
	}
}

// runBlocks computes one run. Operands with stride one are used where they lie; the others are gathered into scratch
// and scattered from it, a block at a time.
func (t *task) runBlocks(ws *workspace, count int) {
	n := &t.loops
	last := n.nd - 1
	if count == 1 {
		ws.p = ws.runs
		t.block(t.c, &ws.p, count)
		return
	}
	ws.reserve(4 * blockLen * 8)
	var buf [4]unsafe.Pointer
	for k := range n.ops {
		buf[k] = unsafe.Pointer(unsafe.SliceData(carve[float64](ws, blockLen)))
	}
	for i := 0; i < count; i += blockLen {
		m := min(blockLen, count-i)
		for k := range n.ops {
			stride := n.stride[k][last]
			p := unsafe.Add(ws.runs[k], i*stride)
			switch {
			case stride == n.size[k]:
				ws.p[k] = p
			case k == 0:
				ws.p[k] = buf[k]
			case stride != 0 || i == 0: // a repeated element is spread once for the whole run
				gather(buf[k], p, n.size[k], stride, m)
				ws.p[k] = buf[k]
			}
		}
		t.block(t.c, &ws.p, m)
		if stride := n.stride[0][last]; stride != n.size[0] {
			scatter(unsafe.Add(ws.runs[0], i*stride), buf[0], n.size[0], stride, m)
		}
	}
}

// gather copies m elements of a size in bytes, stride bytes apart, to a contiguous place.
func gather(dst, src unsafe.Pointer, size, stride, m int) {
	switch size {
	case 1:
		gatherAs[uint8](dst, src, stride, m)
	case 2:
		gatherAs[uint16](dst, src, stride, m)
	case 4:
		gatherAs[uint32](dst, src, stride, m)
	default:
		gatherAs[uint64](dst, src, stride, m)
	}
}

func gatherAs[T uint8 | uint16 | uint32 | uint64](dst, src unsafe.Pointer, stride, m int) {
	out := unsafe.Slice((*T)(dst), m)
	if stride == 0 {
		v := *(*T)(src)
		for i := range out {
			out[i] = v
		}
		return
	}
	for i := range out {
		out[i] = *(*T)(unsafe.Add(src, i*stride))
	}
}

// scatter copies m contiguous elements to places stride bytes apart.
func scatter(dst, src unsafe.Pointer, size, stride, m int) {
	switch size {
	case 1:
		scatterAs[uint8](dst, src, stride, m)
	case 2:
		scatterAs[uint16](dst, src, stride, m)
	case 4:
		scatterAs[uint32](dst, src, stride, m)
	default:
		scatterAs[uint64](dst, src, stride, m)
	}
}

func scatterAs[T uint8 | uint16 | uint32 | uint64](dst, src unsafe.Pointer, stride, m int) {
	for i, v := range unsafe.Slice((*T)(src), m) {
		*(*T)(unsafe.Add(dst, i*stride)) = v
	}
}
