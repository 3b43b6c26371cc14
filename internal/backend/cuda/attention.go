// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/rng"
)

var attentionOps = map[backend.Op]row{
	backend.OpAttention:     {attentionForward, floats},
	backend.OpAttentionGrad: {attentionGrad, floats},
}

// attention is the geometry of a launch.
type attention struct {
	batch, heads, kvHeads, tq, tk, d, dv int
	lower, upper                         int // query i sees key j if i+lower ≤ j < i+upper
	mask                                 *backend.View
	args                                 attentionArgs
}

// attentionArgs are operands of AttentionArgs (kernels/attention.cuh) beside q, k and v, those that a kernel has no use
// for nil or 0.
type attentionArgs struct {
	out, dout, dq, dk, dv   *backend.View
	lse, delta, dbias, keep cuda.Ptr
	first                   int
}

// newAttention looks at what both ops have; mask may be nil.
func (s *stream) newAttention(c *backend.Call, mask *backend.View) *attention {
	q, k, v := &c.In[0], &c.In[1], &c.In[2]
	if q.NDim != 4 || k.NDim != 4 || v.NDim != 4 {
		s.fault(c, "q, k, v of shape %v, %v, %v: want four dims", q.Shape[:q.NDim], k.Shape[:k.NDim], v.Shape[:v.NDim])
	}
	a := &attention{batch: q.Shape[0], heads: q.Shape[1], kvHeads: k.Shape[1], tq: q.Shape[2], tk: k.Shape[2],
		d: q.Shape[3], dv: v.Shape[3]}
	if k.Shape[0] != a.batch || v.Shape[0] != a.batch || v.Shape[1] != a.kvHeads || v.Shape[2] != a.tk ||
		k.Shape[3] != a.d || a.kvHeads < 1 && a.heads > 0 || a.kvHeads > 0 && a.heads%a.kvHeads != 0 {
		s.fault(c, "q, k, v of shapes %v, %v, %v do not fit", q.Shape[:4], k.Shape[:4], v.Shape[:4])
	}
	for i := range 3 {
		if x := &c.In[i]; x.DType != q.DType || x.Shape[3] > 1 && x.Stride[3] != 1 {
			s.fault(c, "input %d: %s with stride %d in the last dim: want %s with 1", i, x.DType, x.Stride[3], q.DType)
		}
	}
	if p := c.Floats[1]; !(p >= 0 && p <= 1) {
		s.fault(c, "dropout probability %v: want 0 to 1", p)
	}
	if c.Floats[2] != 0 {
		s.fault(c, "soft cap %v: want none", c.Floats[2])
	}
	if c.Ints[4] < 0 {
		s.fault(c, "window %d: want none negative", c.Ints[4])
	}
	if most := 1 << 30; max(a.batch, a.heads, a.tq, a.tk, a.d, a.dv) > most {
		s.fault(c, "q, k, v of shapes %v, %v, %v: want no size above %d", q.Shape[:4], k.Shape[:4], v.Shape[:4], most)
	}
	if a.mask = mask; mask != nil {
		if m := mask; m.DType != dtype.Bool && m.DType != q.DType || m.NDim != 4 ||
			[4]int(m.Shape[:4]) != [4]int{a.batch, a.heads, a.tq, a.tk} {
			s.fault(c, "mask is %s of shape %v: want bool or %s %v", m.DType, m.Shape[:m.NDim], q.DType,
				[]int{a.batch, a.heads, a.tq, a.tk})
		}
	}
	a.see(c)
	return a
}

// see sets which keys a query sees. Bounds are cut to where they matter.
func (a *attention) see(c *backend.Call) {
	shift := c.Ints[1] - c.Ints[2] // key i+shift has query i's position
	a.lower, a.upper = -a.tq, a.tk
	cut := func(n int) int { return max(-a.tq, min(n, a.tk)) }
	if w := c.Ints[4]; w > 0 && w < a.tq+a.tk+max(shift, -shift) { // else it hides nothing
		a.lower, a.upper = cut(shift-w+1), cut(shift+w)
	}
	if c.Ints[0] != 0 {
		a.upper = min(a.upper, cut(shift+1))
	}
}

