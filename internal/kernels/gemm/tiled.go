// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// A matrix unit multiplies tiles of bfloat16, many times as fast as vectors multiply floats. A float32 is the sum of
// three bfloat16, its pieces, and a product of two of them that of nine products of pieces: six are added, in single
// precision; the three that are left out are at most 2^-24 of the product each, of either sign and far smaller on the
// average (Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
// Computations", ARITH 2019). As fewer sums are rounded, the result is nearer to the exact one than that of
// multiply-adds one by one.
//
// Panels have 32 lanes. A step of 32 products of one has two tiles for each piece, the largest first: of A, 16 lanes by
// 16 pairs of products; of B, 16 pairs by 16 lanes. A pair are two products 16 apart.

const (
	// of the part of C that a kernel computes, in elements; the nr of the engines that have tiles
	tileSide  = 32
	tileStep  = 32                       // products of a step
	tileLanes = tileSide / 2             // of a tile
	tileSize  = tileLanes * tileStep / 2 // elements of a tile, of 32 bits each
	pieceSize = 2 * tileSize             // of the tiles of a piece in a step
	largeStep = 3 * pieceSize            // of a step of three pieces
)

// tiles is what an engine does with a matrix unit. The zero value is no such unit.
type tiles[T element] struct {
	// rows, cols and products are what m, n and k are at least for a product to be made of tiles. They decide about
	// bits.
	rows, cols, products int
	// floats have three pieces, a bfloat16 has one: the sums are the same, as those of pieces that are zero are.
	floats    pieces[T, T]
	bfloat16s pieces[T, uint16]
}

// pieces are the kernels for operands of elements of a type S.
type pieces[T element, S any] struct {
	count int
	// B is split for so many columns and so many products, a multiple of kc, at once. What columns of C become stays in
	// the second-level cache for those products.
	columns, products int
	// micro computes rows×cols elements of C = A·B, or C = D + A·B if d is not nil, rows ≤ 32, over steps of 32
	// products, of panels of pieces, those of B one after the other. Row i of C is at c[i·cstride], of D at
	// d[i·dstride]. sums has room for 32×32 elements.
	micro func(rows, steps int, a, b, c *T, cstride int, d *T, dstride, cols int, sums *T)
	// rows splits 16 lanes of 32·steps contiguous products, of which lane i begins at src[i·stride]: pair p of piece n
	// of lane i goes to dst[n·pieceSize + i·16 + p], in the next step pitch further. It returns 0 if all are finite,
	// and round to such bfloat16.
	rows func(steps int, src *S, stride int, dst *T, pitch int) (bad uint32)
	// lanes splits 32·panels contiguous lanes of 32·steps products, of which product p begins at src[p·stride]: pair p
	// of piece n of lane i < 16 goes to dst[n·pieceSize + p·16 + i], of the next 16 lanes a tile further, in the next
	// panel pitch further; steps follow each other. It returns what rows does.
	lanes func(steps, panels int, src *S, stride int, dst *T, pitch int) (bad uint32)
	// pack is engine.pack of elements as they are.
	pack func(dst []S, width, lanes, k int, src []S, laneStride, kStride int)
}

// take reports whether a product is one for the matrix unit. That depends on its shape alone, since its bits depend on
// it.
func (t *tiles[T]) take(m, n, k int) bool {
	pays := func(lanes, least int) bool { // a panel that is hardly filled takes as long as any
		return lanes >= least+tileSide || lanes >= least && lanes%tileSide == 0
	}
	return t.floats.micro != nil && pays(m, t.rows) && pays(n, t.cols) && k >= t.products
}

// whole reports whether both operands are bfloat16, each of which is its only piece.
func (q *problem[T]) whole() bool {
	return q.halfA.format != nil && q.halfA.format == q.halfB.format && q.halfA.bfloat16
}

