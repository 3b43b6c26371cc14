// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Sizes in package blockwise: elements of a block, decades of a map.
const (
	block   = 256
	decades = 7
)

// Offsets of the fields of package blockwise's type numbers, in bytes. Slopes, offsets and zero are vectors of eight
// equal numbers.
const (
	offsets = 32 * decades // the slopes come before
	zero    = 2 * offsets
	middles = zero + 32
)

// lanes is the number of float32 in a vector.
const lanes = 8

// loop is a kernel that does whole blocks of 256 elements.
type loop struct {
	*build.Context
	blocks, codes, scales, x, numbers reg.GPVirtual
	magnitude, none, order            reg.VecVirtual // constants of quantize
}

// kernel begins a loop over blocks.
func kernel(c *build.Context, name, doc, signature string) *loop {
	c.Function(name)
	c.Doc(name + " " + doc)
	c.Pragma("noescape")
	c.SignatureExpr(signature)
	load := func(param string) reg.GPVirtual {
		r := c.GP64()
		c.Load(c.Param(param), r)
		return r
	}
	return &loop{Context: c, blocks: load("blocks"), codes: load("codes"), scales: load("scales"), x: load("x"),
		numbers: load("numbers")}
}

// end emits the end of a block and of the kernel.
func (l *loop) end() {
	l.Label("next")
	l.ADDQ(operand.Imm(4), l.scales)
	l.DECQ(l.blocks)
	l.JNE(operand.LabelRef("blocks"))
	l.VZEROUPPER()
	l.RET()
}

// inside emits a loop over the block by steps of so many elements, after which codes and x are at its end.
func (l *loop) inside(label string, step uint32, body func()) {
	n := l.GP64()
	l.MOVQ(operand.U32(block/step), n)
	l.Label(label)
	body()
	l.ADDQ(operand.U32(4*step), l.x)
	l.ADDQ(operand.U32(step), l.codes)
	l.DECQ(n)
	l.JNE(operand.LabelRef(label))
}

// at is a vector of x.
func (l *loop) at(i int) operand.Mem { return operand.Mem{Base: l.x, Disp: 4 * lanes * i} }

// number is a place in numbers.
func (l *loop) number(at int) operand.Mem { return operand.Mem{Base: l.numbers, Disp: at} }

func dequantize(c *build.Context) {
	l := kernel(c, "dequantizeAVX2", "writes x[i] = numbers[codes[i]]·scale for blocks ≥ 1 of 256 elements.",
		"func(blocks int, codes *uint8, scales, x, numbers *float32)")
	l.Label("blocks")
	scale := l.YMM()
	l.VBROADCASTSS(operand.Mem{Base: l.scales}, scale)
	l.inside("elements", 4*lanes, func() {
		for i := range 4 {
			value := l.values(i)
			l.VMULPS(scale, value, value)
			l.VMOVUPS(value, l.at(i))
		}
	})
	l.end()
}

// values emits the numbers of vector i of codes. Eight loads are faster than a gather on Zen 3.
func (l *loop) values(i int) reg.VecVirtual {
	var halves [2]reg.VecVirtual
	for half := range halves {
		v := l.XMM()
		for k := range lanes / 2 {
			code := l.GP32()
			l.MOVBLZX(operand.Mem{Base: l.codes, Disp: lanes*i + lanes/2*half + k}, code)
			from := operand.Mem{Base: l.numbers, Index: code.As64(), Scale: 4}
			if k == 0 {
				l.VMOVSS(from, v)
			} else {
				l.VINSERTPS(operand.U8(k<<4), from, v, v)
			}
		}
		halves[half] = v
	}
	v := l.YMM()
	l.VINSERTF128(operand.U8(1), halves[1], halves[0].AsY(), v)
	return v
}

func quantize(c *build.Context) {
	l := kernel(c, "quantizeAVX2", "writes the code of each x[i] and the scale of each of blocks ≥ 1 of 256 elements.",
		"func(blocks int, codes *uint8, scales, x, numbers *float32)")
	l.constants()
	l.Label("blocks")
	most := l.largest()
	bits := l.GP32()
	l.VMOVD(most, bits)
	l.MOVL(bits, operand.Mem{Base: l.scales})
	l.CMPL(bits, operand.U32(math.Float32bits(float32(math.Inf(1)))))
	l.JGE(operand.LabelRef("infinite"))
	l.TESTL(bits, bits)
	l.JNE(operand.LabelRef("scaled"))
	l.MOVL(operand.U32(math.Float32bits(1)), bits)
	l.Label("scaled")
	scale := l.YMM()
	l.VMOVD(bits, scale.AsX())
	l.VPBROADCASTD(scale.AsX(), scale)
	l.inside("elements", 4*lanes, func() {
		var codes [4]reg.VecVirtual
		for i := range codes {
			codes[i] = l.encode(i, scale)
		}
		l.pack(codes)
	})
	l.JMP(operand.LabelRef("next"))

	l.Label("infinite")
	last := l.YMM()
	l.VPCMPEQD(last, last, last)
	for i := range block / 32 {
		l.VMOVDQU(last, operand.Mem{Base: l.codes, Disp: 32 * i})
	}
	l.ADDQ(operand.U32(4*block), l.x)
	l.ADDQ(operand.U32(block), l.codes)
	l.end()
}

