package gemm

import (
	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// A matrix unit multiplies tiles of bfloat16, many times as fast as vectors multiply floats. A float32 is the sum of three bfloat16, its pieces, and a product of two of them that of nine products of
// pieces: six are added, in single precision; the three that are left out are at most 2^-24 of the product each, of either sign and far smaller on the average (Henry, Tang and Heinecke, "Leveraging the
// bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", ARITH 2019). As fewer sums are rounded, the result is nearer to the exact one than that of multiply-adds one by one.
//
// Panels have 32 lanes. A step of 32 products of one has two tiles for each piece, the largest first: of A, 16 lanes by 16 pairs of products; of B, 16 pairs by 16 lanes. A pair are two products 16 apart.

const (
	tileSide  = 32                       // of the part of C that a kernel computes, in elements; the nr of the engines that have tiles
	tileStep  = 32                       // products of a step
	tileLanes = tileSide / 2             // of a tile
	tileSize  = tileLanes * tileStep / 2 // elements of a tile, of 32 bits each
	pieceSize = 2 * tileSize             // of the tiles of a piece in a step
	stepSize  = 3 * pieceSize            // of a step
)

// tiles is what an engine does with a matrix unit. The zero value is no such unit.
type tiles[T element] struct {
	// rows, cols and products are what m, n and k are at least for a product to be made of tiles. They decide about bits.
	rows, cols, products int
	// columns is the number of columns of B that are split at once.
	columns int
	// micro computes 32×(32·blocks) elements of C = A·B, or C = D + A·B if d is not nil, over steps of 32 products, of panels of pieces, those of B one behind the other. Row i of C is at
	// c[i·cstride], of D at d[i·dstride]. sums has room for a block.
	micro func(steps int, a, b, c *T, cstride int, d *T, dstride, blocks int, sums *T)
	// splitRows splits 16 lanes of 32·steps contiguous products, of which lane i begins at src[i·stride]: pair p of piece n of lane i goes to dst[n·pieceSize + i·16 + p], in the next step pitch further.
	// It returns 0 if all are finite, and round to such bfloat16.
	splitRows func(steps int, src *T, stride int, dst *T, pitch int) (bad uint32)
	// splitLanes splits 32·panels contiguous lanes of 32·steps products, of which product p begins at src[p·stride]: pair p of piece n of lane i < 16 goes to dst[n·pieceSize + p·16 + i], of the next
	// 16 lanes a tile further, in the next step stepSize further, in the next panel pitch further. It returns what splitRows does.
	splitLanes func(steps, panels int, src *T, stride int, dst *T, pitch int) (bad uint32)
}

// take reports whether a product is one for the matrix unit. That depends on its shape alone, since its bits depend on it.
func (t *tiles[T]) take(m, n, k int) bool {
	return t.micro != nil && m >= t.rows && n >= t.cols && k >= t.products
}

// runTiled is runBlocked for the matrix unit.
func (j *job[T]) runTiled(p *parallel.Pool) {
	const extra = 30 // rows or columns that could be computed while a side is split
	workers, t := p.Workers(), &j.engine.tiles
	j.cut(workers, cutting{tileSide, tileSide, j.m, ceilDiv(j.n, t.columns), extra, extra})
	_, cols := j.largest()
	panels, steps := ceilDiv(min(t.columns, cols), tileSide), ceilDiv(min(j.k, kc), tileStep)
	for w := range workers {
		s := &j.scratch[w]
		s.a, s.b, s.bad = grown(s.a, steps*stepSize), grown(s.b, panels*steps*stepSize), grown(s.bad, panels)
		s.sums, s.copied = grown(s.sums, tileSide*tileSide), grown(s.copied, spareSize+steps*tileStep*tileSide)
	}
	p.ForWorkers(j.down*j.across, 1, j.tiledBody)
}

// computeTiled is computePieces for the matrix unit.
func (j *job[T]) computeTiled(worker, lo, hi int) {
	s, most := &j.scratch[worker], j.tiles.columns
	for number := lo; number < hi; number++ {
		i0, i1, first, end := j.piece(number)
		width := ceilDiv(ceilDiv(end-first, ceilDiv(end-first, most)), tileSide) * tileSide
		for col := first; col < end; col += width {
			for k0 := 0; k0 < j.k; k0 += kc {
				t := block{i0, i1, col, min(col+width, end), k0, min(k0+kc, j.k)}
				finite := j.splitB(s, &t)
				for i := i0; i < i1; i += tileSide {
					j.tiledPanel(s, &t, i, j.splitA(s, &t, i), finite)
				}
			}
		}
	}
}

// tiledPanel adds t's products to the rows of C from row i on. A tile is computed as products are without a matrix unit if its panel of A or of B is not finite: pieces of infinity are not a number, where
// infinity times a number may be infinite. The tiles are the same however C is cut, so that this changes no bit with the number of workers.
func (j *job[T]) tiledPanel(s *scratch[T], t *block, i int, finiteA, finiteB bool) {
	steps, rows := ceilDiv(t.k1-t.k0, tileStep), min(tileSide, t.i1-i)
	for col := t.j0; col < t.j1; {
		panel := (col - t.j0) / tileSide
		b := &s.b[panel*steps*stepSize]
		whole, cols := (t.j1-col)/tileSide, min(tileSide, t.j1-col)
		switch {
		case finiteA && finiteB && whole > 0 && rows == tileSide && j.inRows():
			d, stride := j.addend(i, col, t.k0)
			j.tiles.micro(steps, &s.a[0], b, &j.c[i*j.crs+col], j.crs, d, stride, whole, &s.sums[0])
			cols = whole * tileSide
		case finiteA && (finiteB || s.bad[panel] == 0):
			tile := s.copied[:tileSide*tileSide]
			j.tiles.micro(steps, &s.a[0], b, &tile[0], tileSide, nil, 0, 1, &s.sums[0])
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
	at, lanes, k, bad := i*j.ars+t.k0*j.acs, min(tileSide, t.i1-i), t.k1-t.k0, uint32(0)
	whole := wholeSteps(&j.halfA, lanes, k, j.ars, j.acs)
	switch {
	case whole == 0:
	case j.acs == 1:
		bad = j.tiles.splitRows(whole, &j.a[at], j.ars, &s.a[0], stepSize)
		bad |= j.tiles.splitRows(whole, &j.a[at+tileLanes*j.ars], j.ars, &s.a[tileSize], stepSize)
	default:
		bad = j.lanesAsRows(s, whole, j.a[at:], j.acs, s.a)
	}
	if done := whole * tileStep; done < k {
		staged := j.stage(s, &j.halfA, j.a, at+done*j.acs, lanes, k-done, j.ars, j.acs)
		bad |= j.lanesAsRows(s, ceilDiv(k-done, tileStep), staged, tileSide, s.a[whole*stepSize:])
	}
	return bad == 0
}

// splitB splits B for t's columns and products. It reports whether all is finite; if not, s.bad says which panels are.
func (j *job[T]) splitB(s *scratch[T], t *block) bool {
	k, col := t.k1-t.k0, t.j0
	pitch := ceilDiv(k, tileStep) * stepSize
	if whole, panels := wholeSteps(&j.halfB, tileSide, k, j.bcs, j.brs), (t.j1-t.j0)/tileSide; whole*tileStep == k && j.bcs == 1 && panels > 0 {
		if j.tiles.splitLanes(whole, panels, &j.b[t.k0*j.brs+col], j.brs, &s.b[0], pitch) == 0 {
			clear(s.bad[:panels])
			col += panels * tileSide
		}
	}
	all := uint32(0)
	for ; col < t.j1; col += tileSide {
		panel := (col - t.j0) / tileSide
		s.bad[panel] = j.splitPanelB(s, s.b[panel*pitch:], t.k0, k, col, min(tileSide, t.j1-col))
		all |= s.bad[panel]
	}
	return all == 0
}

// splitPanelB splits k products from k0 on of so many columns of B from column col on.
func (j *job[T]) splitPanelB(s *scratch[T], dst []T, k0, k, col, lanes int) (bad uint32) {
	at := k0*j.brs + col*j.bcs
	whole := wholeSteps(&j.halfB, lanes, k, j.bcs, j.brs)
	switch {
	case whole == 0:
	case j.bcs == 1:
		bad = j.tiles.splitLanes(whole, 1, &j.b[at], j.brs, &dst[0], 0)
	default:
		bad = j.rowsAsLanes(s, whole, j.b[at:], j.bcs, dst)
	}
	if done := whole * tileStep; done < k {
		staged := j.stage(s, &j.halfB, j.b, at+done*j.brs, lanes, k-done, j.bcs, j.brs)
		bad |= j.tiles.splitLanes(ceilDiv(k-done, tileStep), 1, &staged[0], tileSide, &dst[whole*stepSize], 0)
	}
	return bad
}

// wholeSteps is how many steps of a panel can be split where it lies.
func wholeSteps[T element](h *half[T], lanes, k, laneStride, kStride int) int {
	if h.format != nil || lanes < tileSide || laneStride != 1 && kStride != 1 {
		return 0
	}
	return k / tileStep
}

// stage makes a panel of 32 contiguous lanes out of fewer, or out of such that lie in another way, or are of a half type. What is missing of lanes and of the last step is zero.
func (j *job[T]) stage(s *scratch[T], h *half[T], x []T, at, lanes, k, laneStride, kStride int) []T {
	staged := s.copied[spareSize:][:ceilDiv(k, tileStep)*tileStep*tileSide]
	if h.format != nil {
		h.pack(staged, tileSide, lanes, k, h.bits[at:], laneStride, kStride)
	} else {
		j.pack(staged, tileSide, lanes, k, x[at:], laneStride, kStride)
	}
	clear(staged[k*tileSide:])
	return staged
}

// spareSteps is how many steps are split before their tiles are transposed, as they are in the first-level cache then.
const (
	spareSteps = 4
	spareSize  = spareSteps * stepSize
)

// lanesAsRows splits a panel of contiguous lanes to tiles of A.
func (j *job[T]) lanesAsRows(s *scratch[T], steps int, src []T, stride int, dst []T) (bad uint32) {
	for n := range steps {
		bad |= j.tiles.splitLanes(1, 1, &src[n*tileStep*stride], stride, &s.copied[0], stepSize)
		for at := 0; at < stepSize; at += tileSize {
			j.transposeTile(dst[n*stepSize+at:], s.copied[at:])
		}
	}
	return bad
}

// rowsAsLanes splits a panel of lanes whose products are contiguous to tiles of B.
func (j *job[T]) rowsAsLanes(s *scratch[T], steps int, src []T, stride int, dst []T) (bad uint32) {
	for side := range 2 {
		lanes, to := src[side*tileLanes*stride:], dst[side*tileSize:]
		for first := 0; first < steps; first += spareSteps {
			some := min(spareSteps, steps-first)
			bad |= j.tiles.splitRows(some, &lanes[first*tileStep], stride, &s.copied[0], stepSize)
			for at := 0; at < some*stepSize; at += pieceSize {
				j.transposeTile(to[first*stepSize+at:], s.copied[at:])
			}
		}
	}
	return bad
}

func (j *job[T]) transposeTile(dst, src []T) {
	j.engine.transpose(dst, tileLanes, tileLanes, tileLanes, src, tileLanes)
}