// wantHeads faults unless a view is [B,heads,T,D] of q's dtype with stride 1 in the last dim; rows of one that is
// written must not overlap.
func (s *stream) wantHeads(c *backend.Call, v *backend.View, heads, t, d int, what string, written bool) {
	dt, batch := c.In[0].DType, c.In[0].Shape[0]
	if v.DType != dt || v.NDim != 4 || [4]int(v.Shape[:4]) != [4]int{batch, heads, t, d} || d > 1 && v.Stride[3] != 1 ||
		written && t > 1 && v.Stride[2] < d {
		s.fault(c, "%s is %s of shape %v, strides %v: want %s %v", what, v.DType, v.Shape[:v.NDim], v.Stride[:v.NDim],
			dt, []int{batch, heads, t, d})
	}
}

// headStrides are strides of batch, head and row; they are 0 where a dim has one element, whose stride may be any.
func headStrides(v *backend.View) (strides [3]int) {
	for k := range strides {
		if v.Shape[k] > 1 {
			strides[k] = v.Stride[k]
		}
	}
	return strides
}

// packAttention makes the parameter block of all kernels of attention: AttentionArgs of kernels/attention.cuh. draws is
// set for those that draw random numbers.
func (s *stream) packAttention(c *backend.Call, a *attention, draws bool) *args {
	var p args
	views := [...]*backend.View{&c.In[0], &c.In[1], &c.In[2], a.args.out, a.args.dout, a.args.dq, a.args.dk, a.args.dv}
	at := func(v *backend.View) cuda.Ptr {
		if v == nil {
			return 0
		}
		return s.addr(v)
	}
	for _, v := range [...]*backend.View{&c.In[0], &c.In[1], &c.In[2], a.mask, a.args.out} {
		p.ptr(at(v))
	}
	p.ptr(a.args.lse)
	p.ptr(at(a.args.dout))
	p.ptr(a.args.delta)
	for _, v := range views[5:] {
		p.ptr(at(v))
	}
	p.ptr(a.args.dbias)
	p.ptr(a.args.keep)
	for _, v := range views {
		var strides [3]int
		if v != nil {
			strides = headStrides(v)
		}
		for _, n := range strides {
			p.i64(n)
		}
	}
	kind := 0
	var strides [4]int
	if m := a.mask; m != nil {
		kind = 2
		if m.DType == dtype.Bool {
			kind = 1
		}
		copy(strides[:], m.Stride[:4])
	}
	for _, n := range strides {
		p.i64(n)
	}
	threshold, seed, position := rng.KeepThreshold(c.Floats[1]), c.Key, uint64(c.Ints[3])
	if !draws || threshold == 0 { // no step differs from another by them
		seed, position = 0, 0
	}
	p.number(seed)
	p.number(position)
	p.f64(c.Floats[0])
	keep := 0.0
	if drop := c.Floats[1]; drop < 1 {
		keep = 1 / (1 - drop)
	}
	p.f64(keep)
	for _, n := range [...]int{a.batch, a.heads, a.kvHeads, a.tq, a.tk, a.d, a.dv, a.lower, a.upper, kind,
		a.args.first} {
		p.i32(n)
	}
	p.u32(threshold)
	p.align(8)
	return &p
}

const (
	attentionColumns = 64  // of results that a block of attention.cu computes
	attentionThreads = 256 // of its blocks
	attentionFew     = 16  // queries up to which it has tiles of so many
	flashThreads     = 128 // of a block of flash.cuh
)

// keepBytes is Device.keepBytes, except in tests.
const keepBytes = 64 << 20

// attentionTile is the number of queries and of keys of a tile of attention.cu.
func attentionTile(dt dtype.DType) int {
	if dt == dtype.Float64 {
		return 32
	}
	return 64
}

