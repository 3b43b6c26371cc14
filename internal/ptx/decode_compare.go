// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"fmt"
	"math"
	"math/bits"
)

// unsignedNames are the other spellings of unsigned comparisons.
var unsignedNames = map[string]string{"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}

// comparison finds the function that compares two operands of a type.
func (l *linker) comparison(name string, t typ, ftz bool, x, y *operand) (compare, error) {
	if n, ok := unsignedNames[name]; ok {
		name = n
	}
	class := classOf(t)
	a, err := l.source(x, class)
	if err != nil {
		return nil, err
	}
	b, err := l.source(y, class)
	if err != nil {
		return nil, err
	}
	switch {
	case t == typF16:
		return compareHalves(name, formatF16, a, b)
	case t == typBF16:
		return compareHalves(name, formatBF16, a, b)
	case t == typF32 && ftz:
		return compareFlushed(name, a, b)
	}
	key := name + "." + t.String()
	if !t.float() && (!t.signed() || name == "eq" || name == "ne") {
		key = name + ".u32"
		if t.wide() {
			key = name + ".u64"
		}
	}
	op, ok := compareTable[key]
	if !ok {
		return nil, errUnsupported
	}
	return op.build(a, b), nil
}

// compareHalves compares 16-bit floats by way of float64.
func compareHalves(name string, f format, a, b int) (compare, error) {
	return compareLanes(name, a, b, func(v uint32) float64 { return f.decode(v & 0xffff) })
}

func compareFlushed(name string, a, b int) (compare, error) {
	return compareLanes(name, a, b, func(v uint32) float64 { return float64(f32(ftz32(v))) })
}

func compareLanes(name string, a, b int, value func(uint32) float64) (compare, error) {
	test := orders[name]
	if test == nil {
		return nil, errUnsupported
	}
	return func(w *warp) uint32 {
		w.need32(a)
		w.need32(b)
		r := uint32(0)
		for l := w.mask; l != 0; l &= l - 1 {
			i := bits.TrailingZeros32(l) & 31
			if test(value(w.r32[a][i]), value(w.r32[b][i])) {
				r |= 1 << i
			}
		}
		return r
	}, nil
}

func unordered(x, y float64) bool { return x != x || y != y }

var orders = map[string]func(x, y float64) bool{
	"eq":  func(x, y float64) bool { return x == y },
	"ne":  func(x, y float64) bool { return x != y && !unordered(x, y) },
	"lt":  func(x, y float64) bool { return x < y },
	"le":  func(x, y float64) bool { return x <= y },
	"gt":  func(x, y float64) bool { return x > y },
	"ge":  func(x, y float64) bool { return x >= y },
	"equ": func(x, y float64) bool { return x == y || unordered(x, y) },
	"neu": func(x, y float64) bool { return x != y },
	"ltu": func(x, y float64) bool { return x < y || unordered(x, y) },
	"leu": func(x, y float64) bool { return x <= y || unordered(x, y) },
	"gtu": func(x, y float64) bool { return x > y || unordered(x, y) },
	"geu": func(x, y float64) bool { return x >= y || unordered(x, y) },
	"num": func(x, y float64) bool { return !unordered(x, y) },
	"nan": unordered,
}

var combinations = map[string]func(x, y uint32) uint32{
	"and": func(x, y uint32) uint32 { return x & y },
	"or":  func(x, y uint32) uint32 { return x | y },
	"xor": func(x, y uint32) uint32 { return x ^ y },
}

// decodeCompare does setp.cmp{.bool}.type p|q, a, b{, c} and set.cmp{.bool}.dtype.stype d, a, b{, c}.
func (l *linker) decodeCompare(st *statement) (exec, error) {
	var combine func(x, y uint32) uint32
	var types []typ
	for _, m := range st.mods[1:] {
		if f := combinations[m]; f != nil {
			combine = f
		}
		if t := typNames[m]; t != typNone {
			types = append(types, t)
		}
	}
	want, kinds := 3, 1
	if combine != nil {
		want = 4
	}
	if st.op == "set" {
		kinds = 2
	}
	if len(st.args) != want || len(types) != kinds {
		return nil, fmt.Errorf("%d operands and %d types: want %d and %d", len(st.args), len(types), want, kinds)
	}
	if t := types[kinds-1]; st.op == "set" && combine == nil && t.half() {
		return l.decodeSetHalf(st, types[0], t)
	}
	c, err := l.comparison(st.mods[0], types[kinds-1], st.has("ftz"), &st.args[1], &st.args[2])
	if err != nil {
		return nil, err
	}
	third, not := -1, false
	if combine != nil {
		if third, err = l.source(&st.args[3], 'P'); err != nil {
			return nil, err
		}
		not = st.args[3].not
	}
	if st.op == "set" {
		return l.decodeSet(st, types[0], func(w *warp) uint32 {
			v := c(w)
			if combine != nil {
				v = combine(v, w.predicate(third, not))
			}
			return v
		})
	}
	p, err := l.register(&st.args[0], 'P')
	if err != nil {
		return nil, err
	}
	q := -1
	if o := st.args[0].second; o != nil {
		if q, err = l.register(o, 'P'); err != nil {
			return nil, err
		}
	}
	if combine == nil && q < 0 {
		return func(w *warp) { w.setP(p, c(w)) }, nil
	}
	return func(w *warp) {
		v := c(w)
		first, second := v, ^v
		if combine != nil {
			o := w.predicate(third, not)
			first, second = combine(v, o), combine(^v, o)
		}
		w.setP(p, first)
		if q >= 0 {
			w.setP(q, second)
		}
	}, nil
}

func (l *linker) decodeSet(st *statement, t typ, c compare) (exec, error) {
	yes := uint32(fullMask)
	switch {
	case t == typF32:
		yes = math.Float32bits(1)
	case t.size() != 4 || t.float():
		return nil, errUnsupported
	}
	d, err := l.register(&st.args[0], 'R')
	return func(w *warp) {
		v := c(w)
		for l := w.mask; l != 0; l &= l - 1 {
			i := bits.TrailingZeros32(l) & 31
			w.r32[d][i] = yes & -(v >> i & 1)
		}
		w.d32[d] |= w.mask
	}, err
}

// decodeSetHalf does set of 16-bit floats and pairs of them.
func (l *linker) decodeSetHalf(st *statement, to, from typ) (exec, error) {
	f, yes := formatF16, uint32(0x3c00)
	if from == typBF16 || from == typBF16x2 {
		f, yes = formatBF16, 0x3f80
	}
	switch {
	case !to.float() && to.size() == from.size():
		yes = 0xffff
	case from == typF16 || from == typBF16:
		if to.size() == 4 && !to.float() {
			yes = fullMask
		} else if to != from {
			return nil, errUnsupported
		}
	case to != from:
		return nil, errUnsupported
	}
	test := orders[st.mods[0]]
	if test == nil {
		return nil, errUnsupported
	}
	ftz := st.has("ftz")
	return l.halves(st, from, 3, func(x, y, _ uint32) uint32 {
		if test(f.decode(f.flush(x, ftz)), f.decode(f.flush(y, ftz))) {
			return yes
		}
		return 0
	})
}

// decodeTest does testp.
func (l *linker) decodeTest(st *statement) (exec, error) {
	t := typNames[st.mods[len(st.mods)-1]]
	if t != typF32 && t != typF64 || len(st.mods) != 2 {
		return nil, errUnsupported
	}
	d, s, err := l.operandsOf(st, "P"+string(classOf(t)))
	if err != nil {
		return nil, err
	}
	mantissa, exponent := uint64(1<<23-1), uint64(0xff<<23)
	if t == typF64 {
		mantissa, exponent = 1<<52-1, 0x7ff<<52
	}
	test := map[string]func(v uint64) bool{
		"finite":     func(v uint64) bool { return v&exponent != exponent },
		"infinite":   func(v uint64) bool { return v&exponent == exponent && v&mantissa == 0 },
		"number":     func(v uint64) bool { return v&exponent != exponent || v&mantissa == 0 },
		"notanumber": func(v uint64) bool { return v&exponent == exponent && v&mantissa != 0 },
		"normal":     func(v uint64) bool { return v&exponent != exponent && v&exponent != 0 },
		"subnormal":  func(v uint64) bool { return v&exponent == 0 && v&mantissa != 0 },
	}[st.mods[0]]
	if test == nil {
		return nil, errUnsupported
	}
	return func(w *warp) {
		if t == typF64 {
			w.need64(s[0])
		} else {
			w.need32(s[0])
		}
		r := uint32(0)
		for l := w.mask; l != 0; l &= l - 1 {
			i := bits.TrailingZeros32(l) & 31
			v := uint64(0)
			if t == typF64 {
				v = w.r64[s[0]][i]
			} else {
				v = uint64(w.r32[s[0]][i])
			}
			if test(v) {
				r |= 1 << i
			}
		}
		w.setP(d, r)
	}, nil
}
