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
	// lowest is the code of the smallest number of each cell, first of positive numbers: a cell has all numbers whose
	// upper 16 bits are equal, and at most one middle.
	lowest [2 * cells]uint8
}

// decades are the powers of 10 below 1 that a map has numbers of: 10⁻⁷ to 10⁻¹. Those of one are equally far apart.
const decades = 7

// numbers are what quantizing kernels read; their generator knows the layout.
type numbers struct {
	// slopes and offsets are of lines over magnitudes, one for each decade. The least of them, rounded down, is how
	// many middles between numbers from 0 on lie below a magnitude, or one less.
	slopes, offsets [decades][8]float32
	zero            [8]int32 // 1 and the code of 0
	// middles[i+1] lies between values i and i+1; numbers from there on are nearer to the latter.
	middles [257]float32
}

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
	middles := &m.numbers.middles
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
// between them. A middle between two decades lies between 0.13 and 0.2 above where the upper one's line is whole, and
// the last middle 0.25 below: so a line that is lowered by 0.225 is less than 1 below the count, and not above it.
func (m *Map) draw(signed bool) {
	const lowered = 0.225
	before, n := 0, 1
	if !signed {
		n = 2
	}
	for e := range decades {
		slope, offset := float64(n)/0.9*math.Pow10(decades-1-e), float64(before)+1-float64(n)/9-lowered
		for lane := range m.numbers.zero {
			m.numbers.slopes[e][lane], m.numbers.offsets[e][lane] = float32(slope), float32(offset)
		}
		before, n = before+n, 2*n
	}
	for lane := range m.numbers.zero {
		m.numbers.zero[lane] = int32(m.search(0)) + 1
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
	for m.numbers.middles[i+1] <= x {
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
		middle := m.numbers.middles[int(code)+1]
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
