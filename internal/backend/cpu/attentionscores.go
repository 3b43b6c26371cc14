// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/kernels/gemm"
	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
	"github.com/lockstep-ml/lockstep/internal/rng"
)

// attentionHead is a head of queries, and what it takes to compute its scores.
type attentionHead[T float] struct {
	b, h     int
	from, to int // the keys that the mask leaves
	masked   bool
	seen     []uint8        // room for the mask of a row
	bits     []uint32       // room for dropout's random bits of a row
	prefetch *gemm.Prefetch // what comes next; nil where products are too small to prefetch it
}

// set chooses the head.
func (w *attentionHead[T]) set(a *attention, b, h int) {
	w.b, w.h = b, h
	w.from, w.to, w.masked = a.visible(b, h)
}

// products computes x·y of a band of rows x and keys in panels, from key j0 on, where the band needs them; what columns
// have beyond is 0.
func (w *attentionHead[T]) products(a *attention, b band, j0 int, x []T, stride, d int, panels, dst []T) {
	lo, hi := a.columnsOf(b, j0)
	n := (b.to - j0 + a.width - 1) / a.width * a.width
	if a.split && b.end-b.first >= attentionSplit {
		split := panels[a.padded(a.columns)*d+gemm.SplitSize32(d, lo):]
		gemm.MultiplySplit32(b.end-b.first, n-lo, d, gemm.InRows(cast[float32](x), stride), cast[float32](split),
			gemm.InRows(cast[float32](dst), a.stride))
	} else {
		keys := gemm.Panels[T]{Data: panels[lo*d:], RowStride: a.width, Stride: a.width * d}
		gemm.InPlace(b.end-b.first, n-lo, d, gemm.Strided(x, stride, 1), keys, gemm.InRows(dst, a.stride), false,
			w.prefetch)
	}
	for i := 0; i < b.end-b.first && n < hi; i++ {
		clear(dst[i*a.stride+n-lo:][:hi-n])
	}
}

// packKeys makes panels of the d elements of n keys, or values, for products.
func packKeys[T float](a *attention, dst []T, d, n int, x []T, stride int) {
	gemm.PackInPlace(dst, d, n, gemm.Strided(x, 1, stride))
	if a.split {
		gemm.SplitPanels32(cast[float32](dst[a.padded(a.columns)*d:]), d, n, gemm.Strided(cast[float32](x), 1, stride))
	}
}

// hide makes of a band's products q·k what the exponential needs: −∞ where a query does not see the key. slopes, if not
// nil, gets the derivatives of soft capped scores by what is capped.
func (w *attentionHead[T]) hide(a *attention, b band, j0 int, products, slopes []T) {
	lo, hi := a.columnsOf(b, j0)
	for i := 0; i < b.end-b.first && a.scaled(); i++ {
		row := products[i*a.stride:][:hi-lo]
		if a.cap > 0 {
			var derivatives []T
			if slopes != nil {
				derivatives = slopes[i*a.stride:][:hi-lo]
			}
			softCap(a, row, derivatives)
		} else {
			scaleRow(row, row, T(a.scale), false)
		}
		if a.bias != nil {
			w.addBias(a, b.first+i, b.from, row[b.from-j0-lo:][:b.to-b.from])
		}
	}
	if !w.masked && b.from-j0 == lo && b.to-j0 == hi && a.whole(b) {
		return
	}
	rows, n, start := b.end-b.first, hi-lo, j0+lo
	reach, limited := a.reach()
	limited = limited && b.first+reach < b.to
	if limited {
		hideRows(products, rows, n, a.stride, b.first+reach-start, 1)
	}
	if b.to < j0+hi && !(limited && b.end-1+reach <= b.to) { // else the above did it
		hideRows(products, rows, n, a.stride, b.to-start, 0)
	}
	for i := b.first; i < b.end && (w.masked || a.window > 0 || b.from > start); i++ {
		row := products[(i-b.first)*a.stride:][:n]
		from, to := a.keys(i)
		to = max(b.from, min(to, b.to))
		from = min(max(from, b.from), to)
		fill(row[:from-start], T(negInf))
		if w.masked && from < to {
			maskedFill(row[from-start:to-start], a.maskRow(w.seen, w.b, w.h, i, from, to-from), T(negInf))
		}
	}
}

// addBias adds the bias of query i to its scores of the keys from j on.
func (w *attentionHead[T]) addBias(a *attention, i, j int, scores []T) {
	v := a.bias
	bias := from[T](v, v.Offset+w.b*v.Stride[0]+w.h*v.Stride[1]+i*v.Stride[2]+j*v.Stride[3])
	for k := range scores {
		scores[k] += bias[k*v.Stride[3]]
	}
}

// draw draws the random bits of query i and n keys from j on: element ((h·Tq)+i)·Tk + j of sample b, where heads of
// other ranks count.
func (w *attentionHead[T]) draw(a *attention, c *backend.Call, i, j, n int) []uint32 {
	rng.FillUint32(w.bits[:n], c.Key, uint64(c.Ints[3]+w.b), uint64(((c.Ints[5]+w.h)*a.tq+i)*a.tk+j))
	return w.bits[:n]
}

// operand is a B of products: rows of it where they lie, or in panels.
type operand[T float] struct {
	x              []T
	stride, panels int // distances of rows, and of panels
}

// newOperand takes rows of n elements where they lie if they lie together, else packs them in room: those that lie far
// apart fall into few sets of a cache.
func newOperand[T float](a *attention, room, x []T, stride, rows, n int) operand[T] {
	if stride == n || rows <= 1 {
		return operand[T]{x, n, a.width}
	}
	gemm.PackInPlace(room, rows, n, gemm.Strided(x, stride, 1))
	return operand[T]{room, a.width, rows * a.width}
}

// multiply computes C = A·B, or C += A·B, with the k rows of o from row i on as B.
func (o operand[T]) multiply(m, n, i, k int, a gemm.Matrix[T], c gemm.Rows[T], accumulate bool,
	prefetch *gemm.Prefetch) {
	b := gemm.Panels[T]{Data: o.x[min(i*o.stride, len(o.x)):], RowStride: o.stride, Stride: o.panels}
	gemm.InPlace(m, n, k, a, b, c, accumulate, prefetch)
}

// softCap makes cap·tanh(scale·x/cap) of a row of products x. slopes, unless it is nil, gets 1 − tanh².
func softCap[T float](a *attention, x, slopes []T) {
	scaleRow(x, x, T(a.scale/a.cap), false)
	if single[T]() {
		vecmath.Tanh(cast[float32](x), cast[float32](x))
	} else {
		for i, v := range x {
			x[i] = T(math.Tanh(float64(v)))
		}
	}
	for i := range slopes {
		slopes[i] = 1 - T(x[i]*x[i])
	}
	scaleRow(x, x, T(a.cap), false)
}
