// SPDX-License-Identifier: Apache-2.0

// Package unbuilt lets tests reach parts whose design is there and whose use is refused until they are built.
package unbuilt

import "sync/atomic"

var axes atomic.Int32

// AllowAxes makes package accelerate accept the axes of a mesh that no step honours yet, until back is called: a test
// of how a mesh divides ranks by role uses them.
func AllowAxes() (back func()) {
	axes.Add(1)
	return func() { axes.Add(-1) }
}

// Axes reports whether such axes are accepted.
func Axes() bool { return axes.Load() > 0 }
