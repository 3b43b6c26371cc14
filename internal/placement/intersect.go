// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"iter"
	"slices"
	"sort"
)

// Run is elements that two placements have in common and that lie one after the other in both.
type Run struct {
	At    int // the first one's number in the placement
	Other int // its number in the other placement
	Len   int
}

// Intersect lists the elements that p and q have in common, in the order of both, in as few runs as there are. It
// panics if p and q are not of arrays of one shape.
func (p Placement) Intersect(q Placement) iter.Seq[Run] {
	if !slices.Equal(p.Shape, q.Shape) {
		panic(fmt.Sprintf("placement: %v is of an array of shape %v, %v of one of shape %v: want one shape", p, p.Shape,
			q, q.Shape))
	}
	return func(yield func(Run) bool) {
		if p.SameBox(q) {
			start, stop := max(p.Flat.Start, q.Flat.Start), min(p.Flat.Stop, q.Flat.Stop)
			if start < stop {
				yield(Run{start - p.Flat.Start, start - q.Flat.Start, stop - start})
			}
			return
		}
		if apart(p.Box, q.Box) {
			return
		}
		x := newCrossing(p.Box, q.Box)
		// The elements of both boxes ascend in the order of either.
		first := func(at func(i int) int, from int) int {
			return sort.Search(x.numel, func(i int) bool { return at(i) >= from })
		}
		inP := func(i int) int { a, _, _ := x.locate(i); return a }
		inQ := func(i int) int { _, b, _ := x.locate(i); return b }
		end := min(first(inP, p.Flat.Stop), first(inQ, q.Flat.Stop))
		var run Run
		for i := max(first(inP, p.Flat.Start), first(inQ, q.Flat.Start)); i < end; {
			a, b, n := x.locate(i)
			next := Run{a - p.Flat.Start, b - q.Flat.Start, min(n, end-i)}
			i += next.Len
			if run.At+run.Len == next.At && run.Other+run.Len == next.Other { // at the end of a row
				run.Len += next.Len
				continue
			}
			if run.Len > 0 && !yield(run) {
				return
			}
			run = next
		}
		if run.Len > 0 {
			yield(run)
		}
	}
}

// Overlaps reports whether p and q have elements in common.
func (p Placement) Overlaps(q Placement) bool {
	any := false
	p.Intersect(q)(func(Run) bool {
		any = true
		return false
	})
	return any
}

// apart reports whether one box ends before the other begins along some dim.
func apart(p, q [][]Range) bool {
	for d, a := range p {
		b := q[d]
		if len(a) == 0 || len(b) == 0 || a[len(a)-1].Stop <= b[0].Start || b[len(b)-1].Stop <= a[0].Start {
			return true
		}
	}
	return false
}

// Copy copies the elements that two placements have in common, of so many bytes each: src has those of from, dst gets
// its own of to. It returns how many they are.
func Copy(dst []byte, to Placement, src []byte, from Placement, width int) (n int) {
	for r := range to.Intersect(from) {
		copy(dst[r.At*width:(r.At+r.Len)*width], src[r.Other*width:])
		n += r.Len
	}
	return n
}

// crossing is the box of what two boxes have in common.
type crossing struct {
	axes  []axis
	numel int
	// inner is the dim along which runs lie, and tail the elements of one index of it: both boxes have all that the
	// dims behind it have.
	inner, tail int
}

// axis is a dim of a crossing.
type axis struct {
	spans []span
	n     int // indices in both boxes
	a, b  int // indices in either
}

// span is n indices that follow each other in both boxes, from number a of the one's and number b of the other's.
type span struct{ a, b, n int }

func newCrossing(p, q [][]Range) crossing {
	x := crossing{numel: 1, tail: 1, inner: len(p) - 1}
	for d := range p {
		x.axes = append(x.axes, newAxis(p[d], q[d]))
		x.numel *= x.axes[d].n
		if x.numel == 0 {
			return x
		}
	}
	for ; x.inner > 0; x.inner-- {
		dim := x.axes[x.inner]
		if dim.n != dim.a || dim.n != dim.b {
			break
		}
		x.tail *= dim.n
	}
	return x
}

func newAxis(p, q []Range) axis {
	x := axis{a: Len(p), b: Len(q)}
	var a, b int // numbers of the first indices of p[0] and q[0]
	for len(p) > 0 && len(q) > 0 {
		start, stop := max(p[0].Start, q[0].Start), min(p[0].Stop, q[0].Stop)
		if start < stop {
			s := span{a + start - p[0].Start, b + start - q[0].Start, stop - start}
			if k := len(x.spans) - 1; k >= 0 && x.spans[k].a+x.spans[k].n == s.a && x.spans[k].b+x.spans[k].n == s.b {
				x.spans[k].n += s.n
			} else {
				x.spans = append(x.spans, s)
			}
			x.n += s.n
		}
		if p[0].Stop <= q[0].Stop {
			a, p = a+p[0].Len(), p[1:]
		} else {
			b, q = b+q[0].Len(), q[1:]
		}
	}
	return x
}

// locate returns the numbers of element i of the crossing in both boxes, and how many from it on follow each other in
// both.
func (x crossing) locate(i int) (a, b, n int) {
	n = 1
	rest, stepA, stepB := i, 1, 1
	for d := len(x.axes) - 1; d >= 0; d-- {
		dim := x.axes[d]
		at := rest % dim.n
		rest /= dim.n
		for _, s := range dim.spans {
			if at < s.n {
				a, b = a+(s.a+at)*stepA, b+(s.b+at)*stepB
				if d == x.inner {
					n = (s.n-at)*x.tail - i%x.tail
				}
				break
			}
			at -= s.n
		}
		stepA, stepB = stepA*dim.a, stepB*dim.b
	}
	return a, b, n
}
