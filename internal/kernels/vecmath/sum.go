// SPDX-License-Identifier: Apache-2.0

package vecmath

import "math"

// accumulators are what a sum is kept in.
type accumulators [lanes]float64

// total adds neighbours at a distance of 8, 4, 2 and 1.
func (a *accumulators) total() float64 {
	s0, s1, s2, s3 := a[0]+a[8], a[1]+a[9], a[2]+a[10], a[3]+a[11]
	s4, s5, s6, s7 := a[4]+a[12], a[5]+a[13], a[6]+a[14], a[7]+a[15]
	return ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
}

// Sum returns the sum of x.
func Sum(x []float32) float64 {
	var a accumulators
	SumLanes((*[lanes]float64)(&a), x)
	return a.total()
}

// SumLanes adds x[i] to sum[i mod 16]: a piece of a longer sum whose earlier pieces have multiples of 16 elements.
func SumLanes(sum *[lanes]float64, x []float32) {
	done := sumVector(len(x), first(x), &sum[0])
	for i := done; i < len(x); i++ {
		sum[i%lanes] += float64(x[i])
	}
}

// Dot returns the sum of x[i]·y[i].
func Dot(x, y []float32) float64 {
	checkLengths(len(x), len(y))
	var a accumulators
	done := dotVector(len(x), first(x), first(y), &a[0])
	for i := done; i < len(x); i++ {
		a[i%lanes] += float64(float64(x[i]) * float64(y[i])) // exact
	}
	return a.total()
}

// Deviations returns the sum of (x[i]-m)².
func Deviations(x []float32, m float64) float64 {
	var a accumulators
	done := deviationsVector(len(x), first(x), &a[0], m)
	for i := done; i < len(x); i++ {
		d := float64(x[i]) - m
		a[i%lanes] += float64(d * d)
	}
	return a.total()
}

// Max returns the largest element, −Inf if there is none. A NaN does not count. Of zeros it is +0.
func Max(x []float32) float32 {
	most := infinities
	return largestOf(&most, x[maxVector(len(x), first(x), &most[0]):])
}

// largestOf is the largest element of x and of most.
func largestOf(most *[lanes]float32, x []float32) float32 {
	if len(x) > 0 {
		rest := infinities
		copy(rest[:], x)
		if maxVector(lanes, &rest[0], &most[0]) == 0 {
			for i, v := range x {
				if v > most[i%lanes] {
					most[i%lanes] = v
				}
			}
		}
	}
	key := orderKey(most[0])
	for _, v := range most[1:] {
		key = max(key, orderKey(v)) // of integers, which takes no branch
	}
	return math.Float32frombits(uint32(key^key>>31&math.MaxInt32)) + 0
}

// orderKey is an integer that is ordered as the float is; +0 lies above −0. It is its own inverse.
func orderKey(x float32) int32 {
	bits := int32(math.Float32bits(x))
	return bits ^ bits>>31&math.MaxInt32
}

// AddWide adds x[i] to sums[i].
func AddWide(sums []float64, x []float32) {
	checkLengths(len(sums), len(x))
	done := addWideVector(len(sums), first(sums), first(x))
	for i := done; i < len(sums); i++ {
		sums[i] += float64(x[i])
	}
}

// AddWideRows adds rows of x, stride elements apart and as long as sums, to sums one after the other.
func AddWideRows(sums []float64, x []float32, rows, stride int) {
	n := len(sums)
	for ; rows >= 4; rows -= 4 {
		x0, x1, x2, x3 := x[:n], x[stride:stride+n], x[2*stride:2*stride+n], x[3*stride:3*stride+n]
		done := addWide4Vector(n, first(sums), first(x0), first(x1), first(x2), first(x3))
		for i := done; i < n; i++ {
			sums[i] = (((sums[i] + float64(x0[i])) + float64(x1[i])) + float64(x2[i])) + float64(x3[i])
		}
		if rows > 4 {
			x = x[4*stride:]
		}
	}
	for r := range rows {
		AddWide(sums, x[r*stride:r*stride+n])
	}
}
