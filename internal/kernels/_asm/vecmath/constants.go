// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
)

// The numbers are those of the generic kernels in package vecmath, but for the exponential's; their tests would notice
// a difference.
const (
	expHigh = 89
	expLow  = -104
	// e^r = 1 + r + expSquare·r² + expCubic·r³ to 3e-8 for |r| ≤ ln2/16.
	expSquare = 0.5000648
	expCubic  = 0.16667777
	expMagic  = 0x1.8p20 // float32 has steps of an eighth there
	log2e     = 1.4426950408889634
	ln2High   = 0.693359375
	ln2Low    = -2.12194440e-4

	tanhSmall = 0.625

	geluA     = 1.59576912160573071175978423973752747390343452465714
	geluB     = geluA * 0.044715
	geluFlat  = 9.5
	halfRoot2 = 0.70710678118654752440
	density0  = 0.39894228040143267794
)

var (
	// powerPoly is 2^r for |r| ≤ ½, to 1e-7: a polynomial through 1 at 0 whose largest relative error is smallest.
	powerPoly = []float32{0.001326472032815218, 0.009671512991189957, 0.05550733581185341, 0.24022242426872253,
		0.6931470036506653, 1}
	tanhPoly = []float32{-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1}
	erfcPoly = []float32{4.2161197231393996e-05, -3.6601876943933578e-05, -0.00029938271215598886,
		0.00043067048843442703, 0.0015291571608313959,
		-0.0032434519180944226, -0.010751626186604314, 0.018221669428383245, 0.13973573352193064, 0.34358031871096567,
		0.51079135691594502}
)

func bitsOf(x float32) uint32 { return math.Float32bits(x) }

// constants hands out memory operands that hold one number in 8 lanes, which suffices for 16: see broadcast.
type constants struct {
	context *build.Context
	known   map[uint32]operand.Mem
	tables  map[string]operand.Mem
}

func newConstants(c *build.Context) *constants {
	return &constants{context: c, known: map[uint32]operand.Mem{}, tables: map[string]operand.Mem{}}
}

// bits returns the operand for a 32 bit pattern, and defines it at its first use.
func (t *constants) bits(pattern uint32) operand.Mem {
	if m, ok := t.known[pattern]; ok {
		return m
	}
	t.known[pattern] = t.global(fmt.Sprintf("x%08x", pattern), slices.Repeat([]uint32{pattern}, 8))
	return t.known[pattern]
}

// global defines words of 32 bits, an even number, and returns their operand.
func (t *constants) global(name string, words []uint32) operand.Mem {
	m := t.context.StaticGlobal(name)
	t.context.DataAttributes(attr.RODATA | attr.NOPTR)
	for i := 0; i < len(words); i += 2 {
		t.context.AppendDatum(operand.U64(uint64(words[i+1])<<32 | uint64(words[i])))
	}
	return m
}

// eighths returns the operand for 2^(j/8), j = 0 … 7.
func (t *constants) eighths() operand.Mem {
	const name = "eighths"
	if _, ok := t.tables[name]; !ok {
		var words []uint32
		for j := range 8 {
			words = append(words, bitsOf(float32(math.Exp2(float64(j)/8))))
		}
		t.tables[name] = t.global(name, words)
	}
	return t.tables[name]
}

// listed returns the operand for the coefficients of a function in pieces, a row for each power, and defines it at its
// first use.
func (t *constants) listed(name string, p *pieces) operand.Mem {
	if m, ok := t.tables[name]; ok {
		return m
	}
	var words []uint32
	for _, row := range p {
		for _, c := range row {
			words = append(words, bitsOf(c))
		}
	}
	t.tables[name] = t.global(name, words)
	return t.tables[name]
}
