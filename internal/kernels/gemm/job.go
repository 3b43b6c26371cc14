// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"sync"

	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// serialFlops is the number of floating-point operations, a dozen microseconds' worth, below which a product is not
// spread over workers.
const serialFlops = 1 << 20

// job is a product under way together with its scratch memory. Jobs are used again and their loop bodies are made once,
// so that a product allocates nothing.
type job[T element] struct {
	product[T]

	packedA   []T          // of a few rows: [kc block][panel][k within block][lane]
	panelRows int          // of a panel in packedA
	scratch   []scratch[T] // of the workers

	// of blocks of products that are added later: [block][column] of a GEMV, [block][row][column] of split-K
	sums        []T
	alternating []T // what packedA holds of one row, for gemvColumns.crowded

	stepSize                 int // of a panel for it: the elements of 32 products
	splitCols, splitProducts int // the columns and the products of B that are split for it at once

	k0, k1       int // the products that packedA or sums are for
	cutting      cutting
	down, across int // parts into which the rows and the columns of C are cut
	strip        int // of a row of B, in steps of the gemvRows kernels
	layout       layout

	pieceBody, pairedBody, tiledBody, packRowsBody, fusedPackingBody, outerBody func(worker, lo, hi int)
	// of few rows
	streamBody, dotsBody, panelsBody                                                  func(worker, lo, hi int)
	gemvHalvesBody, gemvColumnsBody, gemvRowsBody, addBody, splitKBody, addSplitKBody func(worker, lo, hi int)
}

// scratch is what one worker needs for itself.
type scratch[T element] struct {
	panel, tile []T      // kc × nr of B, and mr × nr of C
	sums        []T      // a block of C, of tiles
	a, b        []T      // panels of A, and of B, for up to kc products
	copied      []T      // panels of A that are about to be multiplied
	bad         []uint32 // of the panels of B: not 0 if one has elements that are not finite
	least       []uint32 // magnitudes of the panels of pairs of A
	next        requests
	_           [64]byte // what one worker writes is in no cache line of another's
}

// jobs is a free list of one element type. Unlike a sync.Pool it survives garbage collections.
type jobs[T element] struct {
	mu   sync.Mutex
	free []*job[T]
}

var (
	jobs32 jobs[float32]
	jobs64 jobs[float64]
)

// jobsOf returns the free list for T.
func jobsOf[T element]() *jobs[T] {
	var list any = &jobs32
	if l, ok := list.(*jobs[T]); ok {
		return l
	}
	list = &jobs64
	return list.(*jobs[T])
}

func (l *jobs[T]) take() *job[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last := len(l.free) - 1; last >= 0 {
		j := l.free[last]
		l.free = l.free[:last]
		return j
	}
	j := new(job[T])
	j.pieceBody, j.pairedBody, j.tiledBody, j.packRowsBody = j.computePieces, j.computePaired, j.computeTiled,
		j.packRows
	j.fusedPackingBody, j.outerBody, j.splitKBody, j.addSplitKBody = j.computeFusedPacking, j.computeOuter,
		j.computeSplitK, j.addSplitK
	j.streamBody, j.dotsBody, j.panelsBody = j.computeStream, j.computeDots, j.computePanels
	j.gemvHalvesBody, j.gemvColumnsBody, j.gemvRowsBody, j.addBody = j.computeGEMVHalves, j.computeGEMVColumns,
		j.computeGEMVRows, j.addGEMVRows
	return j
}

func (l *jobs[T]) put(j *job[T]) {
	j.problem = problem[T]{} // the caller's memory must not be kept alive
	l.mu.Lock()
	l.free = append(l.free, j)
	l.mu.Unlock()
}

// multiply carries out one product.
func multiply[T element](p *parallel.Pool, e *engine[T], q problem[T]) {
	list := jobsOf[T]()
	j := list.take()
	j.run(p, e, q)
	list.put(j)
}

// run carries out one product with this job's memory.
func (j *job[T]) run(p *parallel.Pool, e *engine[T], q problem[T]) {
	if q.m == 0 || q.n == 0 {
		return
	}
	if q.k == 0 {
		q.empty()
		return
	}
	if q.flops() < serialFlops {
		p = nil
	}
	j.product = newProduct(e, q, p.Workers())
	j.reserve(p.Workers())
	j.plan().run(j, p)
}

// reserve makes room for the workers' tiles.
func (j *job[T]) reserve(workers int) {
	for len(j.scratch) < workers {
		j.scratch = append(j.scratch, scratch[T]{})
	}
	for w := range workers {
		s := &j.scratch[w]
		s.panel, s.tile = grown(s.panel, kc*j.nr), grown(s.tile, max(j.mr, mostDotted)*j.nr)
	}
}

// grown returns s with at least n elements; its contents are lost if it must grow.
func grown[T any](s []T, n int) []T {
	if len(s) < n {
		return make([]T, n)
	}
	return s
}

// edge computes a tile that C does not hold as a whole or not in rows: the kernel writes to scratch, from where the
// cols columns that exist go to C.
func (j *job[T]) edge(worker, rows, cols, k int, a, b *T, bstride, i, col, k0 int) {
	tile := j.scratch[worker].tile
	j.micro(rows, k, a, b, bstride, &tile[0], j.nr, nil, 0, 1)
	j.scatter(tile, rows, cols, i, col, k0)
}

// scatter writes the rows of a tile, sums of the block of products from k0 on, to C from (i, col) on, with what is to
// be added to them.
func (j *job[T]) scatter(tile []T, rows, cols, i, col, k0 int) {
	d, drs, dcs := j.d, j.drs, j.dcs
	if k0 > 0 {
		d, drs, dcs = j.c, j.crs, j.ccs
	}
	for r := range rows {
		from := tile[r*j.nr : r*j.nr+cols]
		to := j.c[(i+r)*j.crs+col*j.ccs:]
		if d == nil {
			for x, v := range from {
				to[x*j.ccs] = v
			}
			continue
		}
		added := d[(i+r)*drs+col*dcs:]
		for x, v := range from {
			to[x*j.ccs] = v + added[x*dcs]
		}
	}
}
