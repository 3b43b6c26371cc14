// SPDX-License-Identifier: Apache-2.0

package vecmath

// Larger sets dst[i] and place[i] to the larger one of x[i] and y[i] and to its place, px[i] or py[i]: to x's if they
// are equal. NaN is larger than all numbers. dst and place may be x and px, and y and py may be later elements of the
// same arrays. Lengths that differ are a panic.
func Larger(dst []float32, place []uint32, x []float32, px []uint32, y []float32, py []uint32) {
	checkLengths(len(dst), len(place), len(x), len(px), len(y), len(py))
	done := largerVector(len(dst), first(dst), first(place), first(x), first(px), first(y), first(py))
	for i := done; i < len(dst); i++ {
		v, p := x[i], px[i]
		if w := y[i]; w > v || w != w && v == v {
			v, p = w, py[i]
		}
		dst[i], place[i] = v, p
	}
}
