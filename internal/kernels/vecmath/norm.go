// SPDX-License-Identifier: Apache-2.0

package vecmath

// Normalize sets dst[i] = (x[i]-m)·s·w[i] + b[i]; w and b may be nil, b must be if w is. With m = 0 it is RMS norm's.
func Normalize(dst, x, w, b []float32, m, s float32, nonTemporal bool) {
	checkLengths(len(dst), len(x))
	switch {
	case b != nil:
		checkLengths(len(dst), len(w), len(b))
		done := normalizeAffineVector(len(dst), first(dst), first(x), first(w), first(b), m, s, nonTemporal)
		for i := done; i < len(dst); i++ {
			dst[i] = float32((x[i]-m)*s*w[i]) + b[i]
		}
	case w != nil:
		checkLengths(len(dst), len(w))
		done := normalizeScaleVector(len(dst), first(dst), first(x), first(w), m, s, nonTemporal)
		for i := done; i < len(dst); i++ {
			dst[i] = (x[i] - m) * s * w[i]
		}
	default:
		done := normalizeVector(len(dst), first(dst), first(x), m, s, nonTemporal)
		for i := done; i < len(dst); i++ {
			dst[i] = (x[i] - m) * s
		}
	}
}

// NormSums returns, with d = dy[i]·w[i], the sums of d and of d·(x[i]-m)·s that a norm's gradient needs. It adds what
// the row contributes to the gradients of the parameters, as [NormParamGrad] does, unless dw is nil.
func NormSums(dw, db, x, dy, w []float32, m, s float32) (sum, inner float64) {
	checkLengths(len(x), len(dy), len(w))
	var a, b accumulators
	var done int
	switch {
	case dw == nil:
		done = normSumsVector(len(x), first(x), first(dy), first(w), &a[0], &b[0], m, s)
	case db == nil:
		checkLengths(len(x), len(dw))
		done = normSumsScaleVector(len(x), first(dw), first(x), first(dy), first(w), &a[0], &b[0], m, s)
	default:
		checkLengths(len(x), len(dw), len(db))
		done = normSumsAffineVector(len(x), first(dw), first(db), first(x), first(dy), first(w), &a[0], &b[0], m, s)
	}
	a.fours(done, len(x), func(i int) float32 { return dy[i] * w[i] })
	b.fours(done, len(x), func(i int) float32 { return float32(dy[i]*w[i]) * ((x[i] - m) * s) })
	if dw != nil {
		addParamGrad(dw, db, x, dy, m, s, done)
	}
	return a.total(), b.total()
}

// NormGrad sets dst[i] = f·((dy[i]·w[i]-a) - (x[i]-m)·s·b).
func NormGrad(dst, x, dy, w []float32, m, s, a, b, f float32, nonTemporal bool) {
	checkLengths(len(dst), len(x), len(dy), len(w))
	done := normGradVector(len(dst), first(dst), first(x), first(dy), first(w), m, s, a, b, f, nonTemporal)
	for i := done; i < len(dst); i++ {
		dst[i] = f * (float32(dy[i]*w[i]) - a - float32((x[i]-m)*s*b))
	}
}

// NormGradSums is [NormGrad] of a row and [NormSums] of the next one, which has the same w: so a row is written while
// the next one is read. dw and db must not be nil.
func NormGradSums(dst, x, dy, w, dw, db, nextX, nextDY []float32, m, s, a, b, f, nextM, nextS float32,
	nonTemporal bool) (sum, inner float64) {
	checkLengths(len(dst), len(x), len(dy), len(w), len(dw), len(db), len(nextX), len(nextDY))
	var sums, inners accumulators
	done := normGradSumsVector(len(dst), first(dst), first(x), first(dy), first(w), first(dw), first(db), first(nextX),
		first(nextDY), &sums[0], &inners[0],
		m, s, a, b, f, nextM, nextS, nonTemporal)
	for i := done; i < len(dst); i++ {
		dst[i] = f * (float32(dy[i]*w[i]) - a - float32((x[i]-m)*s*b))
	}
	sums.fours(done, len(dst), func(i int) float32 { return nextDY[i] * w[i] })
	inners.fours(done, len(dst), func(i int) float32 { return float32(nextDY[i]*w[i]) * ((nextX[i] - nextM) * nextS) })
	addParamGrad(dw, db, nextX, nextDY, nextM, nextS, done)
	return sums.total(), inners.total()
}

// NormParamGrad adds dy[i]·(x[i]-m)·s to dw[i], and dy[i] to db[i] unless db is nil: sums over a few rows, which others
// add up in float64.
func NormParamGrad(dw, db, x, dy []float32, m, s float32) {
	checkLengths(len(dw), len(x), len(dy))
	done := 0
	if db == nil {
		done = normScaleGradVector(len(dw), first(dw), first(x), first(dy), m, s)
	} else {
		checkLengths(len(dw), len(db))
		done = normAffineGradVector(len(dw), first(dw), first(db), first(x), first(dy), m, s)
	}
	addParamGrad(dw, db, x, dy, m, s, done)
}

// addParamGrad is NormParamGrad from an element on.
func addParamGrad(dw, db, x, dy []float32, m, s float32, from int) {
	for i := from; i < len(dw); i++ {
		dw[i] += float32(dy[i] * ((x[i] - m) * s))
		if db != nil {
			db[i] += dy[i]
		}
	}
}