// runTiled is runBlocked for the matrix unit.
func (j *job[T]) runTiled(p *parallel.Pool) {
	// rows or columns that could be computed while a side is split: so much that more pieces would cost more than a
	// slow worker
	const extra = 30
	workers, t := p.Workers(), &j.engine.tiles
	count, columns, products := t.floats.count, t.floats.columns, t.floats.products
	if j.whole() {
		count, columns, products = t.bfloat16s.count, t.bfloat16s.columns, t.bfloat16s.products
	}
	j.stepSize, j.splitCols, j.splitProducts = count*pieceSize, columns, products
	j.cut(workers, cutting{rows: tileSide, cols: tileSide, most: j.m, blocks: ceilDiv(j.n, columns), extraRows: extra,
		extraCols: extra, smallest: 1 << 24, each: 2})
	_, cols := j.largest()
	panels, blocks, steps := ceilDiv(min(columns, cols), tileSide), ceilDiv(min(j.k, products), kc),
		ceilDiv(min(j.k, kc), tileStep)
	for w := range workers {
		s := &j.scratch[w]
		s.forTiles(steps, j.stepSize)
		s.b, s.bad = grown(s.b, blocks*panels*steps*j.stepSize), grown(s.bad, blocks*panels)
	}
	p.ForWorkers(j.down*j.across, 1, j.tiledBody)
}

// forTiles makes room for a panel of A of so many steps, for what is split before it is transposed or staged before it
// is split, and for a block of C.
func (s *scratch[T]) forTiles(steps, stepSize int) {
	s.a, s.sums, s.copied = grown(s.a, steps*stepSize), grown(s.sums, tileSide*tileSide),
		grown(s.copied, spareSize+steps*tileStep*tileSide)
}

// computeTiled is computePieces for the matrix unit.
func (j *job[T]) computeTiled(worker, lo, hi int) {
	for number := lo; number < hi; number++ {
		i0, i1, first, end := j.piece(number)
		width := ceilDiv(ceilDiv(end-first, ceilDiv(end-first, j.splitCols)), tileSide) * tileSide
		for col := first; col < end; col += width {
			for k0 := 0; k0 < j.k; k0 += j.splitProducts {
				j.computeSplit(&j.scratch[worker],
					&block{i0, i1, col, min(col+width, end), k0, min(k0+j.splitProducts, j.k)})
			}
		}
	}
}

// computeSplit adds t's products to C, for all of which B is split.
func (j *job[T]) computeSplit(s *scratch[T], t *block) {
	panels := ceilDiv(t.j1-t.j0, tileSide)
	part := func(k0 int) (block, []T, []uint32) { // of kc products, B's pieces for it, and which panels are bad
		n := (k0 - t.k0) / kc * panels
		return block{t.i0, t.i1, t.j0, t.j1, k0, min(k0+kc, t.k1)}, s.b[n*kc/tileStep*j.stepSize:], s.bad[n:][:panels]
	}
	finite := true
	for k0 := t.k0; k0 < t.k1; k0 += kc {
		p, b, bad := part(k0)
		finite = j.splitB(s, &p, b, bad) && finite
	}
	for i := t.i0; i < t.i1; i += tileSide {
		for k0 := t.k0; k0 < t.k1; k0 += kc {
			p, b, bad := part(k0)
			j.tiledPanel(s, &p, i, b, bad, j.splitA(s, &p, i), finite)
		}
	}
}

// tiledPanel adds t's products to the rows of C from row i on. A tile is computed as products are without a matrix unit
// if its panel of A or of B is not finite: pieces of infinity are not a number, where infinity times a number may be
// infinite. The tiles are the same however C is cut, so that this changes no bit with the number of workers.
func (j *job[T]) tiledPanel(s *scratch[T], t *block, i int, panels []T, bad []uint32, finiteA, finiteB bool) {
	steps, rows, micro := ceilDiv(t.k1-t.k0, tileStep), min(tileSide, t.i1-i), j.tiles.floats.micro
	if j.whole() {
		micro = j.tiles.bfloat16s.micro
	}
	for col := t.j0; col < t.j1; {
		panel := (col - t.j0) / tileSide
		b := &panels[panel*steps*j.stepSize]
		cols := min(tileSide, t.j1-col)
		switch {
		case finiteA && finiteB && j.inRows():
			cols = t.j1 - col
			d, stride := j.addend(i, col, t.k0)
			micro(rows, steps, &s.a[0], b, &j.c[i*j.crs+col], j.crs, d, stride, cols, &s.sums[0])
		case finiteA && (finiteB || bad[panel] == 0):
			tile := s.copied[:tileSide*tileSide]
			micro(rows, steps, &s.a[0], b, &tile[0], tileSide, nil, 0, cols, &s.sums[0])
			j.scatter(tile, rows, cols, i, col, t.k0)
		default:
			j.tileByVectors(s, i, rows, col, cols, t.k0)
		}
		col += cols
	}
	if t.k1 == j.k {
		j.finished(i, i+rows, t.j0, t.j1)
	}
}

