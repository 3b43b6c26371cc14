// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

var moveOps = map[backend.Op]row{
	backend.OpCopy: {copyOp, anyType}, backend.OpFill: {fill, anyType}, backend.OpArange: {arange, numbers},
	backend.OpWhere: {where, anyType},
}

// bySize are kernels that move elements, by their bytes.
type bySize [17]string

var (
	moveKernels  = bySize{1: "move_1", 2: "move_2", 4: "move_4", 8: "move_8", 16: "move_16"}
	whereKernels = bySize{1: "where_1", 2: "where_2", 4: "where_4", 8: "where_8"}
	fillKernels  = bySize{1: "fill_1", 2: "fill_2", 4: "fill_4", 8: "fill_8"}
	turnKernels  = bySize{1: "transpose_1", 2: "transpose_2", 4: "transpose_4", 8: "transpose_8"}

	arangeKernels = namesOf("arange", "", numbers)
	castKernels   = func() (t [dtype.Bool + 1]names) { // by source, then by destination
		for _, from := range dtype.All() {
			t[from] = namesOf("cast_"+suffix(from), "", dtype.All())
			t[from][from] = "" // move
		}
		return t
	}()
	wideCasts = func() (t [dtype.Bool + 1]names) {
		for _, half := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
			t[dtype.Float32][half] = "cast_many_f32_" + suffix(half)
			t[half][dtype.Float32] = "cast_many_" + suffix(half) + "_f32"
		}
		return t
	}()
)

func copyOp(s *stream, c *backend.Call) {
	if m, ok := s.listCopy(c); ok && (c.In[0].DType != c.Out[0].DType || c.If.Buf != nil) {
		s.launchListed(&m)
		return
	}
	w := s.elementwise(c, 1)
	if from, to := c.In[0].DType, c.Out[0].DType; from != to {
		s.walked(castKernels[from][to], w, s.flag(c))
		return
	}
	s.move(&w, s.flag(c))
}

// copyChunk and fillChunk are what a block takes of a list, in elements and in bytes.
const (
	copyChunk = 8192
	fillChunk = 32768
)

// listCopy is a copy of contiguous memory, aligned to 16 bytes, of one dtype or between float32 and a half type.
func (s *stream) listCopy(c *backend.Call) (m listed, ok bool) {
	w := s.elementwise(c, 1)
	from, to := c.In[0].DType, c.Out[0].DType
	if w.n == 0 {
		return m, true
	}
	if !w.contiguous() || (w.at[0]|w.at[1])%16 != 0 || from != to && wideCasts[from][to] == "" {
		return m, false
	}
	m.listKey = listKey{kernel: wideCasts[from][to], operands: 2, chunk: copyChunk, bytes: 16, ending: endsWithFlag,
		flag: s.flag(c)}
	if m.n = w.n; from == to {
		m.kernel, m.chunk, m.n = "copy_many", fillChunk, w.n*w.bytes[0]
	}
	m.at[0], m.at[1] = w.at[0], w.at[1]
	return m, true
}

// move copies elements of one dtype.
func (s *stream) move(w *walk, flag cuda.Ptr) {
	switch {
	case w.n == 0:
	case flag == 0 && w.contiguous():
		if w.at[0] != w.at[1] {
			s.must(s.q.CopyOnDevice(w.at[0], w.at[1], w.n*w.bytes[0]))
		}
	case flag == 0 && s.turn(w):
	default:
		w.widen()
		s.walked(moveKernels[w.bytes[0]], *w, flag)
	}
}

// widen takes several neighbours as one element, as long as they are neighbours everywhere, up to 16 bytes.
func (w *walk) widen() {
	for w.bytes[0] < 16 && w.size[0]%2 == 0 {
		for k := range w.ops {
			if w.stride[k][0] != 1 || w.at[k]%cuda.Ptr(2*w.bytes[k]) != 0 {
				return
			}
			for d := 1; d < w.nd; d++ {
				if w.stride[k][d]%2 != 0 {
					return
				}
			}
		}
		w.n /= 2
		w.size[0] /= 2
		for k := range w.ops {
			w.bytes[k] *= 2
			for d := 1; d < w.nd; d++ {
				w.stride[k][d] /= 2
			}
		}
	}
}

// tile is the edge of the tiles of transposing kernels; less than half of one is not worth it.
const tile = 32

