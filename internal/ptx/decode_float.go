// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"math"
	"math/big"
	"slices"
	"strings"
)

var roundings = map[string]rounding{"rn": nearest2, "rz": toZero, "rm": down, "rp": up,
	"rni": nearest2, "rzi": toZero, "rmi": down, "rpi": up}

// modeOf is the rounding mode that an opcode names.
func modeOf(st *statement) rounding {
	for _, m := range st.mods {
		if r, ok := roundings[m]; ok {
			return r
		}
	}
	return nearest2
}

// decodeFloat does arithmetic: by the table if it can, else by functions of one lane.
func (l *linker) decodeFloat(st *statement, t typ) (exec, error) {
	for _, name := range []string{st.opcode(), strings.Replace(st.opcode(), ".rn.", ".", 1),
		strings.Replace(st.opcode(), ".full.", ".approx.", 1), strings.Replace(st.opcode(), "mad.", "fma.", 1)} {
		if op, ok := laneTable[strings.Replace(name, "fma.rn.", "fma.", 1)]; ok {
			return l.byTable(st, op)
		}
	}
	switch t {
	case typF32:
		return l.decodeFloat32(st)
	case typF64:
		return l.decodeFloat64(st)
	case typF16, typBF16, typF16x2, typBF16x2:
		return l.decodeHalf(st, t)
	}
	return nil, errUnsupported
}

func (l *linker) decodeFloat32(st *statement) (exec, error) {
	mode, ftz, sat := modeOf(st), st.has("ftz"), st.has("sat")
	n := 3
	var f func(x, y, z uint32) uint32
	switch st.op {
	case "add":
		f = func(x, y, _ uint32) uint32 { return add32(x, y, mode) }
	case "sub":
		f = func(x, y, _ uint32) uint32 { return add32(x, y^sign32, mode) }
	case "mul":
		f = func(x, y, _ uint32) uint32 { return mul32(x, y, mode) }
	case "fma", "mad":
		n = 4
		f = func(x, y, z uint32) uint32 { return fmaMode32(x, y, z, mode) }
	case "div":
		f = func(x, y, _ uint32) uint32 { return div32(x, y, mode) }
	case "rcp":
		n = 2
		f = func(x, _, _ uint32) uint32 { return div32(math.Float32bits(1), x, mode) }
	case "sqrt":
		n = 2
		f = func(x, _, _ uint32) uint32 { return sqrt32(x, mode) }
	case "neg":
		n = 2
		f = func(x, _, _ uint32) uint32 { return x ^ sign32 }
	case "abs":
		n = 2
		f = func(x, _, _ uint32) uint32 { return x &^ sign32 }
	case "min", "max":
		if st.has("xorsign") {
			return nil, errUnsupported
		}
		f = func(x, y, _ uint32) uint32 { return min32(x, y) }
		switch {
		case st.op == "max" && st.has("NaN"):
			f = func(x, y, _ uint32) uint32 { return maxNaN32(x, y) }
		case st.op == "max":
			f = func(x, y, _ uint32) uint32 { return max32(x, y) }
		case st.has("NaN"):
			f = func(x, y, _ uint32) uint32 { return minNaN32(x, y) }
		}
	default:
		return nil, errUnsupported
	}
	flush := func(v uint64) uint32 {
		if ftz {
			return ftz32(uint32(v))
		}
		return uint32(v)
	}
	return l.byFunction(st, strings.Repeat("R", n), func(x, y, z, _ uint64) uint64 {
		r := f(flush(x), flush(y), flush(z))
		if ftz {
			r = ftz32(r)
		}
		if sat {
			r = saturate32(r)
		}
		return uint64(r)
	})
}