// tileByVectors adds the block of products from k0 on to a part of C without the matrix unit.
func (j *job[T]) tileByVectors(s *scratch[T], i, rows, col, cols, k0 int) {
	k := min(kc, j.k-k0)
	j.packB(s.panel, cols, k, k0, col)
	for end := i + rows; i < end; i += j.mr {
		height := min(j.mr, end-i)
		j.packA(s.copied, height, k, i, k0)
		j.micro(height, k, &s.copied[0], &s.panel[0], j.nr, &s.tile[0], j.nr, nil, 0, 1)
		j.scatter(s.tile, height, cols, i, col, k0)
	}
}

// splitA splits the panel of A from row i on for t's products, and reports whether it is finite.
func (j *job[T]) splitA(s *scratch[T], t *block, i int) bool {
	at, lanes, k := i*j.ars+t.k0*j.acs, min(tileSide, t.i1-i), t.k1-t.k0
	if j.whole() {
		return splitPanel(j, s, &j.tiles.bfloat16s, s.a, true, j.halfA.bits[at:], lanes, k, j.ars, j.acs) == 0
	}
	return j.splitFloats(s, s.a, true, j.a, &j.halfA, at, lanes, k, j.ars, j.acs) == 0
}

// splitB splits B for t's columns and products to dst. It reports whether all is finite; if not, bad says which panels
// are not.
func (j *job[T]) splitB(s *scratch[T], t *block, dst []T, bad []uint32) bool {
	k, col := t.k1-t.k0, t.j0
	pitch, at, panels := ceilDiv(k, tileStep)*j.stepSize, t.k0*j.brs+t.j0*j.bcs, (t.j1-t.j0)/tileSide
	if j.bcs == 1 && k%tileStep == 0 && panels > 0 { // rows of all panels
		any := uint32(1)
		switch steps := k / tileStep; {
		case j.whole():
			any = j.tiles.bfloat16s.lanes(steps, panels, &j.halfB.bits[at], j.brs, &dst[0], pitch)
		case j.halfB.format == nil:
			any = j.tiles.floats.lanes(steps, panels, &j.b[at], j.brs, &dst[0], pitch)
		}
		if any == 0 {
			clear(bad[:panels])
			col += panels * tileSide
		}
	}
	all := uint32(0)
	for ; col < t.j1; col += tileSide {
		panel, at, lanes := (col-t.j0)/tileSide, t.k0*j.brs+col*j.bcs, min(tileSide, t.j1-col)
		if j.whole() {
			bad[panel] = splitPanel(j, s, &j.tiles.bfloat16s, dst[panel*pitch:], false, j.halfB.bits[at:], lanes, k,
				j.bcs, j.brs)
		} else {
			bad[panel] = j.splitFloats(s, dst[panel*pitch:], false, j.b, &j.halfB, at, lanes, k, j.bcs, j.brs)
		}
		all |= bad[panel]
	}
	return all == 0
}

