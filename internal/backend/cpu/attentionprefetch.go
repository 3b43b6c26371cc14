// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/kernels/gemm"
)

// While products of a tile are computed they prefetch what the next one reads and writes, so that it is in the
// second-level cache by then. Tiles touch a few KiB of each of many pages, which no processor fetches ahead by itself.

// attentionPrefetch is the least number of scores in a tile with which its products have the time to prefetch what the
// next one needs: that grows with the sides of a tile, the time with their product.
const attentionPrefetch = 128 * 128

// prefetchList is the worker's list, if products of tiles are large enough to prefetch what it lists. Half operands are
// widened in its workspace before.
func (ws *workspace) prefetchList(a *attention) *gemm.Prefetch {
	if a.rows*a.columns < attentionPrefetch || a.half {
		return nil
	}
	return &ws.prefetch
}

// prefetchRows adds rows i0 to i1 of one sample and head, if there is anything in them.
func prefetchRows[T float](prefetch *gemm.Prefetch, v *backend.View, b, h, i0, i1 int) {
	if i0 < i1 && v.Shape[3] > 0 {
		x, stride := head[T](v, b, h, i0)
		size := int(unsafe.Sizeof(*new(T)))
		prefetch.Rows(unsafe.Pointer(unsafe.SliceData(x)), i1-i0, stride*size, v.Shape[3]*size)
	}
}

// firstTile is the first query of the first tile that may see some key of the tile from j0 on.
func (a *attention) firstTile(j0 int) int {
	from, _ := a.queries(j0, min(j0+a.columns, a.tk))
	return from / a.rows * a.rows
}

// prefetchNext lists what comes after the tile of queries from i0 on and of keys from j0 on.
func (w *attentionPart[T]) prefetchNext(t *task, i0, j0 int) {
	a := &t.attention
	if w.prefetch == nil {
		return
	}
	w.prefetch.Reset()
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
		prefetchRows[T](w.prefetch, a.k, next.sample, kv, j, min(j+a.columns, a.tk))
		prefetchRows[T](w.prefetch, a.v, next.sample, kv, j, min(j+a.columns, a.tk))
	}
	prefetchRows[T](w.prefetch, a.q, next.sample, next.head, i, min(i+a.rows, next.i1))
	prefetchRows[T](w.prefetch, &t.c.Out[0], next.sample, next.head, i, min(i+a.rows, next.i1))
}

// prefetchNext lists the gradients of the keys from j0 on before the first tile of queries, and what comes after that
// from i0 on, of the group's head.
func (g *gradHeads[T]) prefetchNext(t *task, i0, j0, inGroup int) {
	a, c := &t.attention, t.c
	if g.prefetch == nil {
		return
	}
	g.prefetch.Reset()
	if inGroup == 0 && i0 == a.firstTile(j0) {
		end := min(j0+a.columns, a.tk)
		prefetchRows[T](g.prefetch, &c.Out[2], g.b, g.kv, j0, end)
		prefetchRows[T](g.prefetch, &c.Out[1], g.b, g.kv, j0, end)
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
				prefetchRows[T](g.prefetch, &c.In[4], b, h, 0, statistics)
				if givesOut(c) {
					prefetchRows[T](g.prefetch, &c.In[5], b, h, 0, statistics)
				}
			}
			end := min(j+a.columns, a.tk)
			prefetchRows[T](g.prefetch, a.k, b, h/group, j, end)
			prefetchRows[T](g.prefetch, a.v, b, h/group, j, end)
		}
		i = a.firstTile(j)
	}
	end := min(i+a.rows, a.tq)
	prefetchRows[T](g.prefetch, a.q, b, h, i, end)
	prefetchRows[T](g.prefetch, &c.In[4], b, h, i, end)
	prefetchRows[T](g.prefetch, &c.Out[0], b, h, i, end)
}
