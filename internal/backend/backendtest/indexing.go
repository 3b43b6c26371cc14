// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

func init() {
	makers[backend.OpEmbedding] = embeddingSamples
	makers[backend.OpEmbeddingGrad] = embeddingGradSamples
	makers[backend.OpGather] = gatherSamples
	makers[backend.OpScatterAdd] = scatterAddSamples
}

var (
	integers = []dtype.DType{dtype.Int32, dtype.Int64}
	// tables are vocabulary, columns, number of ids.
	tables = [][3]int{{1, 1, 1}, {5, 3, 0}, {7, 4, 20}, {300, 40, 900}}
)

func embeddingSamples(g *gen) {
	for _, dt := range g.some(everything) {
		for _, index := range integers {
			for _, n := range tables {
				table, ids := g.random(dt, rowMajor, -2, 2, n[0], n[1]),
					g.random(index, rowMajor, 0, float64(n[0]-1), n[2])
				want := make([]float64, n[2]*n[1])
				for i := range want {
					want[i] = table.at(int(ids.at(i/n[1]))*n[1] + i%n[1])
				}
				g.add(&sample{ins: []*operand{table, ids}, outs: []*operand{output(dt, rowMajor, n[2], n[1])},
					want: [][]float64{want}}, "%s %s %v", dt, index, n)
			}
		}
	}
}

func embeddingGradSamples(g *gen) {
	for _, dt := range g.some(floating) {
		for _, index := range integers {
			for _, n := range tables {
				for flags := range 4 {
					accumulate, ignored := flags%2, flags/2
					ids, dy := g.random(index, rowMajor, 0, float64(n[0]-1)/2, n[2]),
						g.random(dt, rowMajor, -2, 2, n[2], n[1])
					if ignored == 1 { // the last id that there may be, too
						ids = g.random(index, rowMajor, 0, float64(n[0]), n[2])
					}
					out := output(dt, rowMajor, n[0], n[1])
					want := make([]float64, n[0]*n[1])
					if accumulate == 1 {
						out = g.random(dt, rowMajor, -2, 2, n[0], n[1])
						want = out.values()
					}
					for i := range dy.numel() {
						if v := int(ids.at(i / n[1])); v < n[0] {
							want[v*n[1]+i%n[1]] += dy.at(i)
						}
					}
					s := &sample{ins: []*operand{ids, dy}, outs: []*operand{out}, want: [][]float64{want}, loose: 8}
					s.ints[0], s.ints[1] = accumulate, ignored
					g.add(s, "%s %s %v accumulate %d ignored %d", dt, index, n, accumulate, ignored)
				}
			}
		}
	}
}

// lineCase is data, index and dim of a gather or scatter.
type lineCase struct {
	data, index []int
	dim         int
}

var lineCases = []lineCase{
	{[]int{4}, []int{9}, 0}, {[]int{1}, []int{1}, 0}, {[]int{5}, []int{0}, 0},
	{[]int{4, 6}, []int{7, 6}, 0}, {[]int{4, 6}, []int{3, 9}, 1}, {[]int{3, 4, 5}, []int{3, 2, 4}, 1},
	{[]int{3, 4, 5}, []int{2, 4, 8}, 2}, {[]int{50, 300}, []int{50, 1}, 1}, {[]int{40, 60}, []int{200, 60}, 0},
}

func gatherSamples(g *gen) {
	for _, dt := range g.some(dtype.All()) {
		for _, index := range integers {
			for _, c := range lineCases {
				for _, l := range []layout{rowMajor, reversed, gapped, repeatFirst} {
					x := g.random(dt, l, 0, 9, c.data...)
					ids := g.random(index, rowMajor, 0, float64(c.data[c.dim]-1), c.index...)
					want := make([]float64, ids.numel())
					for i := range want {
						at := unravel(i, c.index)
						at[c.dim] = int(ids.at(i))
						want[i] = x.at(ravel(at, c.data))
					}
					s := &sample{ins: []*operand{x, ids}, outs: []*operand{output(dt, rowMajor, c.index...)},
						want: [][]float64{want}}
					s.ints[0] = c.dim
					g.add(s, "%s %s %v %s", dt, index, c, l.name)
				}
			}
		}
	}
}

func scatterAddSamples(g *gen) {
	for _, dt := range g.some(slices.Concat(floating, integers)) {
		for _, index := range integers {
			for _, c := range lineCases {
				for _, l := range []layout{rowMajor, reversed, gapped, repeatFirst} {
					src := g.random(dt, l, -2, 2, c.index...)
					ids := g.random(index, rowMajor, 0, float64(c.data[c.dim]-1), c.index...)
					out := g.random(dt, rowMajor, -2, 2, c.data...)
					want := out.values()
					for i := range ids.numel() {
						at := unravel(i, c.index)
						at[c.dim] = int(ids.at(i))
						want[ravel(at, c.data)] += src.at(i)
					}
					s := &sample{ins: []*operand{src, ids}, outs: []*operand{out}, want: [][]float64{want}, loose: 8}
					s.ints[0] = c.dim
					g.add(s, "%s %s %v %s", dt, index, c, l.name)
				}
			}
		}
	}
}