// flashKernel is a kernel of flash.cuh and its tiles: rows that stay, of two operands or in the forward pass of one,
// and rows that pass by, of which there are two operands in two tiles, each with numbers of 4 bytes beside its rows.
type flashKernel struct {
	names, dropout               names // without dropout and with it
	stay, operands, pass, beside int
}

// shared is the shared memory in bytes for heads of d elements.
func (f *flashKernel) shared(d int) int {
	return 2*d*(f.stay*f.operands+4*f.pass) + 2*4*f.pass*f.beside
}

func newFlashKernel(name string, stay, operands, pass, beside int) flashKernel {
	return flashKernel{namesOf("flash"+name, "", halfTypes), namesOf("flash_dropout"+name, "", halfTypes), stay,
		operands, pass, beside}
}

// Which of the kernels.
const (
	forwardPass = iota
	queryGrad
	keyGrad
)

// The kernels: forward, gradient of queries, gradient of keys and values. Those of flash.cuh are for heads of up to 64
// elements, then for those of up to 128.
var (
	attentionKernels = [3]names{namesOf("attention", "", floats), namesOf("attention_dq", "", floats),
		namesOf("attention_dkdv", "", floats)}
	fewAttention, attentionDelta = namesOf("attention_few", "", floats), namesOf("attention_delta", "", floats)
	flashKernels                 = [2][3]flashKernel{
		{newFlashKernel("_64", 128, 1, 64, 0), newFlashKernel("_dq_64", 64, 2, 32, 0),
			newFlashKernel("_dkdv_64", 128, 2, 32, 2)},
		{newFlashKernel("_128", 128, 1, 32, 0), newFlashKernel("_dq_128", 64, 2, 64, 0),
			newFlashKernel("_dkdv_128", 64, 2, 32, 2)},
	}
)

// headWidth is the widest head of an attention that flash.cuh's kernels compute if its operands are aligned, 0 if they
// do not.
func headWidth(c *backend.Call, d, dv int) int {
	dt, widest := c.In[0].DType, max(d, dv)
	if !dt.IsHalf() || widest > 128 || d%8 != 0 || dv%8 != 0 || min(d, dv) == 0 || !(c.Floats[0] > 0) {
		return 0
	}
	return widest
}

// flash is the number of elements of heads that flash.cuh's kernels have for the launch, 0 if it is none for them. All
// of it follows from the call, so that a launch has the same bits each time.
func (s *stream) flash(c *backend.Call, a *attention, views ...*backend.View) int {
	widest := headWidth(c, a.d, a.dv)
	if widest == 0 || a.mask != nil && a.mask.DType != dtype.Bool {
		return 0
	}
	for i := range 3 + len(views) {
		v := &c.In[min(i, 2)]
		if i >= 3 {
			v = views[i-3]
		}
		strides := headStrides(v)
		if s.addr(v)%16 != 0 || strides[0]%8 != 0 || strides[1]%8 != 0 || strides[2]%8 != 0 {
			return 0
		}
	}
	if widest > 64 {
		return 128
	}
	return 64
}

// attentionGrid is one of n blocks, times those of tiles.
func (s *stream) attentionGrid(c *backend.Call, n, rows, tile, chunks int) [3]uint32 {
	blocks := n * ((rows + tile - 1) / tile) * chunks
	if blocks > math.MaxInt32 {
		s.fault(c, "q, k of shapes %v, %v need %d blocks, more than a grid has", c.In[0].Shape[:4], c.In[1].Shape[:4],
			blocks)
	}
	return [3]uint32{uint32(blocks), 1, 1}
}

// chunksOf is how many blocks share the columns of a result.
func chunksOf(columns int) int { return max(1, (columns+attentionColumns-1)/attentionColumns) }

// keepShape is the size of dropout's decisions of a head, which flash_keep writes: rows of words of 4 bytes.
func keepShape(tq, tk int) (rows, words int) { return (tq + 127) / 128 * 128, (tk + 127) / 128 * 4 }

