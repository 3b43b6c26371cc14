// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// gemvRows are the kernels for one row and a large B whose rows are contiguous: they read rows from end to end and keep
// their sums in the first-level cache. The zero value has none.
//
// Stream kernels keep sums in registers, but read few columns of many rows, each in a page of its own. Processors whose
// first cache has few ways are better at long runs, and those with a large second-level cache, since their third one is
// far away.
type gemvRows[T element] struct {
	rows, width int // that are read side by side; columns of a step
	// one, some and prefetch compute width·steps elements of the row c = a·B over k products, or add them to c if add
	// is not 0. Row p of B is at b[p·bstride]. For some and prefetch k is a multiple of rows. prefetch prefetches the
	// rows that follow, if all of a row is computed. Processors with a large second-level cache see long runs ahead by
	// themselves, and requests take up the misses that they have room for.
	one, some, prefetch func(k int, a, b *T, bstride int, c *T, steps, add int)
	// add adds count ≥ 1 rows from b on to d, one after the other, and writes width·steps sums to c.
	add func(c, d, b *T, bstride, count, steps int)
	gemvRowsLimits
}

// gemvRowsLimits are a matter of speed alone.
type gemvRowsLimits struct {
	// of the first-level cache of a processor that these kernels are for, at most, unless its second one is large
	ways         int
	small, large int // sizes of a B in bytes: what no second-level cache holds, and what no cache holds
	columns      int // of a B, at least
	// how many columns are computed at a time: as many as the first-level cache holds some rows of with room for more
	strip int
	kept  int // how many sums of blocks of products are kept before they are added to C
}

var limits = gemvRowsLimits{ways: 8, small: 1 << 20, large: uncached, columns: 256, strip: 1024, kept: 1 << 18}

// gemvByRows reports whether the product is one for the gemvRows kernels.
func (q *product[T]) gemvByRows() bool {
	s := &q.gemvRows
	return s.some != nil && q.m == 1 && q.bcs == 1 && q.halfB.format == nil && q.inRows() &&
		q.n >= s.columns && q.sizeB() >= s.small && (l1Ways() <= s.ways || largeL2())
}

// runGEMVRows computes a product of one row. Blocks of products are summed each on its own, in any order, so that each
// worker reads whole rows, and then added in the order of k.
func (j *job[T]) runGEMVRows(p *parallel.Pool) {
	j.k0 = 0
	j.packFew(p, j.k, j.mr)
	steps := j.n / j.gemvRows.width
	strips := ceilDiv(steps*j.gemvRows.width, j.gemvRows.strip)
	j.strip = ceilDiv(steps, strips)
	blocks := min(ceilDiv(j.k, kc), max(1, j.gemvRows.kept/j.n))
	j.sums = grown(j.sums, blocks*j.n)
	for j.k0 = 0; j.k0 < j.k; j.k0 += blocks * kc {
		j.k1 = min(j.k0+blocks*kc, j.k)
		p.ForWorkers(ceilDiv(j.k1-j.k0, kc)*ceilDiv(steps, j.strip), 1, j.gemvRowsBody)
		p.ForWorkers(steps, 16, j.addBody)
	}
	if whole := steps * j.gemvRows.width; whole < j.n {
		j.k0, j.k1 = 0, j.k
		j.computeStream(0, whole/j.nr, ceilDiv(j.n, j.nr))
	}
}

// computeGEMVRows computes the sums of pieces [lo, hi): strips of blocks of products.
func (j *job[T]) computeGEMVRows(_, lo, hi int) {
	all := j.n / j.gemvRows.width
	strips, compute := ceilDiv(all, j.strip), j.gemvRows.some
	if strips == 1 && j.brs < j.n+j.gemvRows.width && j.sizeB() >= j.gemvRows.large && !largeL2() {
		compute = j.gemvRows.prefetch
	}
	for piece := lo; piece < hi; piece++ {
		block, step := piece/strips, piece%strips*j.strip
		k0, col, steps := j.k0+block*kc, step*j.gemvRows.width, min(j.strip, all-step)
		k, sums := min(kc, j.k1-k0), &j.sums[block*j.n+col]
		whole, add := k-k%j.gemvRows.rows, 0
		if whole > 0 {
			compute(whole, &j.packedA[k0], &j.b[k0*j.brs+col], j.brs, sums, steps, 0)
			add = 1
		}
		if whole < k {
			j.gemvRows.one(k-whole, &j.packedA[k0+whole], &j.b[(k0+whole)*j.brs+col], j.brs, sums, steps, add)
		}
	}
}

// addGEMVRows adds the sums of blocks of products to steps [lo, hi) of C's columns.
func (j *job[T]) addGEMVRows(_, lo, hi int) {
	col, end, block, blocks := lo*j.gemvRows.width, hi*j.gemvRows.width, 0, ceilDiv(j.k1-j.k0, kc)
	d, _ := j.addend(0, col, j.k0)
	if d == nil {
		d, block = &j.sums[col], 1
	}
	if block < blocks {
		j.gemvRows.add(&j.c[col], d, &j.sums[block*j.n+col], j.n, blocks-block, hi-lo)
	} else {
		copy(j.c[col:end], j.sums[col:end])
	}
	if j.k1 == j.k {
		j.finished(0, 1, col, end)
	}
}
