// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// gemvHalves is a kernel for one row and a B whose columns are contiguous. The zero value is none.
//
// Columns that lie a multiple of 4 KiB apart fall into one set of the first-level cache, and 32 of them side by side
// push each other out before they are read. So the second half of a panel is one block of products behind the first:
// half as many lie side by side, in two sets.
type gemvHalves[T element] struct {
	lanes int // half a panel
	// compute computes lanes elements of each of two rows, c0 = d0 + a0·B0 and c1 = d1 + a1·B1, over kc products.
	// Column j of B0 is at b0[j·bstride].
	compute func(a0, b0, c0, d0, a1, b1, c1, d1 *T, bstride int)
}

// halfPanel is a block of products of half a panel.
type halfPanel struct{ col, k0 int }

// gemvByHalves reports whether the product is one for the gemvHalves kernel; from a B that no cache holds dots kernels
// read as fast.
func (q *product[T]) gemvByHalves() bool {
	return q.gemvHalves.compute != nil && q.m == 1 && q.brs == 1 && q.crowds() && q.halfB.format == nil && q.inRows() &&
		q.k%kc == 0 && q.sizeB() < uncached
}

// runGEMVHalves computes a product of one row by the gemvHalves kernel.
func (j *job[T]) runGEMVHalves(p *parallel.Pool) {
	j.k0 = 0
	j.packFew(p, j.k, j.mr)
	p.ForWorkers(ceilDiv(j.n, j.nr), fewChunk(j), j.gemvHalvesBody)
}

// computeGEMVHalves computes the only row of C for panels [lo, hi) of B.
func (j *job[T]) computeGEMVHalves(worker, lo, hi int) {
	end := min(hi*j.nr, j.n)
	j.dotsFrom(worker, j.gemvHalfPanels(worker, lo*j.nr, end), end)
	j.finished(0, 1, lo*j.nr, end)
}

// gemvHalfPanels computes the only row of C for the whole panels from col on as engine.dots does. It returns the first
// column that is left.
func (j *job[T]) gemvHalfPanels(worker, col, end int) int {
	panels, blocks := (end-col)/j.nr, j.k/kc
	if panels*blocks < 2 {
		return col
	}
	steps, tile := panels*blocks, j.scratch[worker].tile
	nothing := tile[2*j.gemvHalves.lanes:][:j.gemvHalves.lanes]
	for i := range nothing {
		nothing[i] = T(math.Copysign(0, -1)) // which changes no sum, not even one of −0
	}
	place := func(step, half int) halfPanel {
		return halfPanel{col + step/blocks*j.nr + half*j.gemvHalves.lanes, j.k0 + step%blocks*kc}
	}
	operands := func(h halfPanel) (a, b, c, d *T) {
		d, _ = j.addend(0, h.col, h.k0)
		if d == nil {
			d = &nothing[0]
		}
		return &j.packedA[h.k0-j.k0], &j.b[h.k0+h.col*j.bcs], &j.c[h.col], d
	}
	for step := range steps + 1 {
		a0, b0, c0, d0 := operands(place(min(step, steps-1), 0))
		a1, b1, c1, d1 := operands(place(max(step-1, 0), 1))
		if step == steps { // the first half is complete
			c0 = &tile[0]
		}
		if step == 0 { // the second half is not to begin yet
			c1 = &tile[0]
		}
		j.gemvHalves.compute(a0, b0, c0, d0, a1, b1, c1, d1, j.bcs)
	}
	return col + panels*j.nr
}
