package gemm

import (
	"sync"

	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// serialFlops is the number of floating-point operations, a dozen microseconds' worth, below which a product is not spread over workers.
const serialFlops = 1 << 20

// job is a product under way together with its scratch memory. Jobs are used again and their loop bodies are made once, so that a
// product allocates nothing.
type job[T element] struct {
	*engine[T]
	problem[T]

	packedA, packedB []T   // [kc block][panel][k within block][lane]
	edges            [][]T // per worker: a panel of B (kc × nr), then a tile of C (mr × nr)

	i0, i1, j0, j1, k0, k1 int // the part of the product that is packed now
	tileRows, tileCols     int
	freshA, freshB         bool // whether A and B must still be packed for that part
	groupsA, groupsB       int  // of panels to pack for it
	panelsB                int  // per group of B

	packBody, tileBody, packRowsBody, skinnyBody, outerBody func(worker, lo, hi int)
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
	j.packBody, j.tileBody, j.packRowsBody = j.packPanels, j.computeTiles, j.packRows
	j.skinnyBody, j.outerBody = j.computeSkinny, j.computeOuter
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
	if q.n <= e.narrow && q.m > q.n {
		q = q.transposed()
	}
	j.engine, j.problem = e, q
	j.reserveEdges(p.Workers())
	switch {
	case q.m <= e.mr || q.m <= e.skinny && q.n >= shareable*e.nr:
		j.runSkinny(p)
	case q.k == 1 && q.bcs == 1 && q.inRows() && e.outer.row != nil && q.halfA.format == nil && q.halfB.format == nil:
		j.runOuter(p)
	default:
		j.runBlocked(p)
	}
}

// reserveEdges makes room for the workers' own scratch.
func (j *job[T]) reserveEdges(workers int) {
	need := (kc + j.mr) * j.nr
	for len(j.edges) < workers {
		j.edges = append(j.edges, nil)
	}
	for w := range workers {
		j.edges[w] = grown(j.edges[w], need)
	}
}

// grown returns s with at least n elements; its contents are lost if it must grow.
func grown[T element](s []T, n int) []T {
	if len(s) < n {
		return make([]T, n)
	}
	return s
}

// runBlocked packs A and B part by part and computes the tiles of C for each part.
func (j *job[T]) runBlocked(p *parallel.Pool) {
	kb := min(j.k, j.kb)
	j.packedA = grown(j.packedA, min(j.m, j.mb)*kb)
	j.packedB = grown(j.packedB, ceilDiv(min(j.n, j.nb), j.nr)*j.nr*kb)
	for j.j0 = 0; j.j0 < j.n; j.j0 += j.nb {
		j.j1 = min(j.j0+j.nb, j.n)
		for j.k0 = 0; j.k0 < j.k; j.k0 += j.kb {
			j.k1 = min(j.k0+j.kb, j.k)
			j.freshB = true
			for j.i0 = 0; j.i0 < j.m; j.i0 += j.mb {
				j.i1 = min(j.i0+j.mb, j.m)
				j.freshA = j.j0 == 0 || j.m > j.mb || j.k > j.kb
				j.runPart(p)
				j.freshB = false
			}
		}
	}
}

// runPart packs what is fresh, then computes rows [i0, i1) × columns [j0, j1) over products [k0, k1).
func (j *job[T]) runPart(p *parallel.Pool) {
	j.groupsA, j.groupsB, j.panelsB = 0, 0, packGroup
	if j.freshA {
		j.groupsA = ceilDiv(j.i1-j.i0, packGroup*j.mr)
	}
	if j.freshB {
		panels := ceilDiv(j.j1-j.j0, j.nr)
		if workers := p.Workers(); workers > 1 { // each gets some
			j.panelsB = max(1, min(packGroup, panels/(4*workers)))
		}
		j.groupsB = ceilDiv(panels, j.panelsB)
	}
	p.ForWorkers(j.groupsA+j.groupsB, 1, j.packBody)

	j.tileRows, j.tileCols = j.tileSize(j.i1-j.i0, j.j1-j.j0, j.k1-j.k0)
	p.ForWorkers(ceilDiv(j.i1-j.i0, j.tileRows)*ceilDiv(j.j1-j.j0, j.tileCols), 1, j.tileBody)
}

// tileSize cuts tiles smaller than tm × tn where a part would otherwise have too few of them to keep many workers busy to the end.
func (t *tiling) tileSize(m, n, k int) (rows, cols int) {
	const wanted = 32        // tiles
	const smallest = 1 << 21 // flops
	rows, cols = t.tm, t.tn
	for ceilDiv(m, rows)*ceilDiv(n, cols) < wanted && 2*min(rows, m)*min(cols, n)*k > smallest {
		switch {
		case min(cols, n) > 2*min(rows, m) && cols > t.nr:
			cols = ceilDiv(cols/2, t.nr) * t.nr
		case rows > t.mr:
			rows = ceilDiv(rows/2, t.mr) * t.mr
		default:
			return rows, cols
		}
	}
	return rows, cols
}

// packGroup is the number of neighbouring panels that one task packs, of B at most.
const packGroup = 8

// packPanels packs groups [lo, hi) of panels. Those of A and of B come in turns, so that any part of them has its share of both.
func (j *job[T]) packPanels(_, lo, hi int) {
	all := j.groupsA + j.groupsB
	for group := lo; group < hi; group++ {
		a := group * j.groupsA / all
		ofA := (group+1)*j.groupsA/all > a
		for k0 := j.k0; k0 < j.k1; k0 += kc {
			k := min(kc, j.k1-k0)
			if ofA {
				j.packGroupA(j.i0+a*packGroup*j.mr, k0, k)
			} else {
				j.packGroupB(j.j0+(group-a)*j.panelsB*j.nr, k0, k)
			}
		}
	}
}

// packGroupA packs the panels of A from row i on, but for those that are read in place.
func (j *job[T]) packGroupA(i, k0, k int) {
	end := min(i+packGroup*j.mr, j.i1)
	for step := j.packStep(j.ars, k); k > 0; k0, k = k0+step, k-step {
		first := (k0 - j.k0) / kc * kc // of the block of kc products
		depth := min(kc, j.k1-j.k0-first)
		for row := i; row < end; row += j.mr {
			rows := min(j.mr, end-row)
			if j.inPlace(rows) {
				continue
			}
			dst := j.packedA[first*(j.i1-j.i0)+(row-j.i0)*depth+(k0-j.k0-first)*rows:]
			j.packA(dst, rows, min(step, k), row, k0)
		}
	}
}

// packGroupB packs the panels of B from column col on.
func (j *job[T]) packGroupB(col, k0, k int) {
	end := min(col+j.panelsB*j.nr, j.j1)
	width := ceilDiv(j.j1-j.j0, j.nr) * j.nr
	for step := j.packStep(j.bcs, k); k > 0; k0, k = k0+step, k-step {
		first := (k0 - j.k0) / kc * kc
		depth := min(kc, j.k1-j.k0-first)
		for c := col; c < end; c += j.nr {
			dst := j.packedB[first*width+(c-j.j0)*depth+(k0-j.k0-first)*j.nr:]
			j.packB(dst, min(j.nr, end-c), min(step, k), k0, c)
		}
	}
}

// packStep is how many of k products a panel is packed for before its neighbour's turn. Panels whose lanes lie side by side share pages and cache
// lines of each product, which are left before they are lost; others are packed whole.
func (j *job[T]) packStep(laneStride, k int) int {
	if laneStride == 1 {
		return min(k, 32)
	}
	return k
}

// computeTiles computes tiles [lo, hi) of the packed part; those that are neighbours in a row share rows of A and of C: a worker's own tiles are rows
// that it reads or wrote in the operations before and after.
func (j *job[T]) computeTiles(worker, lo, hi int) {
	across := ceilDiv(j.j1-j.j0, j.tileCols)
	for tile := lo; tile < hi; tile++ {
		i0 := j.i0 + tile/across*j.tileRows
		j0 := j.j0 + tile%across*j.tileCols
		j.computeTile(worker, i0, min(i0+j.tileRows, j.i1), j0, min(j0+j.tileCols, j.j1))
	}
}

// computeTile computes rows [i0, i1) × columns [j0, j1) of C over the packed products.
func (j *job[T]) computeTile(worker, i0, i1, j0, j1 int) {
	width := ceilDiv(j.j1-j.j0, j.nr) * j.nr
	for k0 := j.k0; k0 < j.k1; k0 += kc {
		k := min(kc, j.k1-k0)
		blockA := j.packedA[(k0-j.k0)*(j.i1-j.i0):]
		blockB := j.packedB[(k0-j.k0)*width:]
		for i := i0; i < i1; i += j.mr {
			rows := min(j.mr, i1-i)
			if j.inPlace(rows) {
				j.computeRows(worker, i, k0, k, j0, j1, blockB)
				continue
			}
			panelA := &blockA[(i-j.i0)*k]
			col := j0
			if blocks := (j1 - j0) / j.nr; blocks > 0 && j.inRows() {
				d, stride := j.addend(i, col, k0)
				j.micro(rows, k, panelA, &blockB[(col-j.j0)*k], j.nr, &j.c[i*j.crs+col], j.crs, d, stride, blocks)
				col += blocks * j.nr
			}
			for ; col < j1; col += j.nr {
				j.edge(worker, rows, min(j1-col, j.nr), k, panelA, &blockB[(col-j.j0)*k], j.nr, i, col, k0)
			}
		}
	}
	if j.k1 == j.k {
		j.finished(i0, i1, j0, j1)
	}
}

// inPlace reports whether a panel of so many rows of A is read where it lies. That saves the packing, which counts where few columns share it; rows that
// are long and lie far apart fall into few sets of a cache, which counts where many columns read them.
func (j *job[T]) inPlace(rows int) bool {
	const few = 1536
	return j.acs == 1 && rows == j.mr && j.engine.rows != nil && j.halfA.format == nil && min(j.n, j.ars) <= few
}

// computeRows computes the whole rows from i on × columns [j0, j1) of C over the k products from k0 on, with A where it lies.
func (j *job[T]) computeRows(worker, i, k0, k, j0, j1 int, blockB []T) {
	a := &j.a[i*j.ars+k0]
	col := j0
	if blocks := (j1 - j0) / j.nr; blocks > 0 && j.inRows() {
		d, stride := j.addend(i, col, k0)
		j.engine.rows(k, a, j.ars, &blockB[(col-j.j0)*k], j.nr, &j.c[i*j.crs+col], j.crs, d, stride, blocks)
		col += blocks * j.nr
	}
	tile := j.edges[worker][kc*j.nr:]
	for ; col < j1; col += j.nr {
		j.engine.rows(k, a, j.ars, &blockB[(col-j.j0)*k], j.nr, &tile[0], j.nr, nil, 0, 1)
		j.scatter(tile, j.mr, min(j1-col, j.nr), i, col, k0)
	}
}

// edge computes a tile that C does not hold as a whole or not in rows: the kernel writes to scratch, from where the cols columns that exist go to C.
func (j *job[T]) edge(worker, rows, cols, k int, a, b *T, bstride, i, col, k0 int) {
	tile := j.edges[worker][kc*j.nr:]
	j.micro(rows, k, a, b, bstride, &tile[0], j.nr, nil, 0, 1)
	j.scatter(tile, rows, cols, i, col, k0)
}

// scatter writes the rows of a tile, sums of the block of products from k0 on, to C from (i, col) on, with what is to be added to them.
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