func (l *linker) decodeFloat64(st *statement) (exec, error) {
	mode := modeOf(st)
	n := 3
	var f func(x, y, z float64) float64
	switch st.op {
	case "add":
		f = func(x, y, _ float64) float64 { return add64(x, y, mode) }
	case "sub":
		f = func(x, y, _ float64) float64 { return add64(x, -y, mode) }
	case "mul":
		f = func(x, y, _ float64) float64 { return mul64(x, y, mode) }
	case "fma", "mad":
		n = 4
		f = func(x, y, z float64) float64 { return fma64(x, y, z, mode) }
	case "div":
		f = func(x, y, _ float64) float64 { return div64(x, y, mode) }
	case "sqrt":
		n = 2
		f = func(x, _, _ float64) float64 { return sqrt64(x, mode) }
	case "rcp":
		n = 2
		f = func(x, _, _ float64) float64 { return div64(1, x, mode) }
		if st.has("approx") { // works on the upper word alone
			f = func(x, _, _ float64) float64 { return upperWord(1 / upperWord(flush64(x))) }
		}
	case "rsqrt":
		n = 2
		f = func(x, _, _ float64) float64 { return 1 / math.Sqrt(x) }
		if st.has("ftz") {
			f = func(x, _, _ float64) float64 { return upperWord(1 / math.Sqrt(upperWord(flush64(x)))) }
		}
	default:
		return nil, errUnsupported
	}
	return l.byFunction(st, strings.Repeat("D", n), func(x, y, z, _ uint64) uint64 {
		return b64(f(f64(x), f64(y), f64(z)))
	})
}

// upperWord cuts the lower 32 bits off.
func upperWord(v float64) float64 {
	if v != v {
		return v
	}
	return f64(b64(v) &^ fullMask)
}

func flush64(v float64) float64 {
	if b64(v)>>52&0x7ff == 0 {
		return f64(b64(v) & sign64)
	}
	return v
}

// decodeHalf computes in float64, where sums are rounded to odd, and rounds once.
func (l *linker) decodeHalf(st *statement, t typ) (exec, error) {
	f := formatF16
	if t == typBF16 || t == typBF16x2 {
		f = formatBF16
	}
	n := 3
	var op func(x, y, z float64) float64
	switch st.op {
	case "add":
		op = func(x, y, _ float64) float64 { return addOdd(x, y) }
	case "sub":
		op = func(x, y, _ float64) float64 { return addOdd(x, -y) }
	case "mul":
		op = func(x, y, _ float64) float64 { return x * y }
	case "fma":
		n = 4
		op = func(x, y, z float64) float64 { return addOdd(x*y, z) }
	case "neg":
		return l.halves(st, t, 2, func(x, _, _ uint32) uint32 { return x ^ 0x8000 })
	case "abs":
		return l.halves(st, t, 2, func(x, _, _ uint32) uint32 { return x &^ 0x8000 })
	case "min", "max":
		sign := 1.0
		if st.op == "max" {
			sign = -1
		}
		propagate := st.has("NaN")
		op = func(x, y, _ float64) float64 { return sign * halfMin(sign*x, sign*y, propagate) }
	case "ex2":
		n = 2
		op = func(x, _, _ float64) float64 { return math.Exp2(x) }
	case "tanh":
		n = 2
		op = func(x, _, _ float64) float64 { return math.Tanh(x) }
	default:
		return nil, errUnsupported
	}
	ftz, sat, relu := st.has("ftz"), st.has("sat"), st.has("relu")
	flush := func(v uint32) uint32 { return f.flush(v, ftz) }
	return l.halves(st, t, n, func(x, y, z uint32) uint32 {
		v := op(f.decode(flush(x)), f.decode(flush(y)), f.decode(flush(z)))
		if sat {
			v = max(min(v, 1), 0)
			if v != v {
				v = 0
			}
		}
		if relu && v < 0 {
			v = 0
		}
		return flush(f.encode(v, nearest2))
	})
}

// halfMin is the smaller operand, the number if one is NaN.
func halfMin(x, y float64, propagate bool) float64 {
	switch {
	case x != x && y != y || propagate && (x != x || y != y):
		return math.NaN()
	case x != x:
		return y
	case y != y:
		return x
	}
	return math.Min(x, y)
}

// halves applies a function to a 16-bit float or to both of a pair.
func (l *linker) halves(st *statement, t typ, n int, f func(x, y, z uint32) uint32) (exec, error) {
	pair := t == typF16x2 || t == typBF16x2
	return l.byFunction(st, strings.Repeat("R", n), func(x, y, z, _ uint64) uint64 {
		r := f(uint32(x)&0xffff, uint32(y)&0xffff, uint32(z)&0xffff)
		if pair {
			r |= f(uint32(x)>>16, uint32(y)>>16, uint32(z)>>16) << 16
		}
		return uint64(r)
	})
}

