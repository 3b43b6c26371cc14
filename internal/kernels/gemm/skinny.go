package gemm

import "github.com/lockstep-ml/lockstep/internal/parallel"

// runSkinny computes a product whose few rows make it a matter of reading B: A is packed as a whole, and B's panels are used where they
// lie if their rows are contiguous, else packed one at a time into the worker's first-level cache.
func (j *job[T]) runSkinny(p *parallel.Pool) {
	j.packedA = grown(j.packedA, j.m*j.k)
	for i := 0; i < j.m; i += j.mr {
		rows := min(j.mr, j.m-i)
		for k0 := 0; k0 < j.k; k0 += kc {
			j.pack(j.packedA[i*j.k+k0*rows:], rows, rows, min(kc, j.k-k0), j.a[i*j.ars+k0*j.acs:], j.ars, j.acs)
		}
	}
	chunk := 4 // panels per task: neighbours share pages
	if 2*j.m*j.nr*j.k >= serialFlops {
		chunk = 1
	}
	p.ForWorkers(ceilDiv(j.n, j.nr), chunk, j.skinnyBody)
}

// computeSkinny computes all rows of C for panels [lo, hi) of B.
func (j *job[T]) computeSkinny(worker, lo, hi int) {
	for col := lo * j.nr; col < min(hi*j.nr, j.n); col += j.nr {
		cols := min(j.nr, j.n-col)
		inPlace := j.bcs == 1 && cols == j.nr
		for k0 := 0; k0 < j.k; k0 += kc {
			k := min(kc, j.k-k0)
			src, stride := j.b[k0*j.brs+col*j.bcs:], j.brs
			if !inPlace {
				packed := j.edges[worker][:kc*j.nr]
				j.pack(packed, j.nr, cols, k, src, j.bcs, j.brs)
				src, stride = packed, j.nr
			}
			j.skinnyPanel(worker, col, cols, k0, k, &src[0], stride)
		}
	}
}

// skinnyPanel adds products [k0, k0+k) of one panel of B to all rows of C.
func (j *job[T]) skinnyPanel(worker, col, cols, k0, k int, b *T, bstride int) {
	add := j.accumulate || k0 > 0
	for i := 0; i < j.m; i += j.mr {
		rows := min(j.mr, j.m-i)
		a := &j.packedA[i*j.k+k0*rows]
		if j.ccs != 1 || cols < j.nr {
			j.edge(worker, rows, cols, k, a, b, bstride, i, col, add)
			continue
		}
		j.micro(rows, k, a, b, bstride, &j.c[i*j.crs+col], j.crs, add)
	}
}