// splitFloats is splitPanel for elements of x from number at on, or of h if that is a half type: they are widened
// before.
func (j *job[T]) splitFloats(s *scratch[T], dst []T, asRows bool, x []T, h *half[T], at, lanes, k, laneStride,
	kStride int) (bad uint32) {
	if h.format == nil {
		return splitPanel(j, s, &j.tiles.floats, dst, asRows, x[at:], lanes, k, laneStride, kStride)
	}
	staged := s.copied[spareSize:][:ceilDiv(k, tileStep)*tileStep*tileSide]
	h.pack(staged, tileSide, lanes, k, h.bits[at:], laneStride, kStride)
	clear(staged[k*tileSide:])
	return splitSteps(j, s, &j.tiles.floats, dst, asRows, staged, ceilDiv(k, tileStep), 1, tileSide)
}

// splitPanel splits k products of so many lanes, at most those of a panel, to tiles of A if asRows is set, else to
// tiles of B. What is missing of lanes and of the last step is zero.
func splitPanel[T element, S any](j *job[T], s *scratch[T], p *pieces[T, S], dst []T, asRows bool, src []S, lanes, k,
	laneStride, kStride int) (bad uint32) {
	whole := 0
	if lanes == tileSide && (laneStride == 1 || kStride == 1) {
		whole = k / tileStep
	}
	if whole > 0 {
		bad = splitSteps(j, s, p, dst, asRows, src, whole, laneStride, kStride)
	}
	if done := whole * tileStep; done < k {
		steps := ceilDiv(k-done, tileStep)
		staged := unsafe.Slice((*S)(unsafe.Pointer(&s.copied[spareSize])), steps*tileStep*tileSide)
		p.pack(staged, tileSide, lanes, k-done, src[done*kStride:], laneStride, kStride)
		clear(staged[(k-done)*tileSide:])
		bad |= splitSteps(j, s, p, dst[whole*j.stepSize:], asRows, staged, steps, 1, tileSide)
	}
	return bad
}

// splitSteps splits whole steps of a panel of which either lanes or products are contiguous.
func splitSteps[T element, S any](j *job[T], s *scratch[T], p *pieces[T, S], dst []T, asRows bool, src []S, steps,
	laneStride, kStride int) uint32 {
	switch {
	case asRows && kStride == 1:
		return p.rows(steps, &src[0], laneStride, &dst[0], j.stepSize) | p.rows(steps, &src[tileLanes*laneStride],
			laneStride, &dst[tileSize], j.stepSize)
	case asRows:
		return lanesAsRows(j, s, p, dst, src, steps, kStride)
	case laneStride == 1:
		return p.lanes(steps, 1, &src[0], kStride, &dst[0], 0)
	default:
		return rowsAsLanes(j, s, p, dst, src, steps, laneStride)
	}
}

// spareSteps is how many steps are split before their tiles are transposed, as they are in the first-level cache then.
const (
	spareSteps = 4
	spareSize  = spareSteps * largeStep
)

// lanesAsRows splits a panel of contiguous lanes to tiles of A.
func lanesAsRows[T element, S any](j *job[T], s *scratch[T], p *pieces[T, S], dst []T, src []S, steps,
	stride int) (bad uint32) {
	for n := range steps {
		bad |= p.lanes(1, 1, &src[n*tileStep*stride], stride, &s.copied[0], 0)
		for at := 0; at < j.stepSize; at += tileSize {
			j.transposeTile(dst[n*j.stepSize+at:], s.copied[at:])
		}
	}
	return bad
}

// rowsAsLanes splits a panel of lanes whose products are contiguous to tiles of B.
func rowsAsLanes[T element, S any](j *job[T], s *scratch[T], p *pieces[T, S], dst []T, src []S, steps,
	stride int) (bad uint32) {
	for side := range 2 {
		lanes, to := src[side*tileLanes*stride:], dst[side*tileSize:]
		for first := 0; first < steps; first += spareSteps {
			some := min(spareSteps, steps-first)
			bad |= p.rows(some, &lanes[first*tileStep], stride, &s.copied[0], j.stepSize)
			for at := 0; at < some*j.stepSize; at += pieceSize {
				j.transposeTile(to[first*j.stepSize+at:], s.copied[at:])
			}
		}
	}
	return bad
}

func (j *job[T]) transposeTile(dst, src []T) {
	j.engine.transpose(dst, tileLanes, tileLanes, tileLanes, src, tileLanes)
}