// KeptDropout is the size of dropout's decisions of an attention, if they take no more memory than its output: their
// number grows with the square of the length.
func (d *Device) KeptDropout(c *backend.Call) int {
	q, k, v := &c.In[0], &c.In[1], &c.In[2]
	if rng.KeepThreshold(c.Floats[1]) == 0 || c.Floats[2] != 0 || headWidth(c, q.Shape[3], v.Shape[3]) == 0 ||
		c.NIn > 3 && c.In[3].DType != dtype.Bool {
		return 0
	}
	rows, words := keepShape(q.Shape[2], k.Shape[2])
	if 4*rows*words > q.Shape[2]*v.Shape[3]*v.DType.Size() {
		return 0
	}
	return rows * words * q.Shape[0] * q.Shape[1]
}

// kept sets a launch's decisions of dropout to a view that has those of all heads.
func (s *stream) kept(c *backend.Call, a *attention, v *backend.View) {
	rows, words := keepShape(a.tq, a.tk)
	s.wantVector(c, v, dtype.Int32, rows*words*a.batch*a.heads, "decisions of dropout")
	a.args.keep = s.addr(v)
}

func attentionForward(s *stream, c *backend.Call) {
	var mask *backend.View
	if c.NIn > 3 {
		mask = &c.In[3]
	}
	a := s.newAttention(c, mask)
	out := &c.Out[0]
	s.wantHeads(c, out, a.heads, a.tq, a.dv, "output", true)
	s.wantVector(c, &c.Out[1], statistic(out.DType), a.batch*a.heads*a.tq, "log-sum-exp")
	heads := a.batch * a.heads
	if heads*a.tq == 0 {
		return
	}
	a.args.out, a.args.lse = out, s.addr(&c.Out[1])
	dt, keeps := out.DType, c.NOut > 2
	if keeps {
		s.kept(c, a, &c.Out[2])
		s.drawDropout(c, a, a.batch*a.kvHeads)
	}
	if d := s.flash(c, a, out); d > 0 {
		s.launchFlash(c, a, d, keeps, forwardPass)
		return
	}
	kernel, tile := &attentionKernels[forwardPass], attentionTile(dt)
	if a.tq <= attentionFew {
		kernel, tile = &fewAttention, attentionFew
	}
	s.kernel(kernel[dt], s.attentionGrid(c, heads, a.tq, tile, chunksOf(a.dv)), attentionBlock, 0,
		s.packAttention(c, a, true))
}

// drawDropout draws dropout's decisions for n groups of heads, by flash_keep.
func (s *stream) drawDropout(c *backend.Call, a *attention, n int) {
	rows, words := keepShape(a.tq, a.tk)
	s.kernel("flash_keep", s.attentionGrid(c, n*a.heads/a.kvHeads, rows, 128, words/4), flashBlock, 0,
		s.packAttention(c, a, true))
}

// launchFlash launches kernels of flash.cuh, for heads of up to d elements. Dropout's decisions are drawn before,
// unless they are there, for so many groups of heads that they take at most the device's keepBytes.
func (s *stream) launchFlash(c *backend.Call, a *attention, d int, drawn bool, which ...int) {
	groups, group, dt := a.batch*a.kvHeads, a.heads/a.kvHeads, c.In[0].DType
	dropout, step := rng.KeepThreshold(c.Floats[1]) > 0, groups
	draws := dropout && !drawn
	if draws {
		rows, words := keepShape(a.tq, a.tk)
		bytes := 4 * group * rows * words
		step = max(1, min(groups, s.d.keepBytes/max(1, bytes)))
		a.args.keep = s.scratch(step * bytes)
	}
	for a.args.first = 0; a.args.first < groups; a.args.first += step {
		n := min(step, groups-a.args.first)
		if draws {
			s.drawDropout(c, a, n)
		}
		p := s.packAttention(c, a, false)
		for _, w := range which {
			k, heads, stay := &flashKernels[d/128][w], n*group, a.tq
			if w == keyGrad {
				heads, stay = n, a.tk
			}
			name := k.names[dt]
			if dropout {
				name = k.dropout[dt]
			}
			if heads*stay > 0 {
				s.kernel(name, s.attentionGrid(c, heads, stay, k.stay, 1), flashBlock, k.shared(d), p)
			}
		}
	}
}

