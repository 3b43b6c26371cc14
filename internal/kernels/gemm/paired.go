// SPDX-License-Identifier: Apache-2.0

package gemm

import "github.com/lockstep-ml/lockstep/internal/parallel"

// pairing multiplies operands of which both are bfloat16 by an instruction for pairs of neighbouring products. Panels
// hold pairs in the bits of an element, the first product in the upper half: so the instruction adds them in the order
// of k, each rounded on its own.
type pairing[T element] struct {
	// pack is format.pack for pairs: dst has a row for each two of k products, the last one filled up with pad if k is
	// odd. It returns the least magnitude of the elements but zero, as the bits of a bfloat16, or more than any.
	pack func(dst []T, width, lanes, k int, src []uint16, laneStride, kStride int, pad uint16) (least uint32)
	// dot is engine.micro over k pairs, by the instruction, for which denormal numbers are zero; widened is the same
	// without it.
	dot, widened func(rows, k int, a, b *T, bstride int, c *T, cstride int, d *T, dstride, blocks int)
}

// The pads of A and B: 0 times −0 is −0, which changes no sum, where 0 would change one that is −0 (of a product too
// small for a denormal number).
const (
	padA = 0
	padB = 1 << 15
)

// normal reports whether sums of products of bfloat16 whose magnitudes are at least a and b, or zero, can never be
// denormal: a bfloat16 of exponent e is a multiple of 2^(e−7), products are multiples of 2^(ea+eb−14), and so are their
// sums, rounded or not; nothing between 0 and 2^−126 may be one.
func normal(a, b uint32) bool {
	ea, eb := int(a>>7), int(b>>7) // with 127 added; 0 is a denormal number
	return ea > 0 && eb > 0 && ea+eb-2*127-14 >= -126
}

// paired reports whether the product is one for halfA.pairing.
func (q *product[T]) paired() bool {
	return q.halfA.format != nil && q.halfA.format == q.halfB.format && q.halfA.pairing != nil && q.m > q.mr
}

// runPaired is runBlocked for a product of pairs.
func (j *job[T]) runPaired(p *parallel.Pool) {
	workers := p.Workers()
	j.layout = packed
	j.cut(workers, j.blockedCut())
	pairs := ceilDiv(min(j.k, kc), 2)
	rows, cols := j.largest()
	for w := range workers {
		s := &j.scratch[w]
		s.a, s.b = grown(s.a, rows*pairs), grown(s.b, min(pairedCols*j.nb, cols)*pairs)
		s.least = grown(s.least, ceilDiv(rows, j.mr))
	}
	p.ForWorkers(j.down*j.across, 1, j.pairedBody)
}

// pairedCols is how many times as many columns of pairs as of single elements are packed at once, as they have half the
// size.
const pairedCols = 2

// computePaired is computePieces for a product of pairs.
func (j *job[T]) computePaired(worker, lo, hi int) {
	s := &j.scratch[worker]
	for number := lo; number < hi; number++ {
		i0, i1, j0, end := j.piece(number)
		for k0 := 0; k0 < j.k; k0 += kc {
			t := block{i0, i1, j0, j0, k0, min(k0+kc, j.k)}
			j.packPairsA(s, &t)
			for ; t.j0 < end; t.j0 = t.j1 {
				t.j1 = min(t.j0+pairedCols*j.nb, end)
				j.pairedBlock(s, &t, j.packPairsB(s, &t))
			}
		}
	}
}

// packPairsA packs A for t's rows, and takes down the least magnitude of each panel.
func (j *job[T]) packPairsA(s *scratch[T], t *block) {
	k := t.k1 - t.k0
	for i := t.i0; i < t.i1; i += j.mr {
		rows, dst := min(j.mr, t.i1-i), s.a[(i-t.i0)*ceilDiv(k, 2):]
		s.least[(i-t.i0)/j.mr] = j.halfA.pairing.pack(dst, rows, rows, k, j.halfA.bits[i*j.ars+t.k0*j.acs:], j.ars,
			j.acs, padA)
	}
}

// packPairsB packs B for t's columns and returns its least magnitude.
func (j *job[T]) packPairsB(s *scratch[T], t *block) uint32 {
	k, least := t.k1-t.k0, ^uint32(0)
	for col := t.j0; col < t.j1; col += j.nr {
		dst := s.b[(col-t.j0)*ceilDiv(k, 2):]
		least = min(least, j.halfB.pairing.pack(dst, j.nr, min(j.nr, t.j1-col), k, j.halfB.bits[t.k0*j.brs+col*j.bcs:],
			j.bcs, j.brs, padB))
	}
	return least
}

// pairedBlock adds t's products to C; leastB is the least magnitude of B.
func (j *job[T]) pairedBlock(s *scratch[T], t *block, leastB uint32) {
	pairs, announced := ceilDiv(t.k1-t.k0, 2), t.i0
	for i := t.i0; i < t.i1; i += j.mr {
		micro := j.halfA.pairing.widened
		if normal(s.least[(i-t.i0)/j.mr], leastB) {
			micro = j.halfA.pairing.dot
		}
		rows, a, col := min(j.mr, t.i1-i), &s.a[(i-t.i0)*pairs], t.j0
		if blocks := (t.j1 - t.j0) / j.nr; blocks > 0 && j.inRows() {
			d, stride := j.addend(i, col, t.k0)
			micro(rows, pairs, a, &s.b[0], j.nr, &j.c[i*j.crs+col], j.crs, d, stride, blocks)
			col += blocks * j.nr
		}
		for ; col < t.j1; col += j.nr {
			micro(rows, pairs, a, &s.b[(col-t.j0)*pairs], j.nr, &s.tile[0], j.nr, nil, 0, 1)
			j.scatter(s.tile, rows, min(t.j1-col, j.nr), i, col, t.k0)
		}
		if end := i + rows; t.k1 == j.k && (end == t.i1 || end-announced >= j.tm) {
			j.finished(announced, end, t.j0, t.j1)
			announced = end
		}
	}
}
