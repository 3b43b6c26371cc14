// SPDX-License-Identifier: Apache-2.0

// Package placement describes which elements of a named array a rank or a file holds. Fully sharded parameters are flat
// ranges of an array, tensor parallelism cuts rows or columns, and both together are a flat range of some columns; all
// are a [Placement]. Placements of one array tell which elements two ranks have in common, and where each has them, so
// that one rank reads what others wrote.
//
// The package computes with indices alone. Package tensor gives its types public names.
package placement

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
)

// Range is the half-open interval [Start, Stop).
type Range struct{ Start, Stop int }

// Len is the number of integers in the range.
func (r Range) Len() int { return r.Stop - r.Start }

// Placement is a part of an array: a box of it, and of the box's elements in row-major order a range. Its own elements
// have that order too. Placements made by Whole, Along and Slice have one form, so that equal parts have equal fields.
type Placement struct {
	Name  string // of the array
	Shape []int  // of the whole array
	// Box is, for each dim, the indices that the box has: ranges in ascending order, none of them empty and none
	// adjacent to the next. Rows or columns of a matrix are one range; a fused projection of queries, keys and values
	// is cut into three.
	Box [][]Range
	// Flat is the range of the box's elements.
	Flat Range
}

// Whole is all of an array.
func Whole(name string, shape ...int) Placement {
	p := Placement{Name: name, Shape: slices.Clone(shape), Box: make([][]Range, len(shape))}
	for d, size := range shape {
		p.Box[d] = joined([]Range{{0, size}})
	}
	p.Flat.Stop = p.BoxNumel()
	return p
}

// Along is the box of p with other indices of a dim: those of the ranges, which ascend. It has all elements of that
// box, whatever Flat was.
func (p Placement) Along(dim int, ranges ...Range) Placement {
	p.Box = slices.Clone(p.Box)
	p.Box[dim] = joined(ranges)
	p.Flat = Range{0, p.BoxNumel()}
	return p
}

// joined leaves out empty ranges and joins those that follow each other without a gap.
func joined(ranges []Range) (list []Range) {
	for _, r := range ranges {
		switch n := len(list); {
		case r.Start == r.Stop:
		case n > 0 && list[n-1].Stop == r.Start:
			list[n-1].Stop = r.Stop
		default:
			list = append(list, r)
		}
	}
	return list
}

// Slice is the elements start to stop, exclusively, of p's own.
func (p Placement) Slice(start, stop int) Placement {
	p.Flat = Range{p.Flat.Start + start, p.Flat.Start + stop}
	return p
}

// Of is the same part of another array with as many elements. The shape may differ if p's box is the whole array.
func (p Placement) Of(name string, shape ...int) Placement {
	q := Whole(name, shape...)
	if !p.WholeBox() {
		q.Box = p.Box
	}
	q.Flat = p.Flat
	return q
}

// Bytes is p as a part of the array of the bytes of its elements, of which each has width. The array has a dim more.
func (p Placement) Bytes(width int) Placement {
	p.Shape = append(slices.Clone(p.Shape), width)
	p.Box = append(slices.Clone(p.Box), []Range{{0, width}})
	p.Flat = Range{p.Flat.Start * width, p.Flat.Stop * width}
	return p
}

// Numel is the number of elements that p has.
func (p Placement) Numel() int { return p.Flat.Len() }

// BoxNumel is the number of elements of the box.
func (p Placement) BoxNumel() int {
	n := 1
	for _, ranges := range p.Box {
		n *= Len(ranges)
		if n == 0 {
			return 0
		}
	}
	return n
}

// Len is the number of indices in ranges.
func Len(ranges []Range) (n int) {
	for _, r := range ranges {
		n += r.Len()
	}
	return n
}

// Sub is the indices start to stop, exclusively, of those in ranges.
func Sub(ranges []Range, start, stop int) (list []Range) {
	at := 0 // indices before r
	for _, r := range ranges {
		from, to := r.Start+max(start-at, 0), min(r.Stop, r.Start+stop-at)
		if from < to {
			list = append(list, Range{from, to})
		}
		at += r.Len()
	}
	return list
}

