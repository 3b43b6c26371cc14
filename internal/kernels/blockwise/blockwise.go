// SPDX-License-Identifier: Apache-2.0

// Package blockwise stores float32 numbers in 8 bits: each block of 256 is divided by its largest magnitude, and each
// quotient becomes the nearest of 256 numbers of a fixed map (Dettmers et al. 2022, "8-bit Optimizers via Block-wise
// Quantization"). bitsandbytes and torchao store the state of optimizers in this way. All variants of the kernels give
// the same bits.
package blockwise

import (
	"math"
	"slices"
	"sync"
)

// Block is the number of elements that share a scale.
const Block = 256

// Blocks is the number of blocks of n elements; the last may be shorter.
func Blocks(n int) int { return (n + Block - 1) / Block }

// Map is a list of 256 ascending numbers in [-1, 1], with 0 and 1 among them.
type Map struct {
	values  [256]float32
	numbers numbers
	// middles[i+1] lies between values i and i+1; numbers from there on are nearer to the latter.
	middles [257]float32
	// lowest is the code of the smallest number of each cell, first of positive numbers: a cell has all numbers whose
	// upper 16 bits are equal, and at most one middle.
	lowest [2 * cells]uint8
}

// decades are the powers of 10 below 1 that a map has numbers of: 10⁻⁷ to 10⁻¹. Those of one are equally far apart.
const decades = 7

// numbers are what quantizing kernels read; their generator knows the layout. How many middles between numbers from 0
// on are at most a magnitude is a line over the magnitudes of a region, rounded down. A region is a decade, from the
// middle between its first number and the one before; the lowest begins at 0, and 1 is a region of its own.
type numbers struct {
	lasts [decades + 1]uint32 // the bits of the largest number before the next region
	// slopes and offsets are of the lines, times 1<<fraction; each ends at a cap.
	slopes, offsets, caps [decades + 1]float32
	zero                  [16]int16 // the code of 0
}

// Lines have so many bits behind the point. They are exact to less than the last of these, at float32's precision of
// middles, lines and magnitudes, and have one of it added: so next to a whole number no other of these bits is set.
const fraction = 12

// Cells begin at 2⁻²⁴, below which all numbers are nearest to 0, and reach beyond 1.
const (
	firstCell = (127 - 24) << 7
	cells     = 1 << 12
)

// Signed is bitsandbytes' create_dynamic_map(signed=True), and Unsigned that of False, which has no negative numbers.
var (
	Signed   = sync.OnceValue(func() *Map { return newMap(true) })
	Unsigned = sync.OnceValue(func() *Map { return newMap(false) })
)

func newMap(signed bool) *Map {
	var list []float32
	decade := 1e-6
	for exponent := range decades {
		n := 1 << exponent
		if !signed {
			n *= 2
		}
		bounds := linspace(n + 1)
		for i := range n {
			mean := (bounds[i] + bounds[i+1]) / 2
			list = append(list, float32(decade)*mean)
			if signed {
				list = append(list, -float32(decade)*mean)
			}
		}
		decade = math.Pow10(exponent - 5)
	}
	list = append(list, 0, 1)
	slices.Sort(list)
	m := &Map{values: [256]float32(list)}
	middles := &m.middles
	middles[0], middles[256] = float32(math.Inf(-1)), float32(math.Inf(1))
	for i := range 255 {
		middles[i+1] = (m.values[i] + m.values[i+1]) / 2
	}
	m.draw(signed)
	for cell := range cells {
		at := uint32(cell+firstCell) << 16
		m.lowest[cell] = m.search(math.Float32frombits(at))
		m.lowest[cells+cell] = m.search(math.Float32frombits(1<<31 | at | (1<<16 - 1)))
	}
	return m
}