// constants emits the vectors that all blocks need.
func (l *loop) constants() {
	l.magnitude, l.none, l.order = l.YMM(), l.YMM(), l.YMM()
	l.VPCMPEQD(l.magnitude, l.magnitude, l.magnitude)
	l.VPSRLD(operand.Imm(1), l.magnitude, l.magnitude)
	l.VPXOR(l.none, l.none, l.none)
	order := l.StaticGlobal("order")
	l.DataAttributes(attr.RODATA | attr.NOPTR)
	for _, i := range []uint32{0, 4, 1, 5, 2, 6, 3, 7} { // packing has left the halves of vectors apart
		l.AppendDatum(operand.U32(i))
	}
	l.VMOVDQU(order, l.order)
}

// largest emits the largest magnitude of a block, as bits: those of a NaN are the largest.
func (l *loop) largest() reg.VecVirtual {
	var most [4]reg.VecVirtual
	for i := range block / lanes {
		m := &most[i%len(most)]
		if *m == nil {
			*m = l.YMM()
			l.VPAND(l.at(i), l.magnitude, *m)
			continue
		}
		v := l.YMM()
		l.VPAND(l.at(i), l.magnitude, v)
		l.VPMAXSD(v, *m, *m)
	}
	l.VPMAXSD(most[1], most[0], most[0])
	l.VPMAXSD(most[3], most[2], most[2])
	l.VPMAXSD(most[2], most[0], most[0])
	half := l.XMM()
	l.VEXTRACTI128(operand.Imm(1), most[0], half)
	low := most[0].AsX()
	for _, order := range []uint64{0x4e, 0xb1} {
		l.VPMAXSD(half, low, low)
		l.VPSHUFD(operand.Imm(order), low, half)
	}
	l.VPMAXSD(half, low, half)
	return half
}

// encode emits the codes of vector i of x, as int32. Numbers lie evenly in each decade, so the least of the decades'
// lines is the code of the magnitude or one less; which of both, the middle of two numbers says.
func (l *loop) encode(i int, scale reg.VecVirtual) reg.VecVirtual {
	v, a, least := l.YMM(), l.YMM(), l.YMM()
	l.VMOVUPS(l.at(i), v)
	l.VDIVPS(scale, v, v)
	l.VPAND(l.magnitude, v, a)
	for d := range decades {
		line := least
		if d > 0 {
			line = l.YMM()
		}
		l.VMOVUPS(l.number(offsets+32*d), line)
		l.VFMADD231PS(l.number(32*d), a, line)
		if d > 0 {
			l.VMINPS(line, least, least)
		}
	}
	code, sign := l.YMM(), l.YMM()
	l.VCVTTPS2DQ(least, code)
	l.VPSRAD(operand.Imm(31), v, sign)
	l.VPXOR(sign, code, code) // −1−code of negative numbers
	l.VPADDD(l.number(zero), code, code)
	l.VPMAXSD(l.none, code, code)
	middle := l.gather(operand.Mem{Base: l.numbers, Index: code, Scale: 4, Disp: middles})
	const less = operand.U8(1)
	l.VCMPPS(less, middle, v, v)
	l.VPADDD(v, code, code)
	return code
}

// gather emits the reading of a vector from eight places.
func (l *loop) gather(from operand.Mem) reg.VecVirtual {
	mask, v := l.YMM(), l.YMM()
	l.VPXOR(v, v, v) // so that it waits for nothing
	l.VPCMPEQD(mask, mask, mask)
	l.VGATHERDPS(mask, from, v)
	return v
}

// pack emits the store of 32 codes.
func (l *loop) pack(codes [4]reg.VecVirtual) {
	l.VPACKUSDW(codes[1], codes[0], codes[0])
	l.VPACKUSDW(codes[3], codes[2], codes[2])
	l.VPACKUSWB(codes[2], codes[0], codes[0])
	l.VPERMD(codes[0], l.order, codes[0])
	l.VMOVDQU(codes[0], operand.Mem{Base: l.codes})
}
