// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"math"
	"math/big"
)

// rounding is one of PTX's four rounding modes.
type rounding uint8

const (
	nearest2 rounding = iota // to nearest, ties to even
	toZero
	down
	up
)

const (
	nan32  = 0x7fffffff
	nan16  = 0x7fff // of both half formats
	sign32 = 1 << 31
	sign64 = 1 << 63
)

func f32(b uint32) float32 { return math.Float32frombits(b) }
func f64(b uint64) float64 { return math.Float64frombits(b) }
func b64(f float64) uint64 { return math.Float64bits(f) }

// b32 is the bits of f; every NaN becomes the one that the hardware makes.
func b32(f float32) uint32 {
	if f != f {
		return nan32
	}
	return math.Float32bits(f)
}

func isNaN32(b uint32) bool { return b&^sign32 > 0x7f800000 }
func isNaN64(b uint64) bool { return b&^uint64(sign64) > 0x7ff<<52 }

// ftz32 replaces a subnormal by a zero of its sign.
func ftz32(b uint32) uint32 {
	if b&0x7f800000 == 0 {
		return b & sign32
	}
	return b
}

// fma32 is a·b+c, rounded once. The product is exact in float64. The sum is rounded to 53 bits and then to 24, which
// differs from one rounding only where the first lands on the middle between two float32 or where the result is
// subnormal: there the first is repeated so that it cannot.
func fma32(a, b, c uint32) uint32 {
	s := float64(f32(a))*float64(f32(b)) + float64(f32(c))
	if bits := b64(s); bits&0x1fffffff == 0x10000000 || bits<<1 < 897<<53 {
		p := float64(f32(a)) * float64(f32(b))
		s = addOdd(p, float64(f32(c)))
	}
	return b32(float32(s))
}

// addOdd is a+b rounded to odd: if the sum is not exact, the last bit of the mantissa is 1, so that a second
// rounding to
// fewer bits gives what one rounding would have given. Neither operand may be near the ends of float64's range.
func addOdd(a, b float64) float64 {
	s := a + b
	if math.IsInf(s, 0) || s != s {
		return s
	}
	t := s - a
	e := (a - (s - t)) + (b - t)
	return towardOdd(s, e)
}

// towardOdd corrects s, which was rounded to nearest, by the sign of what it lacks.
func towardOdd(s, e float64) float64 {
	bits := b64(s)
	if e == 0 || e != e || bits&1 == 1 {
		return s
	}
	if (e > 0) == (bits>>63 == 0) {
		return f64(bits + 1)
	}
	return f64(bits - 1)
}

// round32 rounds a float64 to float32.
func round32(v float64, mode rounding) float32 {
	f := float32(v)
	w := float64(f)
	if mode == nearest2 || w == v || w != w {
		return f
	}
	bits := math.Float32bits(f)
	away := bits&sign32 == 0 && w > v || bits&sign32 != 0 && w < v
	grow := mode == up && v > 0 || mode == down && v < 0
	switch {
	case away && !grow:
		bits--
	case !away && grow:
		bits++
	}
	return f32(bits)
}

// zeroSum returns the sum of two numbers that cancel the sign that the mode asks for.
func zeroSum(s, a, b float64, mode rounding) float64 {
	if s == 0 && mode == down && (a != 0 || math.Signbit(a) != math.Signbit(b)) {
		return math.Copysign(0, -1)
	}
	return s
}

func add32(a, b uint32, mode rounding) uint32 {
	x, y := float64(f32(a)), float64(f32(b))
	return b32(round32(zeroSum(addOdd(x, y), x, y, mode), mode))
}

func mul32(a, b uint32, mode rounding) uint32 {
	return b32(round32(float64(f32(a))*float64(f32(b)), mode))
}

func fmaMode32(a, b, c uint32, mode rounding) uint32 {
	p, z := float64(f32(a))*float64(f32(b)), float64(f32(c))
	return b32(round32(zeroSum(addOdd(p, z), p, z, mode), mode))
}

func div32(a, b uint32, mode rounding) uint32 {
	x, y := float64(f32(a)), float64(f32(b))
	q := x / y
	if mode != nearest2 && !math.IsInf(q, 0) && q == q && !math.IsInf(y, 0) {
		r := math.FMA(-q, y, x)
		if y < 0 {
			r = -r
		}
		q = towardOdd(q, r)
	}
	if mode == nearest2 {
		return b32(f32(a) / f32(b))
	}
	return b32(round32(q, mode))
}

