// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// int8Blocks emits the kernels of blocks of 8-bit numbers that share one scale, of any length that is a multiple of 8.
func int8Blocks(c *build.Context) {
	largestMagnitude(c)
	quantizeInt8(c)
	fromInt8(c, "dequantizeInt8AVX2", "writes x[i] = scale·codes[i]", func(v reg.VecVirtual, to operand.Mem) {
		c.VMOVUPS(v, to)
	})
	fromInt8(c, "addInt8AVX2", "adds scale·codes[i], rounded, to x[i]", func(v reg.VecVirtual, to operand.Mem) {
		c.VADDPS(to, v, v)
		c.VMOVUPS(v, to)
	})
}

// function begins a kernel and returns its integer parameters.
func function(c *build.Context, name, doc, signature string, params ...string) (loaded []reg.GPVirtual) {
	c.Function(name)
	c.Doc(name + " " + doc)
	c.Pragma("noescape")
	c.SignatureExpr(signature)
	for _, param := range params {
		r := c.GP64()
		c.Load(c.Param(param), r)
		loaded = append(loaded, r)
	}
	return loaded
}

func largestMagnitude(c *build.Context) {
	r := function(c, "largestAVX2", "returns the bits of the largest magnitude of n ≥ 8 numbers, a multiple of 8. Those of a "+
		"NaN are larger than any.", "func(n int, x *float32) uint32", "n", "x")
	n, x := r[0], r[1]
	magnitude, most := c.YMM(), c.YMM()
	c.VPCMPEQD(magnitude, magnitude, magnitude)
	c.VPSRLD(operand.Imm(1), magnitude, magnitude)
	c.VPXOR(most, most, most)
	c.Label("numbers")
	v := c.YMM()
	c.VPAND(operand.Mem{Base: x}, magnitude, v)
	c.VPMAXSD(v, most, most)
	c.ADDQ(operand.Imm(4*lanes), x)
	c.SUBQ(operand.Imm(lanes), n)
	c.JNE(operand.LabelRef("numbers"))
	half, low := c.XMM(), most.AsX()
	c.VEXTRACTI128(operand.Imm(1), most, half)
	for _, order := range []uint64{0x4e, 0xb1} {
		c.VPMAXSD(half, low, low)
		c.VPSHUFD(operand.Imm(order), low, half)
	}
	c.VPMAXSD(half, low, low)
	bits := c.GP32()
	c.VMOVD(low, bits)
	c.VZEROUPPER()
	c.Store(bits, c.ReturnIndex(0))
	c.RET()
}

// quantizeInt8 divides in float64: a quotient of float32 may be rounded to the middle between two codes.
func quantizeInt8(c *build.Context) {
	r := function(c, "quantizeInt8AVX2", "writes the codes x[i]/scale, rounded to the nearest, for n ≥ 8 numbers, a "+
		"multiple of 8.", "func(n int, codes *uint8, x *float32, scale float64)", "n", "codes", "x")
	n, codes, x := r[0], r[1], r[2]
	scale, least := c.YMM(), c.XMM()
	c.Load(c.Param("scale"), scale.AsX())
	c.VBROADCASTSD(scale.AsX(), scale)
	limit := c.StaticGlobal("leastInt8")
	c.DataAttributes(attr.RODATA | attr.NOPTR)
	for range 2 {
		c.AppendDatum(operand.U64(0x8181818181818181)) // -127
	}
	c.VMOVDQU(limit, least)
	c.Label("numbers")
	var halves [2]reg.VecVirtual
	for i := range halves {
		v := c.YMM()
		halves[i] = c.XMM()
		c.VCVTPS2PD(operand.Mem{Base: x, Disp: 16 * i}, v)
		c.VDIVPD(scale, v, v)
		c.VCVTPD2DQY(v, halves[i])
	}
	c.VPACKSSDW(halves[1], halves[0], halves[0])
	c.VPACKSSWB(halves[0], halves[0], halves[0])
	c.VPMAXSB(least, halves[0], halves[0])
	c.VMOVQ(halves[0], operand.Mem{Base: codes})
	c.ADDQ(operand.Imm(4*lanes), x)
	c.ADDQ(operand.Imm(lanes), codes)
	c.SUBQ(operand.Imm(lanes), n)
	c.JNE(operand.LabelRef("numbers"))
	c.VZEROUPPER()
	c.RET()
}

// fromInt8 emits a kernel that stores what codes stand for.
func fromInt8(c *build.Context, name, doc string, store func(v reg.VecVirtual, to operand.Mem)) {
	r := function(c, name, doc+" for n ≥ 8 numbers, a multiple of 8.",
		"func(n int, x *float32, codes *uint8, scale float32)", "n", "x", "codes")
	n, x, codes := r[0], r[1], r[2]
	scale := c.YMM()
	c.Load(c.Param("scale"), scale.AsX())
	c.VBROADCASTSS(scale.AsX(), scale)
	c.Label("numbers")
	v := c.YMM()
	c.VPMOVSXBD(operand.Mem{Base: codes}, v)
	c.VCVTDQ2PS(v, v)
	c.VMULPS(scale, v, v)
	store(v, operand.Mem{Base: x})
	c.ADDQ(operand.Imm(4*lanes), x)
	c.ADDQ(operand.Imm(lanes), codes)
	c.SUBQ(operand.Imm(lanes), n)
	c.JNE(operand.LabelRef("numbers"))
	c.VZEROUPPER()
	c.RET()
}