// decodeConvert does cvt.
func (l *linker) decodeConvert(st *statement) (exec, error) {
	if len(st.mods) < 2 {
		return nil, errUnsupported
	}
	to, from := typNames[st.mods[len(st.mods)-2]], typNames[st.mods[len(st.mods)-1]]
	if to == typNone || from == typNone {
		return nil, errUnsupported
	}
	// A source in a register wider than its type is cut by the slower way.
	cut := len(st.args) == 2 && st.args[1].kind == operandReg && classOf(st.args[1].reg.typ) != classOf(from)
	if op, ok := laneTable[st.opcode()]; ok && !cut && (len(st.args) != 2 || widthOf(&st.args[0]) == to.size()) {
		return l.byTable(st, op)
	}
	dst, src := string(classOf(to)), string(classOf(from))
	if st.args[0].kind == operandReg {
		dst = string(classOf(st.args[0].reg.typ))
	}
	if len(st.args) > 1 && st.args[1].kind == operandReg {
		src = string(classOf(st.args[1].reg.typ))
	}
	if to == typF16x2 || to == typBF16x2 {
		return l.convertPair(st, to, from)
	}
	f, err := conversion(st, to, from)
	if err != nil {
		return nil, err
	}
	extend := extension(to, widthOf(&st.args[0]))
	return l.byFunction(st, dst+src, func(x, _, _, _ uint64) uint64 { return extend(f(x)) })
}

// convertPair does cvt.f16x2.f32 d, a, b: a becomes the upper half.
func (l *linker) convertPair(st *statement, to, from typ) (exec, error) {
	half := typF16
	if to == typBF16x2 {
		half = typBF16
	}
	if from != typF32 {
		return nil, errUnsupported
	}
	f, err := conversion(st, half, from)
	if err != nil {
		return nil, err
	}
	return l.byFunction(st, "RRR", func(x, y, _, _ uint64) uint64 { return f(x)<<16 | f(y)&0xffff })
}

// extension fills a register that is wider than the type; values have the type's bits alone.
func extension(t typ, width int) func(uint64) uint64 {
	size := t.size()
	if width == 0 {
		width = size
	}
	mask := ^uint64(0) >> (64 - 8*width)
	low := ^uint64(0) >> (64 - 8*size)
	if !t.signed() || width <= size {
		return func(v uint64) uint64 { return v & low & mask }
	}
	shift := 64 - 8*size
	return func(v uint64) uint64 { return uint64(int64(v<<shift)>>shift) & mask }
}

// conversion returns the function from one type's bits to another's.
func conversion(st *statement, to, from typ) (func(uint64) uint64, error) {
	mode, ftz, sat, relu := modeOf(st), st.has("ftz"), st.has("sat"), st.has("relu")
	integral := slices.ContainsFunc(st.mods, func(m string) bool {
		return m == "rni" || m == "rzi" || m == "rmi" || m == "rpi"
	})
	switch {
	case to == typTF32 && from == typF32:
		return roundTF32(st)
	case !from.float() && !to.float():
		return convertInts(to, from, sat), nil
	case !from.float():
		return convertIntToFloat(to, from, mode)
	}
	decode, err := decoderOf(from, ftz)
	if err != nil {
		return nil, err
	}
	if !to.float() {
		return func(x uint64) uint64 { return floatToInt(decode(x), to, from, mode) }, nil
	}
	encode, err := encoderOf(to, mode, ftz)
	if err != nil {
		return nil, err
	}
	return func(x uint64) uint64 {
		v := decode(x)
		if integral {
			v = roundIntegral(v, mode)
		}
		if sat {
			v = max(min(v, 1), 0)
			if v != v {
				v = 0
			}
		}
		if relu && v < 0 {
			v = 0
		}
		return encode(v)
	}, nil
}

func decoderOf(t typ, ftz bool) (func(uint64) float64, error) {
	switch t {
	case typF32:
		if ftz {
			return func(x uint64) float64 { return float64(f32(ftz32(uint32(x)))) }, nil
		}
		return func(x uint64) float64 { return float64(f32(uint32(x))) }, nil
	case typF64:
		return f64, nil
	case typF16:
		return func(x uint64) float64 { return formatF16.decode(uint32(x) & 0xffff) }, nil
	case typBF16:
		return func(x uint64) float64 { return formatBF16.decode(uint32(x) & 0xffff) }, nil
	}
	return nil, errUnsupported
}

