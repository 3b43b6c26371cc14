// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/internal/placement"
)

type (
	ranges = []placement.Range
	box    = []ranges
)

// elements are the numbers of p's elements in the order of the whole array, found by looking at every element.
func elements(p placement.Placement) (list []int) {
	n := 1
	for _, size := range p.Shape {
		n *= size
	}
	for i := range n {
		inside, rest := true, i
		for d := len(p.Shape) - 1; d >= 0; d-- {
			at := rest % p.Shape[d]
			rest /= p.Shape[d]
			inside = inside && slices.ContainsFunc(p.Box[d], func(r placement.Range) bool {
				return r.Start <= at && at < r.Stop
			})
		}
		if inside {
			list = append(list, i)
		}
	}
	return list[p.Flat.Start:p.Flat.Stop]
}

// requireIntersection compares the runs of two placements, and a copy, with their elements.
func requireIntersection(t require.TestingT, p, q placement.Placement) {
	inP, inQ := elements(p), elements(q)
	require.Len(t, inP, p.Numel())
	var want, got []int
	for _, i := range inP {
		if slices.Contains(inQ, i) {
			want = append(want, i)
		}
	}
	last := placement.Run{At: -1, Other: -1}
	for r := range p.Intersect(q) {
		require.Positive(t, r.Len)
		require.False(t, r.At == last.At+last.Len && r.Other == last.Other+last.Len,
			"%v and %v: %v and %v are one run", p, q, last, r)
		require.Equal(t, inQ[r.Other:r.Other+r.Len], inP[r.At:r.At+r.Len], "%v and %v: %v", p, q, r)
		got = append(got, inP[r.At:r.At+r.Len]...)
		last = r
	}
	require.Equal(t, want, got, "%v and %v", p, q)
	require.Equal(t, len(want) > 0, p.Overlaps(q))

	const width = 2
	src, dst := make([]byte, width*q.Numel()), make([]byte, width*p.Numel())
	for k, i := range inQ {
		src[2*k], src[2*k+1] = byte(i+1), byte(i>>8)
	}
	require.Equal(t, len(want), placement.Copy(dst, p, src, q, width))
	for k, i := range inP {
		common := slices.Contains(inQ, i)
		require.Equal(t, common, dst[2*k] == byte(i+1) && dst[2*k+1] == byte(i>>8) && dst[2*k]+dst[2*k+1] > 0)
	}
	bytes := slices.Collect(p.Bytes(width).Intersect(q.Bytes(width)))
	k := 0
	for r := range p.Intersect(q) {
		require.Equal(t, placement.Run{At: width * r.At, Other: width * r.Other, Len: width * r.Len}, bytes[k])
		k++
	}
	require.Len(t, bytes, k)
}

// Placements of the strategies, each against each.
func TestIntersections(t *testing.T) {
	w := placement.Whole("w", 6, 12)
	list := map[string]placement.Placement{
		"whole":             w,
		"nothing":           w.Slice(7, 7),
		"FSDP, 1 of 3":      w.Slice(0, 24),
		"FSDP, 2 of 3":      w.Slice(24, 48),
		"FSDP, odd borders": w.Slice(17, 41),
		"a column":          w.Along(1, placement.Range{Start: 5, Stop: 6}),
		"columns, 2 of 3":   w.Along(1, placement.Range{Start: 4, Stop: 8}),
		"rows, 2 of 3":      w.Along(0, placement.Range{Start: 2, Stop: 4}),
		"rows and columns": w.Along(0, placement.Range{Start: 1, Stop: 4}).
			Along(1, placement.Range{Start: 2, Stop: 9}),
		"FSDP of columns":       w.Along(1, placement.Range{Start: 4, Stop: 8}).Slice(5, 18),
		"FSDP of other columns": w.Along(1, placement.Range{Start: 3, Stop: 9}).Slice(4, 30),
		"fused, 1 of 2":         w.Along(1, fused(2, 0, 4, 4, 4)...),
		"fused, 2 of 2":         w.Along(1, fused(2, 1, 4, 4, 4)...),
		"fused, 1 of 1":         w.Along(1, fused(1, 0, 4, 4, 4)...),
		"grouped queries":       w.Along(1, fused(2, 1, 8, 2, 2)...),
		"FSDP of fused":         w.Along(1, fused(2, 1, 4, 4, 4)...).Slice(7, 23),
		"no rows":               w.Along(0),
	}
	for _, p := range list {
		require.NoError(t, p.Validate())
		for _, q := range list {
			requireIntersection(t, p, q)
		}
	}
	require.Equal(t, w, list["fused, 1 of 1"], "equal parts have equal fields")
	require.Equal(t, []placement.Run{{At: 0, Other: 7, Len: 9}},
		slices.Collect(list["fused, 2 of 2"].Slice(7, 16).Intersect(list["fused, 2 of 2"])), "one read in the same box")
	require.Panics(t, func() { w.Intersect(placement.Whole("w", 12, 6)) })
}

