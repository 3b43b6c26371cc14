// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"cmp"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

func init() {
	makers[backend.OpTopK] = topKSamples
	makers[backend.OpCumSum] = cumSumSamples
}

// topKSamples sort each row; integers have many equal elements, and floats some NaNs.
func topKSamples(g *gen) {
	for _, dt := range g.some(slices.Concat(floating, integers)) {
		for _, n := range [][3]int{ // rows, columns, k
			{1, 1, 1}, {3, 5, 2}, {2, 7, 7}, {3, 4, 0}, {0, 3, 2}, {2, 0, 0}, {40, 300, 9}, {2, 3000, 1000},
			{2, 2100, 2050},
		} {
			for smallest := range 2 {
				rows, cols, k := n[0], n[1], n[2]
				x := g.random(dt, rowMajor, -20, 20, rows, cols)
				if dt.IsFloat() && x.numel() > 6 {
					for _, i := range []int{2, x.numel() / 2, x.numel() - 1} {
						x.set(i, math.NaN())
					}
				}
				values, indices := make([]float64, rows*k), make([]float64, rows*k)
				for r := range rows {
					row := x.values()[r*cols:][:cols]
					order := make([]int, cols)
					for i := range order {
						order[i] = i
					}
					slices.SortStableFunc(order, func(a, b int) int {
						p, q := row[a], row[b]
						if p != p || q != q { // NaN is the largest
							p, q = truth(p != p), truth(q != q)
						}
						if smallest == 1 {
							return cmp.Compare(p, q)
						}
						return cmp.Compare(q, p)
					})
					for i, at := range order[:k] {
						values[r*k+i], indices[r*k+i] = row[at], float64(at)
					}
				}
				s := &sample{ins: []*operand{x},
					outs: []*operand{output(dt, rowMajor, rows, k), output(dtype.Int64, rowMajor, rows, k)},
					want: [][]float64{values, indices}}
				s.ints[0] = smallest
				g.add(s, "%s %v smallest %d", dt, n, smallest)
			}
		}
	}
}

func cumSumSamples(g *gen) {
	for _, dt := range g.some(slices.Concat(floating, integers)) {
		for _, shape := range [][]int{{}, {1}, {7}, {3, 5}, {2, 3, 4}, {0, 3}, {3, 0}, {300, 100}} {
			for backward := range 2 {
				x := g.random(dt, rowMajor, -9, 9, shape...)
				want := x.values()
				cols := 1
				if len(shape) > 0 {
					cols = shape[len(shape)-1]
				}
				for r := 0; r < len(want); r += max(1, cols) {
					row := want[r : r+cols]
					if backward == 1 {
						slices.Reverse(row)
					}
					for i := 1; i < cols; i++ {
						row[i] += row[i-1]
					}
					if backward == 1 {
						slices.Reverse(row)
					}
				}
				s := &sample{ins: []*operand{x}, outs: []*operand{output(dt, rowMajor, shape...)},
					want: [][]float64{want}, loose: 8}
				s.ints[0] = backward
				g.add(s, "%s %v backward %d", dt, shape, backward)
			}
		}
	}
}
