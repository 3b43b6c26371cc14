// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"math"
	"math/bits"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

var scanOps = map[backend.Op]row{backend.OpCumSum: {cumSum, signed}, backend.OpTopK: {topK, signed}}

var (
	cumSumKernels    = namesOf("cumsum", "", signed)
	topKKernels      = namesOf("topk", "", signed)
	topKLargeKernels = namesOf("topk_large", "", signed)
)

func cumSum(s *stream, c *backend.Call) {
	in, out := &c.In[0], &c.Out[0]
	if out.DType != in.DType {
		s.fault(c, "no kernel from %s to %s", in.DType, out.DType)
	}
	if !backend.SameShape(in, out) || !in.Contiguous() || !out.Contiguous() {
		s.fault(c, "want contiguous operands of one shape, not %v and %v", in.Shape[:in.NDim], out.Shape[:out.NDim])
	}
	rows, cols := in.Rows()
	if rows*cols == 0 {
		return
	}
	var a args
	a.ptr(s.addr(out))
	a.ptr(s.addr(in))
	a.i64(rows)
	a.i64(cols)
	a.u32(flag(c.Ints[0] == 1))
	s.kernel(cumSumKernels[in.DType], [3]uint32{min(blocksFor(rows, 4), uint32(16*s.sms())), 1, 1},
		[3]uint32{128, 1, 1}, 0, &a)
}

func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// sharedItems is SHARED_ITEMS of kernels/scan.cu.
const sharedItems = 2048

func topK(s *stream, c *backend.Call) {
	x, out, index := &c.In[0], &c.Out[0], &c.Out[1]
	rows, cols := x.Rows()
	_, k := out.Rows()
	same := x.NDim > 0 && out.NDim == x.NDim && k <= cols && backend.SameShape(out, index)
	for d := 0; same && d < x.NDim-1; d++ {
		same = out.Shape[d] == x.Shape[d]
	}
	if !same || !x.Contiguous() {
		s.fault(c, "input of shape %v (contiguous: %t), outputs of shape %v and %v", x.Shape[:x.NDim], x.Contiguous(),
			out.Shape[:out.NDim], index.Shape[:index.NDim])
	}
	dt := x.DType
	s.wantFlat(c, out, dt, rows*k, "output", 0)
	s.wantFlat(c, index, dtype.Int64, rows*k, "output", 1)
	if rows*k == 0 {
		return
	}
	if rows > math.MaxUint32 || cols > math.MaxInt32 {
		s.fault(c, "input of shape %v: want rows of at most %d elements", x.Shape[:x.NDim], math.MaxInt32)
	}
	m := 1 << bits.Len(uint(k-1))
	threads, blocks := 1024, 2
	switch {
	case cols <= 256:
		threads, blocks = 32, 32
	case cols <= 8192:
		threads, blocks = 256, 8
	}
	grid := [3]uint32{uint32(min(rows, blocks*s.sms())), 1, 1}
	var a args
	a.ptr(s.addr(out))
	a.ptr(s.addr(index))
	a.ptr(s.addr(x))
	for _, v := range []int{rows, cols, k, m} {
		a.u32(uint32(v))
	}
	a.u32(flag(c.Ints[0] == 1))
	name := topKKernels[dt]
	if m > sharedItems {
		item := 8
		if dt.Size() == 8 {
			item = 16
		}
		a.ptr(s.scratch(int(grid[0]) * m * item))
		name = topKLargeKernels[dt]
	}
	s.kernel(name, grid, [3]uint32{uint32(threads), 1, 1}, 0, &a)
}
