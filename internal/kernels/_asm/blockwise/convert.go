// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// block is the number of elements of a block.
const block = 256

// Offsets of the fields of package blockwise's type numbers, in bytes.
const (
	lasts   = 0
	slopes  = 32
	offsets = 64
	caps    = 96
	zero    = 128
)

// Of package blockwise: regions begin a ratio of about 2^(407/128) apart, and a line has so many bits of fraction.
const (
	firstKey = 13609
	keyScale = 1<<16/407 + 1
	fraction = 12
)

// lanes is the number of float32 in a vector.
const lanes = 8

// loop is a kernel that does whole blocks of 256 elements.
type loop struct {
	*build.Context
	blocks, codes, scales, x, numbers reg.GPVirtual
	magnitude, order                  reg.VecVirtual // constants of quantize
	lasts, slopes, offsets, caps      reg.VecVirtual
	equal                             map[uint32]operand.Mem // see bits
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
		numbers: load("numbers"), equal: map[uint32]operand.Mem{}}
}

// end emits the end of a block and of the kernel.
func (l *loop) end() {
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
	l := kernel(c, "quantizeAVX2", "writes the scale of each of blocks ≥ 1 of 256 elements and the code of each x[i]. "+
		"Bit k of unsure[b] is set where the codes of 32 elements, from 32·k of block b, may be one off.",
		"func(blocks int, codes *uint8, scales, x, numbers *float32, unsure *uint8)")
	unsure := l.GP64()
	l.Load(l.Param("unsure"), unsure)
	l.constants()
	l.Label("blocks")
	most := l.largest()
	bits, groups := l.GP32(), l.GP32()
	l.XORL(groups, groups)
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
		var counts [4]reg.VecVirtual
		var nearest reg.VecVirtual
		for i := range counts {
			fixed, v := l.line(i, scale)
			counts[i] = l.YMM()
			l.VPSRLD(operand.Imm(fraction), fixed, counts[i])
			l.VPSIGND(v, counts[i], counts[i])
			l.VPAND(l.bits(1<<fraction-2), fixed, fixed)
			if nearest == nil {
				nearest = fixed
			} else {
				l.VPMINUD(fixed, nearest, nearest)
			}
		}
		l.pack(counts)
		l.unsure(nearest, groups)
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
	l.Label("next")
	l.MOVB(groups.As8(), operand.Mem{Base: unsure})
	l.INCQ(unsure)
	l.end()
}

// constants emits the vectors that all blocks need.
func (l *loop) constants() {
	l.magnitude, l.order = l.YMM(), l.YMM()
	l.VPCMPEQD(l.magnitude, l.magnitude, l.magnitude)
	l.VPSRLD(operand.Imm(1), l.magnitude, l.magnitude)
	order := l.StaticGlobal("order")
	l.DataAttributes(attr.RODATA | attr.NOPTR)
	for _, i := range []uint32{0, 4, 1, 5, 2, 6, 3, 7} { // packing has left the halves of vectors apart
		l.AppendDatum(operand.U32(i))
	}
	l.VMOVDQU(order, l.order)
	table := func(at int) reg.VecVirtual {
		v := l.YMM()
		l.VMOVUPS(l.number(at), v)
		return v
	}
	l.lasts, l.slopes, l.offsets, l.caps = table(lasts), table(slopes), table(offsets), table(caps)
}

// bits is a vector of eight equal numbers.
func (l *loop) bits(n uint32) operand.Mem {
	if m, ok := l.equal[n]; ok {
		return m
	}
	m := l.StaticGlobal(fmt.Sprintf("equal%d", n))
	l.DataAttributes(attr.RODATA | attr.NOPTR)
	for range lanes {
		l.AppendDatum(operand.U32(n))
	}
	l.equal[n] = m
	return m
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

// line emits how many middles between numbers from 0 on are at most the magnitude of vector i of x over the scale, with
// bits of fraction, and the quotient. Numbers lie evenly in each region, so that is a line there; see numbers.
func (l *loop) line(i int, scale reg.VecVirtual) (fixed, v reg.VecVirtual) {
	a, region := l.YMM(), l.YMM()
	v, fixed = l.YMM(), l.YMM()
	l.VMOVUPS(l.at(i), v)
	l.VDIVPS(scale, v, v)
	l.VPAND(l.magnitude, v, a)

	// The logarithm of the magnitude, which its bits are roughly, says the region, or the one below it.
	l.VPSRLD(operand.Imm(16), a, region)
	l.VPSUBUSW(l.bits(firstKey), region, region)
	l.VPMULHUW(l.bits(keyScale), region, region)
	beyond, last := l.YMM(), l.YMM()
	l.VPSRAD(operand.Imm(31), v, beyond) // a negative number may lie on a middle, and is not beyond it
	l.VPADDD(a, beyond, beyond)
	l.VPERMD(l.lasts, region, last)
	l.VPCMPGTD(last, beyond, beyond)
	l.VPSUBD(beyond, region, region)

	offset := l.YMM()
	l.VPERMPS(l.slopes, region, fixed)
	l.VPERMPS(l.offsets, region, offset)
	l.VFMADD213PS(offset, a, fixed)
	l.VPERMPS(l.caps, region, offset)
	l.VMINPS(offset, fixed, fixed)
	l.VCVTTPS2DQ(fixed, fixed)
	return fixed, v
}

// unsure shifts a bit into groups from above: whether a fraction is next to a whole number.
func (l *loop) unsure(nearest reg.VecVirtual, groups reg.GPVirtual) {
	none, some := l.YMM(), l.GP32()
	l.VPXOR(none, none, none)
	l.VPCMPEQD(none, nearest, nearest)
	l.VMOVMSKPS(nearest, some)
	l.NEGL(some) // sets the carry if some is not 0
	l.RCRB(operand.Imm(1), groups.As8())
}

// pack emits the store of 32 codes.
func (l *loop) pack(counts [4]reg.VecVirtual) {
	for i := 0; i < len(counts); i += 2 {
		l.VPACKSSDW(counts[i+1], counts[i], counts[i])
		l.VPADDW(l.number(zero), counts[i], counts[i])
	}
	l.VPACKUSWB(counts[2], counts[0], counts[0])
	l.VPERMD(counts[0], l.order, counts[0])
	l.VMOVDQU(counts[0], operand.Mem{Base: l.codes})
}
