package vecmath

// accumulators are what a sum is kept in.
type accumulators [lanes]float64

// total adds neighbours at a distance of 8, 4, 2 and 1.
func (a *accumulators) total() float64 {
	for d := lanes / 2; d > 0; d /= 2 {
		for i := range d {
			a[i] += a[i+d]
		}
	}
	return a[0]
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

// Max returns the largest element, −Inf if there is none. A NaN does not count.
func Max(x []float32) float32 {
	most := infinities
	done := maxVector(len(x), first(x), &most[0])
	for i := done; i < len(x); i++ {
		if x[i] > most[i%lanes] {
			most[i%lanes] = x[i]
		}
	}
	for d := lanes / 2; d > 0; d /= 2 {
		for i := range d {
			if most[i+d] > most[i] {
				most[i] = most[i+d]
			}
		}
	}
	return most[0]
}

// AddWide adds x[i] to sums[i].
func AddWide(sums []float64, x []float32) {
	checkLengths(len(sums), len(x))
	done := addWideVector(len(sums), first(sums), first(x))
	for i := done; i < len(sums); i++ {
		sums[i] += float64(x[i])
	}
}
