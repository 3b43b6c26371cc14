// SPDX-License-Identifier: Apache-2.0

// Lanes writes lanes_gen.go: for each instruction that works on every lane alone, a function that makes its loop over
// the 32 lanes of a warp. Go has no macros, and a call per lane costs more than most instructions.
//
//	go run ./_lanes > lanes_gen.go
package main

import (
	"bytes"
	"fmt"
	"go/format"
	"os"
	"strings"
)

// row is an instruction: its name in the decoder's table, the classes of its destination and sources (R: 32-bit
// registers, D: 64-bit) and the value of a lane, where x, y, z and u are the sources.
type row struct{ name, classes, value string }

func rows() []row {
	list := []row{
		{"mul.hi.u32", "RRR", "uint32(uint64(x) * uint64(y) >> 32)"},
		{"mul.hi.s32", "RRR", "uint32(int64(int32(x)) * int64(int32(y)) >> 32)"},
		{"mul.hi.u16", "RRR", "x * y >> 16"},
		{"mul.hi.s16", "RRR", "uint32(int32(int16(x))*int32(int16(y)))>>16"},
		{"mul.hi.u64", "DDD", "mulHigh(x, y)"},
		{"mul.hi.s64", "DDD", "mulHighSigned(x, y)"},
		{"mul.wide.u16", "RRR", "x * y"},
		{"mul.wide.s16", "RRR", "uint32(int32(int16(x)) * int32(int16(y)))"},
		{"mul.wide.u32", "DRR", "uint64(x) * uint64(y)"},
		{"mul.wide.s32", "DRR", "uint64(int64(int32(x)) * int64(int32(y)))"},
		{"mad.hi.u32", "RRRR", "uint32(uint64(x)*uint64(y)>>32) + z"},
		{"mad.hi.s32", "RRRR", "uint32(int64(int32(x))*int64(int32(y))>>32) + z"},
		{"mad.hi.u64", "DDDD", "mulHigh(x, y) + z"},
		{"mad.hi.s64", "DDDD", "mulHighSigned(x, y) + z"},
		{"mad.wide.u16", "RRRR", "x*y + z"},
		{"mad.wide.s16", "RRRR", "uint32(int32(int16(x))*int32(int16(y))) + z"},
		{"mad.wide.u32", "DRRD", "uint64(x)*uint64(y) + z"},
		{"mad.wide.s32", "DRRD", "uint64(int64(int32(x))*int64(int32(y))) + z"},
		{"mul24.lo.u32", "RRR", "(x & 0xffffff) * (y & 0xffffff)"},
		{"mul24.lo.s32", "RRR", "uint32(int32(x<<8) >> 8 * (int32(y<<8) >> 8))"},
		{"neg.b32", "RR", "-x"}, {"neg.b64", "DD", "-x"}, {"neg.b16", "RR", "-x & 0xffff"},
		{"abs.s32", "RR", "uint32(abs32(int32(x)))"}, {"abs.s64", "DD", "uint64(abs64(int64(x)))"},
		{"abs.s16", "RR", "uint32(abs32(int32(int16(x)))) & 0xffff"},
		{"sad.u32", "RRRR", "z + max(x, y) - min(x, y)"},
		{"sad.s32", "RRRR", "z + uint32(max(int32(x), int32(y))) - uint32(min(int32(x), int32(y)))"},
		{"not.b16", "RR", "^x & 0xffff"}, {"not.b32", "RR", "^x"}, {"not.b64", "DD", "^x"},
		{"cnot.b16", "RR", "isZero(x)"}, {"cnot.b32", "RR", "isZero(x)"}, {"cnot.b64", "DD", "isZero(x)"},
		{"shl.b16", "RRR", "x << y & 0xffff"}, {"shl.b32", "RRR", "x << y"}, {"shl.b64", "DDR", "x << y"},
		{"shr.u16", "RRR", "x >> y"}, {"shr.u32", "RRR", "x >> y"}, {"shr.u64", "DDR", "x >> y"},
		{"shr.s16", "RRR", "uint32(int32(int16(x))>>y) & 0xffff"}, {"shr.s32", "RRR", "uint32(int32(x) >> y)"},
		{"shr.s64", "DDR", "uint64(int64(x) >> y)"},
		{"shf.l.wrap.b32", "RRRR", "uint32((uint64(y)<<32 | uint64(x)) << (z & 31) >> 32)"},
		{"shf.l.clamp.b32", "RRRR", "uint32((uint64(y)<<32 | uint64(x)) << min(z, 32) >> 32)"},
		{"shf.r.wrap.b32", "RRRR", "uint32((uint64(y)<<32 | uint64(x)) >> (z & 31))"},
		{"shf.r.clamp.b32", "RRRR", "uint32((uint64(y)<<32 | uint64(x)) >> min(z, 32))"},
		{"bfe.u32", "RRRR", "uint32(bfe(uint64(x), y, z, 32, false))"},
		{"bfe.s32", "RRRR", "uint32(bfe(uint64(x), y, z, 32, true))"},
		{"bfe.u64", "DDRR", "bfe(x, y, z, 64, false)"}, {"bfe.s64", "DDRR", "bfe(x, y, z, 64, true)"},
		{"bfi.b32", "RRRRR", "uint32(bfi(uint64(x), uint64(y), z, u, 32))"},
		{"bfi.b64", "DDDRR", "bfi(x, y, z, u, 64)"},
		{"brev.b32", "RR", "bits.Reverse32(x)"}, {"brev.b64", "DD", "bits.Reverse64(x)"},
		{"popc.b32", "RR", "uint32(bits.OnesCount32(x))"}, {"popc.b64", "RD", "uint32(bits.OnesCount64(x))"},
		{"clz.b32", "RR", "uint32(bits.LeadingZeros32(x))"}, {"clz.b64", "RD", "uint32(bits.LeadingZeros64(x))"},
		{"bfind.u32", "RR", "uint32(bits.Len32(x) - 1)"},
		{"bfind.s32", "RR", "uint32(bits.Len32(x^uint32(int32(x)>>31)) - 1)"},
		{"bfind.u64", "RD", "uint32(bits.Len64(x) - 1)"},
		{"bfind.s64", "RD", "uint32(bits.Len64(x^uint64(int64(x)>>63)) - 1)"},
		{"bfind.shiftamt.u32", "RR", "shiftAmount(bits.Len32(x), 32)"},
		{"bfind.shiftamt.s32", "RR", "shiftAmount(bits.Len32(x^uint32(int32(x)>>31)), 32)"},
		{"bfind.shiftamt.u64", "RD", "shiftAmount(bits.Len64(x), 64)"},
		{"bfind.shiftamt.s64", "RD", "shiftAmount(bits.Len64(x^uint64(int64(x)>>63)), 64)"},
		{"prmt.b32", "RRRR", "prmt(x, y, z)"},
		{"lop3.b32", "RRRRR", "lop3(x, y, z, u)"},
		{"dp4a.u32.u32", "RRRR", "dot4(x, y, z, false, false)"}, {"dp4a.s32.s32", "RRRR", "dot4(x, y, z, true, true)"},
		{"dp4a.u32.s32", "RRRR", "dot4(x, y, z, false, true)"}, {"dp4a.s32.u32", "RRRR", "dot4(x, y, z, true, false)"},
		{"slct.b32.s32", "RRRR", "choose(int32(z) >= 0, x, y)"}, {"slct.b64.s32", "DDDR",
			"choose(int32(z) >= 0, x, y)"},
		{"slct.b32.f32", "RRRR", "choose(f32(z) >= 0, x, y)"}, {"slct.b64.f32", "DDDR", "choose(f32(z) >= 0, x, y)"},

		{"add.f32", "RRR", "b32(f32(x) + f32(y))"}, {"sub.f32", "RRR", "b32(f32(x) - f32(y))"},
		{"mul.f32", "RRR", "b32(f32(x) * f32(y))"}, {"fma.f32", "RRRR", "fma32(x, y, z)"},
		{"div.f32", "RRR", "b32(f32(x) / f32(y))"},
		{"min.f32", "RRR", "min32(x, y)"}, {"max.f32", "RRR", "max32(x, y)"},
		{"min.NaN.f32", "RRR", "minNaN32(x, y)"}, {"max.NaN.f32", "RRR", "maxNaN32(x, y)"},
		{"neg.f32", "RR", "x ^ sign32"}, {"abs.f32", "RR", "x &^ sign32"},
		{"copysign.f32", "RRR", "y&^sign32 | x&sign32"}, {"copysign.f64", "DDD", "y&^sign64 | x&sign64"},
		{"sqrt.f32", "RR", "b32(float32(math.Sqrt(float64(f32(x)))))"}, {"rcp.f32", "RR", "b32(1 / f32(x))"},
		{"ex2.approx.f32", "RR", "ex2(x)"}, {"ex2.approx.ftz.f32", "RR", "ftz32(ex2(ftz32(x)))"},
		{"lg2.approx.f32", "RR", "lg2(x)"}, {"lg2.approx.ftz.f32", "RR", "lg2(ftz32(x))"},
		{"rsqrt.approx.f32", "RR", "rsqrt(x)"}, {"rsqrt.approx.ftz.f32", "RR", "rsqrt(ftz32(x))"},
		{"sqrt.approx.f32", "RR", "b32(float32(math.Sqrt(float64(f32(x)))))"},
		{"sqrt.approx.ftz.f32", "RR", "b32(float32(math.Sqrt(float64(f32(ftz32(x))))))"},
		{"rcp.approx.f32", "RR", "b32(1 / f32(x))"}, {"rcp.approx.ftz.f32", "RR", "ftz32(b32(1 / f32(ftz32(x))))"},
		{"div.approx.f32", "RRR", "b32(f32(x) / f32(y))"},
		{"div.approx.ftz.f32", "RRR", "ftz32(b32(f32(ftz32(x)) / f32(ftz32(y))))"},
		{"sin.approx.f32", "RR", "sin32(x)"}, {"sin.approx.ftz.f32", "RR", "ftz32(sin32(ftz32(x)))"},
		{"cos.approx.f32", "RR", "cos32(x)"}, {"cos.approx.ftz.f32", "RR", "ftz32(cos32(ftz32(x)))"},
		{"tanh.approx.f32", "RR", "tanh32(x)"},
		{"add.f64", "DDD", "b64(f64(x) + f64(y))"}, {"sub.f64", "DDD", "b64(f64(x) - f64(y))"},
		{"mul.f64", "DDD", "b64(f64(x) * f64(y))"}, {"fma.f64", "DDDD", "b64(math.FMA(f64(x), f64(y), f64(z)))"},
		{"div.f64", "DDD", "b64(f64(x) / f64(y))"},
		{"min.f64", "DDD", "min64(x, y)"}, {"max.f64", "DDD", "max64(x, y)"},
		{"neg.f64", "DD", "x ^ sign64"}, {"abs.f64", "DD", "x &^ sign64"},
		{"sqrt.f64", "DD", "b64(math.Sqrt(f64(x)))"}, {"rcp.f64", "DD", "b64(1 / f64(x))"},

		{"cvt.u64.u32", "DR", "uint64(x)"}, {"cvt.s64.s32", "DR", "uint64(int64(int32(x)))"},
		{"cvt.u32.u64", "RD", "uint32(x)"},
		{"cvt.rn.f32.s32", "RR", "math.Float32bits(float32(int32(x)))"},
		{"cvt.rn.f32.u32", "RR", "math.Float32bits(float32(x))"},
		{"cvt.rn.f64.s32", "DR", "b64(float64(int32(x)))"}, {"cvt.rn.f64.u32", "DR", "b64(float64(x))"},
		{"cvt.f64.f32", "DR", "b64(float64(f32(x)))"}, {"cvt.rn.f32.f64", "RD", "b32(float32(f64(x)))"},
		{"cvt.rn.bf16.f32", "RR", "toBF16(x)"},
		{"cvt.rn.bf16x2.f32", "RRR", "toBF16(x)<<16 | toBF16(y)"},
	}
	for _, w := range []struct{ bits, class, mask string }{{"16", "R", " & 0xffff"}, {"32", "R", ""}, {"64", "D", ""}} {
		c := w.class
		s := func(v string) string { return fmt.Sprintf("int%s(%s)", w.bits, v) }
		back := "uint32"
		if c == "D" {
			back = "uint64"
		}
		list = append(list,
			row{"add.b" + w.bits, c + c + c, "(x + y)" + w.mask}, row{"sub.b" + w.bits, c + c + c, "(x - y)" + w.mask},
			row{"mul.lo.b" + w.bits, c + c + c, "x * y" + w.mask}, row{"mad.lo.b" + w.bits, c + c + c + c,
				"(x*y + z)" + w.mask},
			row{"and.b" + w.bits, c + c + c, "x & y"}, row{"or.b" + w.bits, c + c + c, "x | y"},
			row{"xor.b" + w.bits, c + c + c, "x ^ y"},
			row{"min.u" + w.bits, c + c + c, "min(x, y)"}, row{"max.u" + w.bits, c + c + c, "max(x, y)"},
			row{"min.s" + w.bits, c + c + c, back + "(min(" + s("x") + ", " + s("y") + "))" + w.mask},
			row{"max.s" + w.bits, c + c + c, back + "(max(" + s("x") + ", " + s("y") + "))" + w.mask},
			row{"div.u" + w.bits, c + c + c, "divide(x, y)" + w.mask},
			row{"rem.u" + w.bits, c + c + c, "remainder(x, y)"},
			row{"div.s" + w.bits, c + c + c, back + "(divide(" + s("x") + ", " + s("y") + "))" + w.mask},
			row{"rem.s" + w.bits, c + c + c, back + "(remainder(" + s("x") + ", " + s("y") + "))" + w.mask},
		)
	}
	return list
}

