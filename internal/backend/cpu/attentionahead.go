// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/kernels/gemm"
)

// While products of a tile are computed they ask for what the next one reads and writes, so that it is in the
// second-level cache by then. Tiles touch a few KiB of each of many pages, which no processor fetches ahead by itself.

// attentionAsks is the least number of scores in a tile with which its products have the time to ask for what the next
// one needs: that grows with the sides of a tile, the time with their product.
const attentionAsks = 128 * 128

// asking is the lane's list, if products of tiles are large enough to ask for what it lists. Half operands are widened
// in the lane's memory before.
func (l *lane) asking(a *attention) *gemm.Ahead {
	if a.rows*a.columns < attentionAsks || a.half {
		return nil
	}
	return &l.ahead
}

// ask adds rows i0 to i1 of one sample and head, if there is anything in them.
func ask[T float](ahead *gemm.Ahead, v *backend.View, b, h, i0, i1 int) {
	if i0 < i1 && v.Shape[3] > 0 {
		x, stride := head[T](v, b, h, i0)
		size := int(unsafe.Sizeof(*new(T)))
		ahead.Rows(unsafe.Pointer(unsafe.SliceData(x)), i1-i0, stride*size, v.Shape[3]*size)
	}
}

// firstTile is the first query of the first tile that may see some key of the tile from j0 on.
func (a *attention) firstTile(j0 int) int {
	from, _ := a.queries(j0, min(j0+a.columns, a.tk))
	return from / a.rows * a.rows
}

// ask lists what comes after the tile of queries from i0 on and of keys from j0 on.
func (w *attentionPart[T]) ask(t *task, i0, j0 int) {
	a := &t.attention
	if w.ahead == nil {
		return
	}
	w.ahead.Reset()
	i, j, next := i0+a.rows, j0, w.unit
	if i >= w.i1 {
		i, j = w.i0, j0+a.columns
		if j >= w.end {
			if next.number++; next.number == a.batch*a.heads*a.parts {
				return
			}
			next = a.unit(next.number)
			from, _ := a.keys(next.i0)
			i, j = next.i0, from/a.columns*a.columns
		}
		i = max(i, a.firstTile(j))
		kv := next.head / (a.heads / a.kvHeads)
		ask[T](w.ahead, a.k, next.sample, kv, j, min(j+a.columns, a.tk))
		ask[T](w.ahead, a.v, next.sample, kv, j, min(j+a.columns, a.tk))
	}
	ask[T](w.ahead, a.q, next.sample, next.head, i, min(i+a.rows, next.i1))
	ask[T](w.ahead, &t.c.Out[0], next.sample, next.head, i, min(i+a.rows, next.i1))
}

// ask lists the gradients of the keys from j0 on before the first tile of queries, and what comes after that from i0
// on, of the group's head.
func (g *gradHeads[T]) ask(t *task, i0, j0, inGroup int) {
	a, c := &t.attention, t.c
	if g.ahead == nil {
		return
	}
	g.ahead.Reset()
	if inGroup == 0 && i0 == a.firstTile(j0) {
		end := min(j0+a.columns, a.tk)
		ask[T](g.ahead, &c.Out[2], g.b, g.kv, j0, end)
		ask[T](g.ahead, &c.Out[1], g.b, g.kv, j0, end)
	}
	b, h, i, j := g.b, g.h, i0+a.rows, j0
	if _, last := a.queries(j0, min(j0+a.columns, a.tk)); i >= last {
		group := a.heads / a.kvHeads
		if inGroup+1 < group {
			h++
		} else {
			h, j = g.kv*group, j0+a.columns
			if j >= a.tk {
				kv := g.b*a.kvHeads + g.kv + 1
				if kv == a.batch*a.kvHeads {
					return
				}
				b, h, j = kv/a.kvHeads, kv%a.kvHeads*group, 0
				statistics := min(a.tq, 2*attentionRows) // that come first, of as much as the cache has room for
				ask[T](g.ahead, &c.In[4], b, h, 0, statistics)
				if givesOut(c) {
					ask[T](g.ahead, &c.In[5], b, h, 0, statistics)
				}
			}
			end := min(j+a.columns, a.tk)
			ask[T](g.ahead, a.k, b, h/group, j, end)
			ask[T](g.ahead, a.v, b, h/group, j, end)
		}
		i = a.firstTile(j)
	}
	end := min(i+a.rows, a.tq)
	ask[T](g.ahead, a.q, b, h, i, end)
	ask[T](g.ahead, &c.In[4], b, h, i, end)
	ask[T](g.ahead, &c.Out[0], b, h, i, end)
}
