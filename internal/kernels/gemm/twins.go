// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"math"
	"unsafe"
)

// twins is a kernel for one row and a B whose columns are contiguous. The zero value is none.
//
// Columns that lie a multiple of 4 KiB apart fall into one set of the first-level cache, and 32 of them side by side
// push each other out before they are read. So the second half of a panel is one block of products behind the first:
// half as many lie side by side, in two sets.
type twins[T element] struct {
	lanes int // half a panel
	// compute computes lanes elements of each of two rows, c0 = d0 + a0·B0 and c1 = d1 + a1·B1, over kc products.
	// Column j of B0 is at b0[j·bstride].
	compute func(a0, b0, c0, d0, a1, b1, c1, d1 *T, bstride int)
}

// halfPanel is a block of products of half a panel.
type halfPanel struct{ col, k0 int }

// computeTwins computes the only row of C for the whole panels from col on as engine.dots does, but faster if B's
// columns crowd a cache. It returns the first column that is left: col, if there is no such kernel for the product.
func (j *job[T]) computeTwins(worker, col, end int) int {
	panels, blocks := (end-col)/j.nr, (j.k1-j.k0)/kc
	if j.twins.compute == nil || j.bcs*int(unsafe.Sizeof(j.c[0]))%crowded != 0 || j.m > 1 || j.brs != 1 || j.halfB.format != nil || !j.inRows() || blocks*kc < j.k1-j.k0 || panels*blocks < 2 {
		return col
	}
	steps, tile := panels*blocks, j.scratch[worker].tile
	nothing := tile[2*j.twins.lanes:][:j.twins.lanes]
	for i := range nothing {
		nothing[i] = T(math.Copysign(0, -1)) // which changes no sum, not even one of −0
	}
	place := func(step, half int) halfPanel {
		return halfPanel{col + step/blocks*j.nr + half*j.twins.lanes, j.k0 + step%blocks*kc}
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
		j.twins.compute(a0, b0, c0, d0, a1, b1, c1, d1, j.bcs)
	}
	return col + panels*j.nr
}