func comparisons() []row {
	var list []row
	orders := []struct{ name, sign string }{{"eq", "=="}, {"ne", "!="}, {"lt", "<"}, {"le", "<="}, {"gt", ">"},
		{"ge", ">="}}
	for _, t := range []struct{ name, class, cast string }{{"u32", "RR", ""}, {"s32", "RR", "int32"},
		{"s16", "RR", "int16"},
		{"u64", "DD", ""}, {"s64", "DD", "int64"}} {
		for _, o := range orders {
			if t.cast != "" && (o.name == "eq" || o.name == "ne") {
				continue // as the unsigned ones
			}
			list = append(list, row{o.name + "." + t.name, t.class, fmt.Sprintf("%s(x) %s %s(y)", t.cast, o.sign,
				t.cast)})
		}
	}
	for _, t := range []struct{ name, class string }{{"f32", "RR"}, {"f64", "DD"}} {
		for _, o := range orders {
			ordered := fmt.Sprintf("%s(x) %s %s(y)", t.name, o.sign, t.name)
			nan := fmt.Sprintf("isNaN%s(x) || isNaN%s(y)", t.name[1:], t.name[1:])
			if o.name == "ne" { // in PTX, ne is false if an operand is NaN
				list = append(list, row{"ne." + t.name, t.class, ordered + " && !(" + nan + ")"},
					row{"neu." + t.name, t.class, ordered})
				continue
			}
			list = append(list, row{o.name + "." + t.name, t.class, ordered},
				row{o.name + "u." + t.name, t.class, ordered + " || " + nan})
		}
		nan := fmt.Sprintf("isNaN%s(x) || isNaN%s(y)", t.name[1:], t.name[1:])
		list = append(list, row{"num." + t.name, t.class, "!(" + nan + ")"}, row{"nan." + t.name, t.class, nan})
	}
	return list
}