// Runs of several dims begin and end anywhere in them.
func TestIntersectionsOfCubes(t *testing.T) {
	x := placement.Whole("x", 3, 5, 4)
	middle := x.Along(1, placement.Range{Start: 1, Stop: 3}, placement.Range{Start: 4, Stop: 5})
	for start := range middle.Numel() {
		for _, q := range []placement.Placement{x, x.Slice(7, 50), middle.Slice(5, 30),
			x.Along(1, placement.Range{Start: 2, Stop: 5}).Slice(3, 33)} {
			requireIntersection(t, middle.Slice(start, min(start+9, middle.Numel())), q)
		}
	}
}

// fused are the indices of a rank of a fused projection of the given sizes.
func fused(ranks, rank int, sizes ...int) (list ranges) {
	at := 0
	for _, n := range sizes {
		list = append(list, placement.Range{Start: at + n*rank/ranks, Stop: at + n*(rank+1)/ranks})
		at += n
	}
	return list
}

func TestIntersectionsOfAnyPlacements(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := rapid.SliceOfN(rapid.IntRange(0, 5), 0, 4).Draw(t, "shape")
		requireIntersection(t, anyPlacement(t, shape), anyPlacement(t, shape))
	})
}

func anyPlacement(t *rapid.T, shape []int) placement.Placement {
	p := placement.Whole("w", shape...)
	for d, size := range shape {
		if rapid.Bool().Draw(t, "whole dim") {
			continue
		}
		var list ranges
		for _, i := range rapid.SliceOf(rapid.IntRange(0, max(size-1, 0))).Draw(t, "indices") {
			if i < size && !slices.Contains(list, placement.Range{Start: i, Stop: i + 1}) {
				list = append(list, placement.Range{Start: i, Stop: i + 1})
			}
		}
		slices.SortFunc(list, func(a, b placement.Range) int { return a.Start - b.Start })
		p = p.Along(d, list...)
	}
	start := rapid.IntRange(0, p.Numel()).Draw(t, "start")
	p = p.Slice(start, rapid.IntRange(start, p.Numel()).Draw(t, "stop"))
	require.NoError(t, p.Validate())
	return p
}