var (
	attentionBlock = [3]uint32{attentionThreads, 1, 1}
	flashBlock     = [3]uint32{flashThreads, 1, 1}
)

func attentionGrad(s *stream, c *backend.Call) {
	var mask, decisions *backend.View
	for i := 6; i < c.NIn; i++ {
		if c.In[i].DType == dtype.Int32 {
			decisions = &c.In[i]
		} else {
			mask = &c.In[i]
		}
	}
	a := s.newAttention(c, mask)
	dt, rows := c.In[0].DType, a.batch*a.heads*a.tq
	s.wantVector(c, &c.In[3], statistic(dt), rows, "log-sum-exp")
	s.wantHeads(c, &c.In[4], a.heads, a.tq, a.dv, "dout", false)
	givesOut := c.In[5].NDim == 4
	if givesOut {
		s.wantHeads(c, &c.In[5], a.heads, a.tq, a.dv, "out", false)
	} else {
		s.wantVector(c, &c.In[5], statistic(dt), rows, "delta")
	}
	s.wantHeads(c, &c.Out[0], a.heads, a.tq, a.d, "gradient of q", true)
	s.wantHeads(c, &c.Out[1], a.kvHeads, a.tk, a.d, "gradient of k", true)
	s.wantHeads(c, &c.Out[2], a.kvHeads, a.tk, a.dv, "gradient of v", true)
	a.args = attentionArgs{dout: &c.In[4], dq: &c.Out[0], dk: &c.Out[1], dv: &c.Out[2], lse: s.addr(&c.In[3])}
	if decisions != nil {
		s.kept(c, a, decisions)
	}
	if c.NOut == 4 {
		s.wantVector(c, &c.Out[3], dt, rows*a.tk, "gradient of the mask")
		a.args.dbias = s.addr(&c.Out[3])
	}
	if givesOut && rows > 0 {
		a.args.out, a.args.delta = &c.In[5], s.scratch(rows*statistic(dt).Size())
		s.kernel(attentionDelta[dt], s.attentionGrid(c, 1, rows, attentionThreads/deltaLanes(a.dv, dt), 1),
			attentionBlock, 0, s.packAttention(c, a, false))
	} else if !givesOut {
		a.args.delta = s.addr(&c.In[5])
	}
	s.attentionGrads(c, a)
}

// deltaLanes is how many threads share a row of n elements in kernels/delta.cu.
func deltaLanes(n int, dt dtype.DType) int {
	lanes := 1
	for lanes < 32 && lanes*16 < n*dt.Size() {
		lanes *= 2
	}
	return lanes
}

// attentionGrads makes the gradients from delta.
func (s *stream) attentionGrads(c *backend.Call, a *attention) {
	if c.NOut < 4 {
		if d := s.flash(c, a, &c.In[4], &c.Out[0], &c.Out[1], &c.Out[2]); d > 0 {
			s.launchFlash(c, a, d, a.args.keep != 0, queryGrad, keyGrad)
			return
		}
	}
	p, dt := s.packAttention(c, a, true), c.In[0].DType
	launch := func(which, n, rows, columns int) {
		if n*rows == 0 {
			return
		}
		s.kernel(attentionKernels[which][dt], s.attentionGrid(c, n, rows, attentionTile(dt), chunksOf(columns)),
			attentionBlock, 0, p)
	}
	launch(queryGrad, a.batch*a.heads, a.tq, a.d)
	launch(keyGrad, a.batch*a.kvHeads, a.tk, max(a.d, a.dv))
}
