package gemm

import "github.com/lockstep-ml/lockstep/internal/parallel"

// runOuter computes a product of one summand, which is a matter of writing C: each row is written from its first element to its last.
func (j *job[T]) runOuter(p *parallel.Pool) {
	const piece = 1 << 16 // elements of C per task
	j.k0, j.k1 = 0, 1
	p.ForWorkers(j.m, max(1, piece/j.n), j.outerBody)
}

// computeOuter computes rows [lo, hi) of C.
func (j *job[T]) computeOuter(worker, lo, hi int) {
	whole := j.n / j.nr * j.nr
	last := j.edges[worker][:j.nr]
	if whole < j.n {
		j.pack(last, j.nr, j.n-whole, 1, j.b[whole:], 1, j.brs)
	}
	for i := lo; i < hi; i++ {
		a := j.a[i*j.ars:]
		for col := j.streamRows(i, 1, a, 0, whole); col < whole; col += j.nr {
			d, stride := j.addend(i, col, 0)
			j.micro(1, 1, &a[0], &j.b[col], j.nr, &j.c[i*j.crs+col], j.crs, d, stride, 1)
		}
		if whole < j.n {
			j.edge(worker, 1, j.n-whole, 1, &a[0], &last[0], j.nr, i, whole, 0)
		}
	}
	j.finished(lo, hi, 0, j.n)
}
