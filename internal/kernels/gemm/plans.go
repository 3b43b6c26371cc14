// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// product is a product and what decides how it is computed: the variant's kernels and the number of workers.
type product[T element] struct {
	*engine[T]
	problem[T]
	workers int
	tiled   bool // whether it is one for the matrix unit: that decides about bits, so it depends on its shape alone
}

// newProduct settles whether the matrix unit computes q, and which of its sides is the narrow one.
func newProduct[T element](e *engine[T], q problem[T], workers int) product[T] {
	tiled := e.tiles.take(q.m, q.n, q.k)
	if !tiled && q.n <= e.narrow && q.m > q.n {
		q = q.transposed()
	}
	return product[T]{e, q, workers, tiled}
}

// plan is one way to compute a product.
type plan[T element] struct {
	name string
	gate func(q *product[T]) bool // whether the plan computes q, unless one before it does
	run  func(j *job[T], p *parallel.Pool)
}

// newPlans returns the table of plans: the first whose gate is open computes a product. All plans give the same bits,
// except the matrix unit's, which come first. bench/history.md has the gains, which BenchmarkPlans measures; tables in
// testdata list which plan computes which product.
func newPlans[T element]() []plan[T] {
	return []plan[T]{
		{"AMX tiles", func(q *product[T]) bool { return q.tiled && !q.splitsK() }, (*job[T]).runTiled},
		{"bfloat16 pairs", (*product[T]).paired, (*job[T]).runPaired},
		{"split-K, few rows", (*product[T]).splitsFewRows, (*job[T]).runSplitK},
		{"GEMV, B in rows", (*product[T]).gemvByRows, (*job[T]).runGEMVRows},
		{"GEMV, B in columns", (*product[T]).gemvByColumns, (*job[T]).runGEMVColumns},
		{"GEMV, B in columns 4 KiB apart", (*product[T]).gemvByHalves, (*job[T]).runGEMVHalves},
		{"few rows, B in rows", (*product[T]).fewStreamed, (*job[T]).runStream},
		{"few rows, B in columns", (*product[T]).fewDotted, (*job[T]).runDots},
		{"few rows, panels of B", (*product[T]).few, (*job[T]).runPanels},
		{"outer product", (*product[T]).outerProduct, (*job[T]).runOuter},
		{"split-K", (*product[T]).splitsK, (*job[T]).runSplitK},
		{"fused packing", (*product[T]).packsFused, (*job[T]).runFusedPacking},
		{"blocked", func(*product[T]) bool { return true }, (*job[T]).runBlocked},
	}
}

var (
	plans32 = newPlans[float32]()
	plans64 = newPlans[float64]()
)

// plansOf returns the table for T.
func plansOf[T element]() []plan[T] {
	var list any = &plans32
	if l, ok := list.(*[]plan[T]); ok {
		return *l
	}
	list = &plans64
	return *list.(*[]plan[T])
}

// plan returns the plan that computes the product.
func (q *product[T]) plan() *plan[T] {
	plans := plansOf[T]()
	for i := range plans {
		if p := &plans[i]; !slices.Contains(q.off, p.name) && p.gate(q) {
			return p
		}
	}
	panic(fmt.Sprintf("gemm: no plan for %v", q)) // not reached: the last gate is always open
}

// String describes the product as it is computed.
func (q *product[T]) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d×%d×%d", q.m, q.n, q.k)
	for _, x := range []struct {
		name     string
		row, col int
		half     bool
	}{{"A", q.ars, q.acs, q.halfA.format != nil}, {"B", q.brs, q.bcs, q.halfB.format != nil},
		{"C", q.crs, q.ccs, false}} {
		order := "strided"
		if x.col == 1 {
			order = "rows"
		} else if x.row == 1 {
			order = "columns"
		}
		if x.half {
			order = "half " + order
		}
		fmt.Fprintf(&s, ", %s in %s", x.name, order)
	}
	return s.String()
}

// floats reports whether both operands are of the type of C.
func (q *product[T]) floats() bool { return q.halfA.format == nil && q.halfB.format == nil }

// sizeB is the size of B, in bytes, in C's type.
func (q *product[T]) sizeB() int { return q.k * q.n * int(unsafe.Sizeof(*new(T))) }