var letters = []string{"x", "y", "z", "u"}
var regs = []string{"a", "b", "c", "e"}

func file(class byte) (values, defined string) {
	if class == 'D' {
		return "r64", "d64"
	}
	return "r32", "d32"
}

func goName(prefix, name string) string {
	return prefix + strings.ReplaceAll(strings.ToUpper(name[:1])+name[1:], ".", "_")
}

// sources writes the check of definedness and the pointers to the sources.
func sources(b *bytes.Buffer, classes string) {
	b.WriteString("m := w.mask\nif ")
	for i, c := range []byte(classes) {
		_, defined := file(c)
		fmt.Fprintf(b, "w.%s[%s]&", defined, regs[i])
	}
	fmt.Fprintf(b, "m != m {\nw.undefined(%q", classes)
	for i := range classes {
		fmt.Fprintf(b, ", %s", regs[i])
	}
	b.WriteString(")\n}\n")
	for i, c := range []byte(classes) {
		values, _ := file(c)
		fmt.Fprintf(b, "px%d := &w.%s[%s]\n", i, values, regs[i])
	}
}

func loads(b *bytes.Buffer, n int) {
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(letters[i])
	}
	b.WriteString(" := ")
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(b, "px%d[i]", i)
	}
	b.WriteString("\n")
}