func encoderOf(t typ, mode rounding, ftz bool) (func(float64) uint64, error) {
	switch t {
	case typF32:
		return func(v float64) uint64 {
			r := b32(round32(v, mode))
			if ftz {
				r = ftz32(r)
			}
			return uint64(r)
		}, nil
	case typF64:
		return b64, nil
	case typF16:
		return func(v float64) uint64 { return uint64(formatF16.encode(v, mode)) }, nil
	case typBF16:
		return func(v float64) uint64 { return uint64(formatBF16.encode(v, mode)) }, nil
	}
	return nil, errUnsupported
}

func roundIntegral(v float64, mode rounding) float64 {
	switch mode {
	case toZero:
		return math.Trunc(v)
	case down:
		return math.Floor(v)
	case up:
		return math.Ceil(v)
	}
	return math.RoundToEven(v)
}

// floatToInt clamps to the type's range. NaN becomes 0, or with 64 bits on either side the value whose top bit alone is
// set (PTX ISA, cvt).
func floatToInt(v float64, to, from typ, mode rounding) uint64 {
	n := 8 * to.size()
	if v != v {
		if from == typF64 || to.wide() {
			return 1 << (n - 1)
		}
		return 0
	}
	v = roundIntegral(v, mode)
	if to.signed() {
		limit := math.Ldexp(1, n-1)
		switch {
		case v >= limit:
			return 1<<(n-1) - 1
		case v < -limit:
			return 1 << (n - 1)
		}
		return uint64(int64(v))
	}
	switch {
	case v <= 0:
		return 0
	case v >= math.Ldexp(1, n):
		return ^uint64(0) >> (64 - n)
	case v >= 1<<63:
		return uint64(v-1<<63) + 1<<63
	}
	return uint64(v)
}

func signExtend(x uint64, size int) int64 { return int64(x<<(64-8*size)) >> (64 - 8*size) }

func zeroExtend(x uint64, size int) uint64 { return x << (64 - 8*size) >> (64 - 8*size) }

func convertInts(to, from typ, sat bool) func(uint64) uint64 {
	size, n := from.size(), 8*to.size()
	highest := ^uint64(0) >> (64 - n)
	if to.signed() {
		highest >>= 1
	}
	return func(x uint64) uint64 {
		if from.signed() {
			v := signExtend(x, size)
			if !sat {
				return uint64(v)
			}
			if v < 0 && !to.signed() {
				return 0
			}
			if v < 0 {
				return uint64(max(v, -int64(highest)-1))
			}
			return min(uint64(v), highest)
		}
		v := zeroExtend(x, size)
		if sat {
			v = min(v, highest)
		}
		return v
	}
}

func convertIntToFloat(to, from typ, mode rounding) (func(uint64) uint64, error) {
	size := from.size()
	encode, err := encoderOf(to, mode, false)
	if err != nil {
		return nil, err
	}
	bigModes := [...]big.RoundingMode{big.ToNearestEven, big.ToZero, big.ToNegativeInf, big.ToPositiveInf}
	return func(x uint64) uint64 {
		exact := new(big.Float).SetPrec(64)
		if from.signed() {
			v := signExtend(x, size)
			if abs64(v) < 1<<53 {
				return encode(float64(v))
			}
			exact.SetInt64(v)
		} else {
			v := zeroExtend(x, size)
			if v < 1<<53 {
				return encode(float64(v))
			}
			exact.SetUint64(v)
		}
		precision := map[typ]uint{typF32: 24, typF64: 53}[to]
		if precision == 0 {
			precision = 11
			if to == typBF16 {
				precision = 8
			}
		}
		v, _ := new(big.Float).SetMode(bigModes[mode]).SetPrec(precision).Set(exact).Float64()
		return encode(v)
	}, nil
}

// roundTF32 rounds to 10 bits of mantissa, in a float32's place.
func roundTF32(st *statement) (func(uint64) uint64, error) {
	away := st.has("rna")
	if !away && !st.has("rn") {
		return nil, errUnsupported
	}
	return func(x uint64) uint64 {
		b := uint32(x)
		if b&0x7f800000 == 0x7f800000 {
			if isNaN32(b) {
				return nan32
			}
			return x
		}
		if away {
			b += 0x1000
		} else {
			b += 0xfff + b>>13&1
		}
		return uint64(b &^ 0x1fff)
	}, nil
}