// turn copies matrices whose columns become rows, and reports whether the walk is that.
func (s *stream) turn(w *walk) bool {
	if w.nd < 2 || w.nd > 3 || w.stride[0][0] != 1 || w.stride[1][0] == 1 {
		return false
	}
	row := 1 // the dim that is innermost in the input
	for row < w.nd && w.stride[1][row] != 1 {
		row++
	}
	if row == w.nd || w.size[0] < tile/2 || w.size[row] < tile/2 {
		return false
	}
	planes, plane := 1, 0
	if w.nd == 3 {
		plane = 3 - row
		planes = w.size[plane]
	}
	rows, cols := w.size[row], w.size[0]
	if planes > math.MaxUint16 || rows > tile*math.MaxUint16 || cols > math.MaxInt32 {
		return false
	}
	var a args
	a.u32(uint32(rows))
	a.u32(uint32(cols))
	a.i64(w.stride[1][0])
	a.i64(w.stride[0][row])
	if planes > 1 {
		a.i64(w.stride[1][plane])
		a.i64(w.stride[0][plane])
	} else {
		a.i64(0)
		a.i64(0)
	}
	a.ptr(w.at[0])
	a.ptr(w.at[1])
	s.kernel(turnKernels[w.bytes[0]], [3]uint32{blocksFor(cols, tile), blocksFor(rows, tile), uint32(planes)},
		[3]uint32{tile, 8, 1}, 0, &a)
	return true
}

func where(s *stream, c *backend.Call) {
	if c.In[0].DType != dtype.Bool || c.In[1].DType != c.Out[0].DType || c.In[2].DType != c.Out[0].DType {
		s.fault(c, "%s ? %s : %s gives no %s", c.In[0].DType, c.In[1].DType, c.In[2].DType, c.Out[0].DType)
	}
	s.walked(whereKernels[c.Out[0].DType.Size()], s.elementwise(c, 3))
}

func fill(s *stream, c *backend.Call) {
	if m, ok := s.listFill(c); ok {
		if m.n > 0 && m.bits == 0 && m.flag == 0 {
			s.must(s.q.Fill(m.at[0], 0, m.n))
			return
		}
		s.launchListed(&m)
		return
	}
	w, bits := s.elementwise(c, 0), fillBits(c)
	for i := range w.pieces(maxWalk) {
		w := w.piece(maxWalk, i)
		var a args
		a.dims(&w)
		a.ptr(w.at[0])
		a.number(bits)
		a.ptr(s.flag(c))
		s.kernel(fillKernels[w.bytes[0]], s.gridFor(w.n), block256, 0, &a)
	}
}

// listFill fills contiguous memory that is aligned to 16 bytes.
func (s *stream) listFill(c *backend.Call) (m listed, ok bool) {
	w := s.elementwise(c, 0)
	if w.n == 0 {
		return m, true
	}
	if !w.contiguous() || w.at[0]%16 != 0 {
		return m, false
	}
	m.n, m.at[0] = w.n*w.bytes[0], w.at[0]
	bits := fillBits(c)
	for n := w.bytes[0]; n < 8; n *= 2 {
		bits |= bits << (8 * n)
	}
	m.listKey = listKey{kernel: "fill_many", operands: 1, chunk: fillChunk, bytes: 16, ending: endsWithBits, bits: bits,
		flag: s.flag(c)}
	return m, true
}

// fillBits is the value of OpFill as the output stores it.
func fillBits(c *backend.Call) uint64 {
	f, i := c.Floats[0], c.Ints[0]
	switch c.Out[0].DType {
	case dtype.Float32:
		return uint64(math.Float32bits(float32(f)))
	case dtype.Float64:
		return math.Float64bits(f)
	case dtype.BFloat16:
		return uint64(dtype.ToBF16(float32(f)))
	case dtype.Float16:
		return uint64(dtype.ToF16(float32(f)))
	case dtype.Int32:
		return uint64(uint32(int32(i)))
	case dtype.Int64:
		return uint64(i)
	case dtype.Uint8:
		return uint64(uint8(i))
	default:
		if i != 0 {
			return 1
		}
		return 0
	}
}

func arange(s *stream, c *backend.Call) {
	out := &c.Out[0]
	if out.NDim != 1 {
		s.fault(c, "output of shape %v: want one dim", out.Shape[:out.NDim])
	}
	n := out.Shape[0]
	if n == 0 {
		return
	}
	var a args
	a.ptr(s.addr(out))
	a.i64(out.Stride[0])
	a.i64(n)
	if out.DType.IsFloat() {
		a.f64(c.Floats[0])
		a.f64(c.Floats[1])
	} else {
		a.i64(c.Ints[0])
		a.i64(c.Ints[1])
	}
	s.kernel(arangeKernels[out.DType], s.gridFor(n), block256, 0, &a)
}
