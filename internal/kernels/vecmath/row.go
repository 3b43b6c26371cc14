// SPDX-License-Identifier: Apache-2.0

package vecmath

import "math"

// The sums over a row of a norm or of softmax. Four elements at a distance of 16 are added in float32, in order, before
// their sum is added in float64: the error of so short a sum is that of its last digits, and most of the time would go
// into converting single elements.

// fours adds what value gives for i < n from done on, a multiple of 64 unless fewer than 16 are left.
func (a *accumulators) fours(done, n int, value func(i int) float32) {
	for ; done+several*lanes <= n; done += several * lanes {
		for j := range lanes {
			i := done + j
			a[j] += float64(value(i) + value(i+lanes) + value(i+2*lanes) + value(i+3*lanes))
		}
	}
	for i := done; i < n; i++ {
		a[i%lanes] += float64(value(i))
	}
}

// RowDot returns the sum of x[i]·y[i], as [Dot] does with an error of float32.
func RowDot(x, y []float32) float64 {
	checkLengths(len(x), len(y))
	var a accumulators
	done := rowDotVector(len(x), first(x), first(y), &a[0])
	a.fours(done, len(x), func(i int) float32 { return x[i] * y[i] })
	return a.total()
}

// Beyond these, squares of float32 numbers may have been out of its range.
const smallSquares, largeSquares = 1e-30, 1e30

// RowSquares returns the sum of x[i]².
func RowSquares(x []float32) float64 {
	var a accumulators
	done := rowSquaresVector(len(x), first(x), &a[0])
	a.fours(done, len(x), func(i int) float32 { return x[i] * x[i] })
	if s := a.total(); s > smallSquares && s < largeSquares {
		return s
	}
	return Dot(x, x)
}

// MeanAndVariance are those of x, to the precision of float32 whatever the mean: in one pass, from the distances to its
// first element and their squares, and again in float64 where that element is too far from the mean for it.
func MeanAndVariance(x []float32) (mean, variance float64) {
	if len(x) == 0 {
		return math.NaN(), math.NaN()
	}
	var a, b accumulators
	return moments(&a, &b, x, rowMomentsVector(len(x), first(x), &a[0], &b[0], x[0]))
}

// NormalizeMoments is [Normalize] of a row and [MeanAndVariance] of the next one: so a row is written while the next
// one is read. w and b must not be nil.
func NormalizeMoments(dst, x, w, b, next []float32, m, s float32, nonTemporal bool) (mean, variance float64) {
	checkLengths(len(dst), len(x), len(w), len(b), len(next))
	if len(next) == 0 {
		return math.NaN(), math.NaN()
	}
	var sum, squares accumulators
	done := normalizeMomentsVector(len(dst), first(dst), first(x), first(w), first(b), first(next), &sum[0],
		&squares[0], m, s, next[0], nonTemporal)
	for i := done; i < len(dst); i++ {
		dst[i] = float32((x[i]-m)*s*w[i]) + b[i]
	}
	return moments(&sum, &squares, next, done)
}

// moments are the mean and the variance of x, of which so many elements have been added.
func moments(a, b *accumulators, x []float32, done int) (mean, variance float64) {
	n, k := float64(len(x)), x[0]
	a.fours(done, len(x), func(i int) float32 { return x[i] - k })
	b.fours(done, len(x), func(i int) float32 { return (x[i] - k) * (x[i] - k) })
	sum, squares := a.total()/n, b.total()
	if variance = squares/n - float64(sum*sum); variance*farthest > float64(sum*sum) && squares > smallSquares &&
		squares < largeSquares {
		return float64(k) + sum, variance
	}
	mean = Sum(x) / n
	return mean, Deviations(x, mean) / n
}

// farthest is the square of how many standard deviations the first element of a row may be away from the mean.
const farthest = 16
