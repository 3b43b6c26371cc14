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

// NewStream returns the stream of key, at its start.
func NewStream(key uint64) *Stream { return &Stream{key: key} }

// Uint64 returns the next 64 random bits.
func (s *Stream) Uint64() uint64 {
	if s.drawn%2 == 0 {
		s.block = At(s.key, 0, s.drawn/2)
	}
	x := s.block.Uint64(int(s.drawn % 2))
	s.drawn++
	return x
}

// Float64 returns the next uniform number in [0, 1), a multiple of 2⁻⁵³.
func (s *Stream) Float64() float64 { return Unit64(s.Uint64()) }

// Int64N returns a uniform integer in [0, n) without bias, by the multiply-shift method of Lemire (Fast Random Integer
// Generation in an Interval, 2019): the high word of x·n, rejected while the low word is below 2⁶⁴ mod n. It panics if
// n < 1.
func (s *Stream) Int64N(n int64) int64 {
	if n < 1 {
		panic(fmt.Sprintf("rng: bound of a random integer is %d: want at least 1", n))
	}
	high, low := bits.Mul64(s.Uint64(), uint64(n))
	if low < uint64(n) {
		for least := -uint64(n) % uint64(n); low < least; {
			high, low = bits.Mul64(s.Uint64(), uint64(n))
		}
	}
	return int64(high)
}