// draw makes the lines. Decade e has the n numbers 10ᵉ(0.1 + 0.9(i+½)/n), with middles at i+1 = (x/10ᵉ − 0.1)·n/0.9
// between them. That of the lowest also goes through the middle between 0 and its first number.
func (m *Map) draw(signed bool) {
	const one = 1 << fraction
	zero := int(m.search(0))
	before, n := 0, 1
	if !signed {
		n = 2
	}
	first, second := float64(m.middles[zero+1]), float64(m.middles[zero+2])
	for e := range decades {
		slope, offset := float64(n)/0.9*math.Pow10(decades-1-e), float64(before)+1-float64(n)/9
		switch {
		case e > 0:
		case signed: // there is one middle
			slope, offset = 0.5/first, 0.5
		default:
			slope = 1 / (second - first)
			offset = 1 - slope*first
		}
		before, n = before+n, 2*n
		m.numbers.lasts[e] = math.Float32bits(m.middles[zero+before+1]) - 1
		m.numbers.slopes[e], m.numbers.offsets[e] = float32(one*slope), float32(one*offset+1)
		m.numbers.caps[e] = float32(one * (float64(before) + 0.5))
	}
	m.numbers.offsets[decades], m.numbers.caps[decades] = float32(one*(float64(before)+1.5)), float32(math.Inf(1))
	for lane := range m.numbers.zero {
		m.numbers.zero[lane] = int16(zero)
	}
}

// linspace is torch.linspace(0.1, 1, n) in float32.
func linspace(n int) []float32 {
	list := make([]float32, n)
	first, last := float32(0.1), float32(1)
	step := (last - first) / float32(n-1)
	for i := range list {
		if i < n/2 {
			list[i] = float32(float64(first) + float64(step)*float64(i)) // rounded once
		} else {
			list[i] = float32(float64(last) - float64(step)*float64(n-1-i))
		}
	}
	return list
}

// search is the code of x.
func (m *Map) search(x float32) uint8 {
	i := 0
	for m.middles[i+1] <= x {
		i++
	}
	return uint8(i)
}

// Values are the 256 numbers.
func (m *Map) Values() []float32 { return slices.Clone(m.values[:]) }

// Quantize writes the code of each element of x, and the scale of each block. A block of zeros has the scale 0. If
// numbers of a block are not finite, neither is its scale, and all codes are that of 1: nothing of it can be read back.
func (m *Map) Quantize(codes []uint8, scales, x []float32) {
	done := m.quantizeVector(codes, scales, x)
	for b := done; b < Blocks(len(x)); b++ {
		lo, hi := b*Block, min((b+1)*Block, len(x))
		most := uint32(0)
		for _, v := range x[lo:hi] {
			most = max(most, math.Float32bits(v)&0x7fffffff)
		}
		scale := math.Float32frombits(most)
		scales[b] = scale
		switch {
		case most >= 0x7f800000:
			for i := range codes[lo:hi] {
				codes[lo+i] = 255
			}
		case scale == 0:
			m.encode(codes[lo:hi], x[lo:hi], 1)
		default:
			m.encode(codes[lo:hi], x[lo:hi], scale)
		}
	}
}

// encode is search for quotients in [-1, 1], without branches.
func (m *Map) encode(codes []uint8, x []float32, scale float32) {
	x = x[:len(codes)]
	for i := range codes {
		v := x[i] / scale
		bits := math.Float32bits(v)
		cell := max(int(bits&0x7fffffff>>16)-firstCell, 0)
		code := m.lowest[(cell|int(bits>>31)*cells)&(2*cells-1)]
		middle := m.middles[int(code)+1]
		codes[i] = code + uint8(^math.Float32bits(v-middle)>>31) // 1 if v is not below the middle
	}
}

// Dequantize writes the numbers that codes and scales stand for.
func (m *Map) Dequantize(x []float32, codes []uint8, scales []float32) {
	done := m.dequantizeVector(x, codes, scales)
	for b := done; b < Blocks(len(x)); b++ {
		lo, hi := b*Block, min((b+1)*Block, len(x))
		scale, in, out := scales[b], codes[lo:hi], x[lo:hi]
		for i, code := range in[:len(out)] {
			out[i] = m.values[code] * scale
		}
	}
}
