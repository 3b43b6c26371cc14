package vecmath

// Normalize sets dst[i] = (x[i]-m)·s·w[i] + b[i]; w and b may be nil, b must be if w is. With m = 0 it is RMS norm's.
func Normalize(dst, x, w, b []float32, m, s float32) {
	checkLengths(len(dst), len(x))
	switch {
	case b != nil:
		checkLengths(len(dst), len(w), len(b))
		done := normalizeAffineVector(len(dst), first(dst), first(x), first(w), first(b), m, s)
		for i := done; i < len(dst); i++ {
			dst[i] = float32((x[i]-m)*s*w[i]) + b[i]
		}
	case w != nil:
		checkLengths(len(dst), len(w))
		done := normalizeScaleVector(len(dst), first(dst), first(x), first(w), m, s)
		for i := done; i < len(dst); i++ {
			dst[i] = (x[i] - m) * s * w[i]
		}
	default:
		done := normalizeVector(len(dst), first(dst), first(x), m, s)
		for i := done; i < len(dst); i++ {
			dst[i] = (x[i] - m) * s
		}
	}
}

// NormSums returns, with d = dy[i]·w[i], the sums of d and of d·(x[i]-m)·s that a norm's gradient needs.
func NormSums(x, dy, w []float32, m, s float32) (sum, inner float64) {
	checkLengths(len(x), len(dy), len(w))
	var a, b accumulators
	done := normSumsVector(len(x), first(x), first(dy), first(w), &a[0], &b[0], m, s)
	for i := done; i < len(x); i++ {
		d := float64(dy[i] * w[i])
		a[i%lanes] += d
		b[i%lanes] += float64(d * float64((x[i]-m)*s)) // exact
	}
	return a.total(), b.total()
}

// NormGrad sets dst[i] = f·((dy[i]·w[i]-a) - (x[i]-m)·s·b).
func NormGrad(dst, x, dy, w []float32, m, s, a, b, f float32) {
	checkLengths(len(dst), len(x), len(dy), len(w))
	done := normGradVector(len(dst), first(dst), first(x), first(dy), first(w), m, s, a, b, f)
	for i := done; i < len(dst); i++ {
		dst[i] = f * (float32(dy[i]*w[i]) - a - float32((x[i]-m)*s*b))
	}
}

// NormParamGrad adds dy[i]·(x[i]-m)·s to dw[i], and dy[i] to db[i] unless db is nil.
func NormParamGrad(dw, db []float64, x, dy []float32, m, s float32) {
	checkLengths(len(dw), len(x), len(dy))
	if db == nil {
		done := normScaleGradVector(len(dw), first(dw), first(x), first(dy), m, s)
		for i := done; i < len(dw); i++ {
			dw[i] += float64(dy[i] * (x[i] - m) * s)
		}
		return
	}
	checkLengths(len(dw), len(db))
	done := normAffineGradVector(len(dw), first(dw), first(db), first(x), first(dy), m, s)
	for i := done; i < len(dw); i++ {
		dw[i] += float64(dy[i] * (x[i] - m) * s)
		db[i] += float64(dy[i])
	}
}