// WholeBox reports whether the box is the whole array, so that p is a range of its flat order.
func (p Placement) WholeBox() bool {
	for d, size := range p.Shape {
		if Len(p.Box[d]) != size {
			return false
		}
	}
	return true
}

// SameBox reports whether p and q are parts of one box of one shape.
func (p Placement) SameBox(q Placement) bool {
	return slices.Equal(p.Shape, q.Shape) && slices.EqualFunc(p.Box, q.Box, slices.Equal[[]Range])
}

// Compare orders placements of an array: those of a box follow each other, by their first elements.
func Compare(p, q Placement) int {
	return cmp.Or(slices.CompareFunc(p.Box, q.Box, func(a, b []Range) int {
		return slices.CompareFunc(a, b, func(a, b Range) int {
			return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Stop, b.Stop))
		})
	}), cmp.Compare(p.Flat.Start, q.Flat.Start), cmp.Compare(p.Flat.Stop, q.Flat.Stop))
}

// String is the name with the ranges that p has: "w[5:11]" of the flat order, "w[0:8,0:2+4:6][5:11]" of the order of a
// box.
func (p Placement) String() string {
	box := ""
	if !p.WholeBox() {
		dims := make([]string, len(p.Box))
		for d, ranges := range p.Box {
			dims[d] = text(ranges...)
		}
		box = "[" + strings.Join(dims, ",") + "]"
	}
	return p.Name + box + "[" + text(p.Flat) + "]"
}

// text is "0:2+4:6".
func text(ranges ...Range) string {
	list := make([]string, len(ranges))
	for i, r := range ranges {
		list[i] = fmt.Sprintf("%d:%d", r.Start, r.Stop)
	}
	return strings.Join(list, "+")
}

// Validate checks a placement that was read or made by hand: the errors give what it has and what was expected. All
// other methods expect a valid one.
func (p Placement) Validate() error {
	if err := checkShape(p.Shape); err != nil {
		return err
	}
	if len(p.Box) != len(p.Shape) {
		return fmt.Errorf("a box of %d dims in an array of shape %v: want %d", len(p.Box), p.Shape, len(p.Shape))
	}
	for d, ranges := range p.Box {
		end := -1
		for _, r := range ranges {
			switch {
			case r.Start < 0 || r.Stop < r.Start || r.Stop > p.Shape[d]:
				return fmt.Errorf("range [%d, %d) of dim %d: want one in [0, %d)", r.Start, r.Stop, d, p.Shape[d])
			case r.Start == r.Stop:
				return fmt.Errorf("range [%d, %d) of dim %d is empty: want it left out", r.Start, r.Stop, d)
			case r.Start <= end:
				return fmt.Errorf("range [%d, %d) of dim %d follows one that ends at %d: want it to begin behind a gap",
					r.Start, r.Stop, d, end)
			}
			end = r.Stop
		}
	}
	if n := p.BoxNumel(); p.Flat.Start < 0 || p.Flat.Stop < p.Flat.Start || p.Flat.Stop > n {
		return fmt.Errorf("elements [%d, %d) of %d: want a range inside", p.Flat.Start, p.Flat.Stop, n)
	}
	return nil
}

// checkShape refuses shapes whose elements an int does not count.
func checkShape(shape []int) error {
	if slices.ContainsFunc(shape, func(size int) bool { return size < 0 }) {
		return fmt.Errorf("shape %v: want sizes of at least 0", shape)
	}
	if slices.Contains(shape, 0) {
		return nil
	}
	n := uint64(1)
	for _, size := range shape {
		hi, lo := bits.Mul64(n, uint64(size))
		if hi != 0 || lo > math.MaxInt {
			return fmt.Errorf("shape %v: want at most %d elements", shape, math.MaxInt)
		}
		n = lo
	}
	return nil
}
