// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Constants of Philox4x32 (Salmon et al. 2011).
const (
	philoxM0, philoxM1 = 0xD2511F53, 0xCD9E8D57
	philoxW0, philoxW1 = 0x9E3779B9, 0xBB67AE85
	philoxRounds       = 10
)

// order returns the memory operand with the numbers of the blocks in the lanes: lane 4q+i has block i·lanes/4 + q, so
// that interleaving the four words of each block leaves whole vectors in order.
func (g *generator) order() operand.Mem {
	m := g.StaticGlobal(fmt.Sprintf("order%d", g.lanes))
	g.DataAttributes(attr.RODATA | attr.NOPTR)
	for lane := range g.lanes {
		g.AppendDatum(operand.U32(lane%4*g.lanes/4 + lane/4))
	}
	return m
}

// philox emits the generator of package rng: one block per lane.
func (g *generator) philox() {
	words := []string{"c0", "c1", "c2", "c3", "k0", "k1"}
	g.kernel("philox", "dst[i] = Philox4x32-10 of the counter (c0+i, c1, c2, c3) under the key (k0, k1), c0+n ≤ 2³²",
		params([]param{{"dst", "[4]uint32", stream}}, typed(scalar, "uint32", words...)),
		func(l *loop) (step, end func()) {
			c0 := l.scalar("c0")
			l.VPADDD(l.order(), c0, c0)
			rest := map[string]reg.VecVirtual{}
			for _, w := range words[1:] {
				rest[w] = l.scalar(w)
			}
			var odd reg.OpmaskVirtual
			if l.wide() {
				odd = l.K()
				bits := l.GP32()
				l.MOVL(operand.U32(0xAAAA), bits)
				l.KMOVW(bits, odd)
			}
			return func() {
				x := [4]reg.VecVirtual{l.copied(c0), l.copied(rest["c1"]), l.copied(rest["c2"]), l.copied(rest["c3"])}
				k := [2]reg.VecVirtual{l.copied(rest["k0"]), l.copied(rest["k1"])}
				y, pairs, again := [4]reg.VecVirtual{}, l.GP32(), fmt.Sprint("rounds", l.part)
				for i := range y {
					y[i] = l.register()
				}
				l.MOVL(operand.U32(philoxRounds/2), pairs)
				l.Label(again)
				l.round(x, y, k, odd)
				l.round(y, x, k, odd)
				l.DECL(pairs)
				l.JNE(operand.LabelRef(again))
				l.storeBlocks(x)
				l.VPADDD(l.bits(uint32(l.lanes)), c0, c0)
			}, nil
		})
	g.kernel("keep", "dst[i] = scale·x[i] where bits[i]>>8 > below, else 0",
		params(streams("dst", "x"), typed(stream, "uint32", "bits"), typed(scalar, "uint32", "below"),
			scalars("scale")), func(l *loop) (step, end func()) {
			below, scale := l.scalar("below"), l.scalar("scale")
			return func() {
				x, bits := l.times(scale, "x"), l.load("bits")
				l.VPSRLD(operand.Imm(8), bits, bits)
				if l.wide() {
					mask := l.K()
					l.VPCMPGTD(below, bits, mask)
					l.VMOVAPS_Z(x, mask, x)
				} else {
					l.VPCMPGTD(below, bits, bits)
					l.VANDPS(bits, x, x)
				}
				l.store(x, "dst")
			}, nil
		})
	g.kernel("hide", "dst[i] = value where mask[i] is 0",
		params(streams("dst"), typed(stream, "uint8", "mask"), scalars("value")), func(l *loop) (step, end func()) {
			value, zero := l.scalar("value"), l.constant(0)
			return func() {
				x, mask := l.load("dst"), l.register()
				l.VPMOVZXBD(l.at("mask", 0), mask)
				if l.wide() {
					hidden := l.K()
					l.VPTESTNMD(mask, mask, hidden)
					l.VBLENDMPS(value, x, hidden, x)
				} else {
					l.VPCMPEQD(zero, mask, mask)
					l.VBLENDVPS(mask, value, x, x)
				}
				l.store(x, "dst")
			}, nil
		})
}

func (g *generator) copied(x reg.VecVirtual) reg.VecVirtual {
	y := g.register()
	g.VMOVUPS(x, y)
	return y
}

// round emits a round from x to y, and the keys of the next one.
func (l *loop) round(x, y [4]reg.VecVirtual, k [2]reg.VecVirtual, odd reg.OpmaskVirtual) {
	l.product(x[0], philoxM0, odd, y[2], y[3])
	l.product(x[2], philoxM1, odd, y[0], y[1])
	l.xor3(y[0], x[1], k[0])
	l.xor3(y[2], x[3], k[1])
	l.VPADDD(l.bits(philoxW0), k[0], k[0])
	l.VPADDD(l.bits(philoxW1), k[1], k[1])
}

// product emits the upper and lower words of x·m.
func (l *loop) product(x reg.VecVirtual, m uint32, odd reg.OpmaskVirtual, high, low reg.VecVirtual) {
	even, shifted := l.register(), l.register()
	l.VPSRLQ(operand.Imm(32), x, shifted)
	l.VPMULUDQ(l.bits(m), x, even)
	l.VPMULUDQ(l.bits(m), shifted, shifted) // of the odd lanes
	l.VPSRLQ(operand.Imm(32), even, high)
	l.VPSLLQ(operand.Imm(32), shifted, low)
	if l.wide() {
		l.VPBLENDMD(shifted, high, odd, high)
		l.VPBLENDMD(low, even, odd, low)
	} else {
		l.VPBLENDD(operand.U8(0xAA), shifted, high, high)
		l.VPBLENDD(operand.U8(0xAA), low, even, low)
	}
}

// xor3 emits x ^= y ^ z.
func (l *loop) xor3(x, y, z reg.VecVirtual) {
	if l.wide() {
		l.VPTERNLOGD(operand.U8(0x96), y, z, x)
		return
	}
	l.VPXOR(y, x, x)
	l.VPXOR(z, x, x)
}

// storeBlocks interleaves the words of the part's blocks, writes them, and moves on.
func (l *loop) storeBlocks(x [4]reg.VecVirtual) {
	var pairs [4]reg.VecVirtual
	for i := range pairs {
		pairs[i] = l.register()
	}
	l.VPUNPCKLDQ(x[1], x[0], pairs[0])
	l.VPUNPCKHDQ(x[1], x[0], pairs[1])
	l.VPUNPCKLDQ(x[3], x[2], pairs[2])
	l.VPUNPCKHDQ(x[3], x[2], pairs[3])
	for i := range 4 {
		y := l.register()
		if i%2 == 0 {
			l.VPUNPCKLQDQ(pairs[i/2+2], pairs[i/2], y)
		} else {
			l.VPUNPCKHQDQ(pairs[i/2+2], pairs[i/2], y)
		}
		l.VMOVUPS(y, operand.Mem{Base: l.pointers["dst"], Disp: 4 * l.lanes * i})
	}
	l.ADDQ(operand.U32(16*l.lanes), l.pointers["dst"])
}
