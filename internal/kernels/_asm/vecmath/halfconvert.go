// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/mmcloughlin/avo/operand"

// halves emits the conversions of bfloat16, the upper half of a float32, and of float16, which processors convert.
func (g *generator) halves() {
	g.kernel("widenF16", "dst[i] = the float16 src[i]", params(streams("dst"), typed(stream, "uint16", "src")),
		func(l *loop) (step, end func()) {
			return func() {
				x := l.register()
				l.VCVTPH2PS(l.at("src", 0), x)
				l.store(x, "dst")
			}, nil
		})
	g.kernel("roundF16", "dst[i] = src[i] rounded to float16, ties to even",
		params(typed(stream, "uint16", "dst"), streams("src")), func(l *loop) (step, end func()) {
			return func() {
				x := l.load("src")
				l.VCVTPS2PH(operand.Imm(0), x, l.at("dst", 0))
			}, nil
		})
	g.kernel("widenBF16", "dst[i] = the bfloat16 src[i]", params(streams("dst"), typed(stream, "uint16", "src")),
		func(l *loop) (step, end func()) {
			return func() {
				x := l.register()
				l.VPMOVZXWD(l.at("src", 0), x)
				l.VPSLLD(operand.Imm(16), x, x)
				l.store(x, "dst")
			}, nil
		})
	g.kernel("roundBF16", "dst[i] = src[i] rounded to bfloat16, ties to even",
		params(typed(stream, "uint16", "dst"), streams("src")), func(l *loop) (step, end func()) {
			return func() {
				x := l.load("src")
				y := l.register()
				l.VPSRLD(operand.Imm(16), x, y)
				quiet := l.register()
				odd := l.and(1, y)
				if l.wide() {
					l.VPORD(l.bits(0x40), y, quiet)
				} else {
					l.VPOR(l.bits(0x40), y, quiet)
				}
				l.VPADDD(x, odd, odd)
				l.VPADDD(l.bits(0x7fff), odd, odd)
				l.VPSRLD(operand.Imm(16), odd, odd)
				const unordered = operand.U8(3)
				if l.wide() {
					mask := l.K()
					l.VCMPPS(unordered, x, x, mask)
					l.VPBLENDMD(quiet, odd, mask, odd)
					l.VPMOVDW(odd, l.at("dst", 0))
					return
				}
				l.VCMPPS(unordered, x, x, x)
				l.VBLENDVPS(x, quiet, odd, odd)
				upper := l.XMM()
				l.VEXTRACTI128(operand.Imm(1), odd, upper)
				packed := l.XMM()
				l.VPACKUSDW(upper, odd.AsX(), packed)
				l.VMOVDQU(packed, l.at("dst", 0))
			}, nil
		})
}