func sqrt32(a uint32, mode rounding) uint32 {
	x := float64(f32(a))
	q := math.Sqrt(x)
	if mode != nearest2 && q == q && !math.IsInf(q, 0) {
		q = towardOdd(q, math.FMA(-q, q, x))
	}
	return b32(round32(q, mode))
}

// bigPrecision holds the exact sum of a product of two float64 and a third.
const bigPrecision = 4400

func bigFloat(v float64) *big.Float { return new(big.Float).SetPrec(bigPrecision).SetFloat64(v) }

// directed64 repeats a float64 operation, whose result to nearest is v, in another mode; exact computes without
// rounding. Infinities and NaN stay unchanged unless a finite result was too large.
func directed64(v float64, mode rounding, exact func() *big.Float) float64 {
	if mode == nearest2 || v != v {
		return v
	}
	e := exact()
	if e == nil {
		return v
	}
	f, accuracy := e.Float64()
	if accuracy == big.Exact {
		return zeroSign(f, v, mode)
	}
	positive := e.Sign() > 0
	bits := b64(f)
	away := (accuracy == big.Above) == positive // |f| > |e|
	grow := mode == up && positive || mode == down && !positive
	switch {
	case away && !grow:
		bits--
	case !away && grow:
		bits++
	}
	return f64(bits)
}

func zeroSign(f, v float64, mode rounding) float64 {
	if f == 0 {
		return v
	}
	_ = mode
	return f
}

func finite(v ...float64) bool {
	for _, x := range v {
		if x-x != 0 {
			return false
		}
	}
	return true
}

func fma64(a, b, c float64, mode rounding) float64 {
	v := math.FMA(a, b, c)
	if mode == nearest2 || !finite(a, b, c) {
		return v
	}
	if v == 0 {
		p := math.FMA(a, b, 0)
		return zeroSum(v, math.Copysign(1, p)*math.Abs(c), c, mode)
	}
	return directed64(v, mode, func() *big.Float {
		p := new(big.Float).SetPrec(bigPrecision).Mul(bigFloat(a), bigFloat(b))
		return p.Add(p, bigFloat(c))
	})
}

func add64(a, b float64, mode rounding) float64 {
	v := a + b
	if mode == nearest2 || !finite(a, b) {
		return v
	}
	if v == 0 {
		return zeroSum(v, a, b, mode)
	}
	return directed64(v, mode, func() *big.Float {
		return new(big.Float).SetPrec(bigPrecision).Add(bigFloat(a), bigFloat(b))
	})
}

func mul64(a, b float64, mode rounding) float64 {
	v := a * b
	if mode == nearest2 || !finite(a, b) || a == 0 || b == 0 {
		return v
	}
	return directed64(v, mode, func() *big.Float {
		return new(big.Float).SetPrec(bigPrecision).Mul(bigFloat(a), bigFloat(b))
	})
}

func div64(a, b float64, mode rounding) float64 {
	v := a / b
	if mode == nearest2 || !finite(a, b) || a == 0 || b == 0 {
		return v
	}
	return directed64(v, mode, func() *big.Float {
		return new(big.Float).SetPrec(bigPrecision).Quo(bigFloat(a), bigFloat(b))
	})
}

func sqrt64(a float64, mode rounding) float64 {
	v := math.Sqrt(a)
	if mode == nearest2 || !finite(a) || a <= 0 {
		return v
	}
	return directed64(v, mode, func() *big.Float { return new(big.Float).SetPrec(200).Sqrt(bigFloat(a)) })
}

// format is a small binary float format with infinities.
type format struct {
	exponent, mantissa uint // bits
}

var (
	formatF16  = format{5, 10}
	formatBF16 = format{8, 7}
)