func TestPlacementsByName(t *testing.T) {
	w := placement.Whole("w", 6, 12)
	require.Equal(t, "w[0:72]", w.String())
	require.Equal(t, "s[0:1]", placement.Whole("s").String())
	p := w.Along(1, fused(2, 0, 4, 4, 4)...).Slice(3, 30)
	require.Equal(t, "w[0:6,0:2+4:6+8:10][3:30]", p.String())
	require.Equal(t, "w.exp_avg[0:6,0:2+4:6+8:10][3:30]", p.Of("w.exp_avg", 6, 12).String())
	require.Equal(t, "v[3:30]", w.Slice(3, 30).Of("v", 72).String())
	require.Equal(t, "w[0:6,0:2+4:6+8:10][4:6]", p.Slice(1, 3).String())
	require.Equal(t, 36, p.BoxNumel())
	require.True(t, p.SameBox(p.Slice(0, 0)))
	require.False(t, p.SameBox(w))

	list := []placement.Placement{w.Slice(0, 5), w.Slice(5, 72), w.Along(0, placement.Range{Start: 1, Stop: 3})}
	for i, p := range list {
		for k, q := range list {
			require.Equal(t, i < k, placement.Compare(p, q) < 0)
			require.Equal(t, i == k, placement.Compare(p, q) == 0)
		}
	}
}

func TestInvalidPlacements(t *testing.T) {
	const large = math.MaxInt
	for _, c := range []struct {
		p    placement.Placement
		want string
	}{
		{placement.Placement{Shape: []int{-1}}, "shape [-1]: want sizes of at least 0"},
		{placement.Placement{Shape: []int{large, 2}}, "want at most 9223372036854775807 elements"},
		{placement.Placement{Shape: []int{1 << 32, 1 << 32}}, "want at most"},
		{placement.Placement{Shape: []int{2}}, "a box of 0 dims in an array of shape [2]: want 1"},
		{placement.Placement{Shape: []int{4}, Box: box{{{Start: 0, Stop: 5}}}},
			"range [0, 5) of dim 0: want one in [0, 4)"},
		{placement.Placement{Shape: []int{4}, Box: box{{{Start: -1, Stop: 2}}}}, "range [-1, 2) of dim 0"},
		{placement.Placement{Shape: []int{4}, Box: box{{{Start: 3, Stop: 2}}}}, "range [3, 2) of dim 0"},
		{placement.Placement{Shape: []int{4}, Box: box{{{Start: 2, Stop: 2}}}}, "is empty: want it left out"},
		{placement.Placement{Shape: []int{4}, Box: box{{{Start: 0, Stop: 2}, {Start: 2, Stop: 3}}}},
			"range [2, 3) of dim 0 follows one that ends at 2: want it to begin behind a gap"},
		{placement.Placement{Shape: []int{4}, Box: box{{{Start: 2, Stop: 3}, {Start: 0, Stop: 1}}}}, "follows one"},
		{placement.Whole("w", 4).Slice(3, 5), "elements [3, 5) of 4: want a range inside"},
		{placement.Whole("w", 4).Slice(-1, 2), "elements [-1, 2) of 4"},
		{placement.Whole("w", 4).Slice(3, 2), "elements [3, 2) of 4"},
		{placement.Whole("w", 4, 4).Along(1, placement.Range{Start: 1, Stop: 2}).Slice(0, 5), "elements [0, 5) of 4"},
	} {
		require.ErrorContains(t, c.p.Validate(), c.want)
	}
	for _, p := range []placement.Placement{placement.Whole("none", large, 0, large), placement.Whole("scalar")} {
		require.NoError(t, p.Validate())
	}
	require.Zero(t, placement.Whole("none", large, 0, large).Numel())
	require.Equal(t, 1, placement.Whole("scalar").Numel())
}

func TestSub(t *testing.T) {
	list := ranges{{Start: 2, Stop: 4}, {Start: 7, Stop: 8}, {Start: 10, Stop: 15}}
	var all []int
	for _, r := range list {
		for i := r.Start; i < r.Stop; i++ {
			all = append(all, i)
		}
	}
	require.Equal(t, len(all), placement.Len(list))
	for start := range all {
		for stop := start; stop <= len(all); stop++ {
			var got []int
			for _, r := range placement.Sub(list, start, stop) {
				for i := r.Start; i < r.Stop; i++ {
					got = append(got, i)
				}
			}
			require.Equal(t, append([]int(nil), all[start:stop]...), got)
		}
	}
}
