// SPDX-License-Identifier: Apache-2.0

package rng

import (
	"fmt"
	"math/bits"
)

// Stream draws the numbers of one key one after the other, where no natural index exists: token sampling, shuffles.
// Number i is Uint64At(key, 0, i), so that the whole state is the key and how many were drawn. It is a Source of
// math/rand/v2. It is not safe for concurrent use.
type Stream struct {
	key   uint64
	drawn uint64
	block Block // the block of number drawn, valid if drawn is odd
}

// NewStream gives the stream of key, at its start.
func NewStream(key uint64) *Stream { return &Stream{key: key} }

// Uint64 gives the next 64 random bits.
func (s *Stream) Uint64() uint64 {
	if s.drawn%2 == 0 {
		s.block = At(s.key, 0, s.drawn/2)
	}
	x := s.block.Uint64(int(s.drawn % 2))
	s.drawn++
	return x
}

// Float64 gives the next uniform number in [0, 1), a multiple of 2⁻⁵³.
func (s *Stream) Float64() float64 { return Unit64(s.Uint64()) }

// Int64N gives a uniform integer in [0, n) without bias. It panics if n < 1.
func (s *Stream) Int64N(n int64) int64 {
	return bounded(n, func(int) uint64 { return s.Uint64() })
}

// State gives all there is to the stream: its key, and how many numbers were drawn.
func (s *Stream) State() (key, drawn uint64) { return s.key, s.drawn }

// Seek sets the stream to where it is after drawn numbers, in O(1).
func (s *Stream) Seek(drawn uint64) {
	s.drawn = drawn
	if drawn%2 == 1 {
		s.block = At(s.key, 0, drawn/2)
	}
}

// Int64NAt gives the uniform integer in [0, n) of one element, without bias: bits that would bring a bias (with
// probability below n/2⁶⁴) are drawn again under a key derived from key. It panics if n < 1.
func Int64NAt(n int64, key, position, element uint64) int64 {
	return bounded(n, func(attempt int) uint64 {
		if attempt == 0 {
			return Uint64At(key, position, element)
		}
		return Uint64At(Derive(key, "again", uint64(attempt)), position, element)
	})
}

// bounded is the multiply-shift method of Lemire (Fast Random Integer Generation in an Interval, 2019): the high word
// of x·n, rejected while the low word is below 2⁶⁴ mod n.
func bounded(n int64, draw func(attempt int) uint64) int64 {
	if n < 1 {
		panic(fmt.Sprintf("rng: bound of a random integer is %d, want at least 1", n))
	}
	high, low := bits.Mul64(draw(0), uint64(n))
	if low < uint64(n) {
		least := -uint64(n) % uint64(n)
		for attempt := 1; low < least; attempt++ {
			high, low = bits.Mul64(draw(attempt), uint64(n))
		}
	}
	return int64(high)
}
