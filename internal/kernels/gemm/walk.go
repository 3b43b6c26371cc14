package gemm

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/kernels"
)

// walk are the kernels for one row and a B whose columns are contiguous, on a processor whose first cache has few ways. The zero value has none.
//
// dots reads twice as many columns side by side, each in a page of its own. A walk goes down half as many, two blocks of products at a time, and asks for what comes
// later in long runs, as the processor sees by itself only within a page.
type walk[T element] struct {
	ways  int // of the first-level cache, at most
	lanes int // half a panel
	// compute and crowded compute lanes elements of each of two rows, c0 = d0 + a0·B0 and c1 = d1 + a1·B1, over kc products. Column j of B0 is at b0[j·bstride].
	// c0 is written before d1 is read. They ask for kc/lanes runs of 2·kc elements, the first of which is at next, and each nstride after the one before. crowded
	// is for columns that lie a multiple of 4 KiB apart.
	compute, crowded func(a0, b0, c0, d0, a1, b1, c1, d1 *T, bstride int, next *T, nstride int)
}

// A walk asks for memory so many blocks of products of half a panel ahead, where columns crowd the caches for the next ones.
const (
	walkAhead        = 8
	walkAheadCrowded = 2
)

// walks reports whether the product is one for the walk kernels.
func (j *job[T]) walks() bool {
	return j.walk.compute != nil && j.m == 1 && j.brs == 1 && j.halfB.format == nil && j.inRows() && (j.k1-j.k0)%kc == 0 && kernels.FirstCacheWays() <= j.walk.ways
}

// computeWalk computes the only row of C for the whole vectors of columns from col on as engine.dots does. It returns the first column that is left: col, if there is
// no such kernel for the product.
func (j *job[T]) computeWalk(worker, col, end int) int {
	if !j.walks() {
		return col
	}
	lanes, blocks := j.walk.lanes, (j.k1-j.k0)/kc
	vectors := (end - col) / lanes
	steps, tile := vectors*blocks, j.scratch[worker].tile
	nothing := tile[lanes:][:lanes]
	for i := range nothing {
		nothing[i] = T(math.Copysign(0, -1)) // which changes no sum, not even one of −0
	}
	place := func(step int) halfPanel {
		return halfPanel{col + step/blocks*lanes, j.k0 + step%blocks*kc}
	}
	operands := func(h halfPanel) (a, b, c, d *T) {
		d, _ = j.addend(0, h.col, h.k0)
		if d == nil {
			d = &nothing[0]
		}
		return &j.packedA[h.k0-j.k0], &j.b[h.k0+h.col*j.bcs], &j.c[h.col], d
	}
	compute, ahead := j.walk.compute, walkAhead
	next := func(step int) (*T, int) { // one column after the other
		h := place(min(step+ahead, steps-1))
		return &j.b[h.k0+h.col*j.bcs], j.bcs
	}
	switch {
	case j.bcs*int(unsafe.Sizeof(j.c[0]))%crowded == 0:
		compute, ahead = j.walk.crowded, walkAheadCrowded
	case j.bcs == j.k1-j.k0: // all columns are one run
		next = func(step int) (*T, int) { return &j.b[min(col*j.bcs+(step+ahead)*kc*lanes, len(j.b)-1)], 2 * kc }
	}
	for step := 0; step < steps; step += 2 {
		a0, b0, c0, d0 := operands(place(step))
		a1, b1, c1, d1 := operands(place(min(step+1, steps-1)))
		if step+1 == steps {
			c1, d1 = &tile[0], &nothing[0]
		}
		n, stride := next(step)
		compute(a0, b0, c0, d0, a1, b1, c1, d1, j.bcs, n, stride)
	}
	return col + vectors*lanes
}
