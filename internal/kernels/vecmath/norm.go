package vecmath

// Normalize sets dst[i] = (x[i]-m)·s·w[i] + b[i]; w and b may be nil, b must be if w is. With m = 0 it is RMS norm's.
func Normalize(dst, x, w, b []float32, m, s float32, past bool) {
	checkLengths(len(dst), len(x))
	switch {
	case b != nil:
		checkLengths(len(dst), len(w), len(b))
		done := normalizeAffineVector(len(dst), first(dst), first(x), first(w), first(b), m, s, past)
		for i := done; i < len(dst); i++ {
			dst[i] = float32((x[i]-m)*s*w[i]) + b[i]
		}
	case w != nil:
		checkLengths(len(dst), len(w))
		done := normalizeScaleVector(len(dst), first(dst), first(x), first(w), m, s, past)
		for i := done; i < len(dst); i++ {
			dst[i] = (x[i] - m) * s * w[i]
		}
	default:
		done := normalizeVector(len(dst), first(dst), first(x), m, s, past)
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
func NormGrad(dst, x, dy, w []float32, m, s, a, b, f float32, past bool) {
	checkLengths(len(dst), len(x), len(dy), len(w))
	done := normGradVector(len(dst), first(dst), first(x), first(dy), first(w), m, s, a, b, f, past)
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

// NormParamGradRows is NormParamGrad of as many rows as there are elements of s, which follow each other in x and dy, in order; m may be nil, for zeros.
func NormParamGradRows(dw, db []float64, x, dy, m, s []float32) {
	n := len(dw)
	checkLengths(len(x), len(dy), n*len(s))
	var zeros [4]float32
	for len(s) >= 4 {
		mean := zeros[:]
		if m != nil {
			mean, m = m[:4], m[4:]
		}
		normParamGrad4(dw, db, x[:4*n], dy[:4*n], mean, s[:4])
		x, dy, s = x[4*n:], dy[4*n:], s[4:]
	}
	for r := range s {
		mean := float32(0)
		if m != nil {
			mean = m[r]
		}
		NormParamGrad(dw, db, x[r*n:(r+1)*n], dy[r*n:(r+1)*n], mean, s[r])
	}
}

// normParamGrad4 is NormParamGrad of four rows: the sums are read and written once.
func normParamGrad4(dw, db []float64, x, dy, m, s []float32) {
	n, done := len(dw), 0
	x0, x1, x2, x3 := x[:n], x[n:2*n], x[2*n:3*n], x[3*n:]
	d0, d1, d2, d3 := dy[:n], dy[n:2*n], dy[2*n:3*n], dy[3*n:]
	if db == nil {
		done = normScaleGrad4Vector(n, first(dw), first(x0), first(x1), first(x2), first(x3), first(d0), first(d1), first(d2), first(d3),
			m[0], m[1], m[2], m[3], s[0], s[1], s[2], s[3])
	} else {
		checkLengths(n, len(db))
		done = normAffineGrad4Vector(n, first(dw), first(db), first(x0), first(x1), first(x2), first(x3), first(d0), first(d1), first(d2), first(d3),
			m[0], m[1], m[2], m[3], s[0], s[1], s[2], s[3])
	}
	for r := range 4 {
		for i := done; i < n; i++ {
			d := dy[r*n+i]
			dw[i] += float64(d * (x[r*n+i] - m[r]) * s[r])
			if db != nil {
				db[i] += float64(d)
			}
		}
	}
}