func parameters(n int) string {
	names := append([]string{"d"}, regs[:n]...)
	for len(names) < 5 {
		names = append(names, "_")
	}
	return strings.Join(names, ", ") + " int"
}

func main() {
	b := &bytes.Buffer{}
	b.WriteString("// Code generated by go run ./_lanes; DO NOT EDIT.\n\npackage ptx\n\nimport (\n\"math\"\n\"math/bits\"\n)\n\n")
	b.WriteString("var laneTable = map[string]laneOp{\n")
	for _, r := range rows() {
		fmt.Fprintf(b, "%q: {%q, %s},\n", r.name, r.classes, goName("lane", r.name))
	}
	b.WriteString("}\n\nvar compareTable = map[string]compareOp{\n")
	for _, r := range comparisons() {
		fmt.Fprintf(b, "%q: {%q, %s},\n", r.name, r.classes, goName("compare", r.name))
	}
	b.WriteString("}\n")
	for _, r := range rows() {
		n := len(r.classes) - 1
		values, defined := file(r.classes[0])
		fmt.Fprintf(b, "\nfunc %s(%s) exec {\nreturn func(w *warp) {\n", goName("lane", r.name), parameters(n))
		sources(b, r.classes[1:])
		fmt.Fprintf(b, "po := &w.%s[d]\nif m == fullMask {\nfor i := range po {\n", values)
		loads(b, n)
		fmt.Fprintf(b, "po[i] = %s\n}\n} else {\nfor l := m; l != 0; l &= l-1 {\ni := bits.TrailingZeros32(l)&31\n",
			r.value)
		loads(b, n)
		fmt.Fprintf(b, "po[i] = %s\n}\n}\nw.%s[d] |= m\n}\n}\n", r.value, defined)
	}
	for _, r := range comparisons() {
		n := len(r.classes)
		fmt.Fprintf(b, "\nfunc %s(a, b int) compare {\nreturn func(w *warp) uint32 {\n", goName("compare", r.name))
		sources(b, r.classes)
		b.WriteString("r := uint32(0)\nfor i := range 32 {\n")
		loads(b, n)
		fmt.Fprintf(b, "t := uint32(0)\nif %s {\nt = 1\n}\nr |= t << i\n}\nreturn r\n}\n}\n", r.value)
	}
	out, err := format.Source(b.Bytes())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Stdout.Write(b.Bytes())
		os.Exit(1)
	}
	if _, err := os.Stdout.Write(out); err != nil {
		os.Exit(1)
	}
}