// encode rounds a float64 to the format's bits. A value that was rounded to odd is rounded as if it were exact.
func (f format) encode(v float64, mode rounding) uint32 {
	bits := b64(v)
	sign := uint32(bits>>63) << (f.exponent + f.mantissa)
	inf := uint32(1<<f.exponent-1) << f.mantissa
	switch {
	case v != v:
		return nan16
	case v == 0:
		return sign
	case math.IsInf(v, 0):
		return sign | inf
	}
	bias := 1<<(f.exponent-1) - 1
	e := int(bits>>52&0x7ff) - 1023
	m := bits&(1<<52-1) | 1<<52
	if bits>>52&0x7ff == 0 { // far below every format's range
		m, e = 1, -1074
	}
	drop := int(52 - f.mantissa)
	biased := e + bias
	if biased <= 0 { // subnormal
		drop += 1 - biased
		biased = 0
	}
	var kept, rest, half uint64
	if drop > 62 {
		kept, rest, half = 0, 1, 2
	} else {
		kept, rest, half = m>>drop, m&(1<<drop-1), 1<<(drop-1)
	}
	add := false
	switch mode {
	case nearest2:
		add = rest > half || rest == half && kept&1 == 1
	case up:
		add = rest != 0 && sign == 0
	case down:
		add = rest != 0 && sign != 0
	}
	if add {
		kept++
	}
	r := uint32(kept)
	if biased > 0 {
		r = uint32(biased-1)<<f.mantissa + uint32(kept)
	}
	if r >= inf {
		r = inf
		if mode == toZero || mode == up && sign != 0 || mode == down && sign == 0 {
			r = inf - 1
		}
	}
	return sign | r
}

// decode widens the format's bits exactly.
func (f format) decode(b uint32) float64 {
	m := b & (1<<f.mantissa - 1)
	e := int(b >> f.mantissa & (1<<f.exponent - 1))
	bias := 1<<(f.exponent-1) - 1
	var v float64
	switch {
	case e == 1<<f.exponent-1 && m != 0:
		return math.NaN()
	case e == 1<<f.exponent-1:
		v = math.Inf(1)
	case e == 0:
		v = math.Ldexp(float64(m), 1-bias-int(f.mantissa))
	default:
		v = f64(uint64(e-bias+1023)<<52 | uint64(m)<<(52-f.mantissa))
	}
	if b>>(f.exponent+f.mantissa)&1 == 1 {
		v = -v
	}
	return v
}

// flush replaces a subnormal by a zero of its sign, if ftz.
func (f format) flush(b uint32, ftz bool) uint32 {
	if exponent := uint32(1<<f.exponent-1) << f.mantissa; ftz && b&exponent == 0 {
		return b & 0x8000
	}
	return b
}

// toBF16 rounds to nearest even.
func toBF16(b uint32) uint32 {
	if isNaN32(b) {
		return nan16
	}
	return (b + 0x7fff + b>>16&1) >> 16
}

// min32 and the functions below: a NaN loses against a number, -0 is less than +0.
func min32(a, b uint32) uint32 {
	switch x, y := f32(a), f32(b); {
	case x < y:
		return a
	case y < x:
		return b
	case x == y:
		return a | b
	case x != x && y != y:
		return nan32
	case x != x:
		return b
	default:
		return a
	}
}

func max32(a, b uint32) uint32 {
	switch x, y := f32(a), f32(b); {
	case x > y:
		return a
	case y > x:
		return b
	case x == y:
		return a & b
	case x != x && y != y:
		return nan32
	case x != x:
		return b
	default:
		return a
	}
}

func minNaN32(a, b uint32) uint32 {
	if isNaN32(a) || isNaN32(b) {
		return nan32
	}
	return min32(a, b)
}

func maxNaN32(a, b uint32) uint32 {
	if isNaN32(a) || isNaN32(b) {
		return nan32
	}
	return max32(a, b)
}

func min64(a, b uint64) uint64 {
	switch x, y := f64(a), f64(b); {
	case x < y:
		return a
	case y < x:
		return b
	case x == y:
		return a | b
	case x != x && y == y:
		return b
	default:
		return a
	}
}

func max64(a, b uint64) uint64 {
	switch x, y := f64(a), f64(b); {
	case x > y:
		return a
	case y > x:
		return b
	case x == y:
		return a & b
	case x != x && y == y:
		return b
	default:
		return a
	}
}

// saturate clamps to [0, 1]; NaN becomes 0.
func saturate32(b uint32) uint32 {
	switch v := f32(b); {
	case !(v > 0):
		return 0
	case v > 1:
		return math.Float32bits(1)
	}
	return b
}

func ex2(a uint32) uint32 {
	return b32(float32(math.Exp2(float64(f32(a)))))
}

func lg2(a uint32) uint32 {
	return b32(float32(math.Log2(float64(f32(a)))))
}

func rsqrt(a uint32) uint32 {
	return b32(float32(1 / math.Sqrt(float64(f32(a)))))
}

func sin32(a uint32) uint32  { return b32(float32(math.Sin(float64(f32(a))))) }
func cos32(a uint32) uint32  { return b32(float32(math.Cos(float64(f32(a))))) }
func tanh32(a uint32) uint32 { return b32(float32(math.Tanh(float64(f32(a))))) }
