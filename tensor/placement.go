// SPDX-License-Identifier: Apache-2.0

package tensor

import "github.com/lockstep-ml/lockstep/internal/placement"

// Range is the half-open interval [Start, Stop) of indices or elements.
type Range = placement.Range

// Placement is the part of a named array that a rank, or a file, has: a box of it, which is ranges of indices for each
// dim, and a range of the box's elements in row-major order. Along and Slice make a part of [WholePlacement], Intersect
// lists the elements that two parts have in common.
type Placement = placement.Placement

// Run is elements that two placements have in common and that lie one after the other in both.
type Run = placement.Run

// WholePlacement is all of an array of the given shape.
func WholePlacement(name string, shape ...int) Placement { return placement.Whole(name, shape...) }

// Placed is the elements of a part of an array, in the part's order: what a rank holds of a parameter.
type Placed struct {
	Placement
	Tensor *Tensor // of any shape with as many elements
}

// Placed is the whole tensor as a part of itself.
func (n Named) Placed() Placed { return Placed{WholePlacement(n.Name, n.Shape()...), n.Tensor} }
