// SPDX-License-Identifier: Apache-2.0

package rng

import (
	"fmt"
	"math"
)

// tableLimit is the largest domain for which a permutation is stored; feistelRounds is how often a larger one is mixed.
// Both are part of what a key gives, and never change.
const (
	tableLimit    = 1 << 16
	feistelRounds = 8
)

// Perm is a pseudorandom permutation of 0 … n−1 that gives any of its elements in O(1) time and memory, so that a
// sampler over a billion samples can seek. It is safe for concurrent use.
//
// Up to n = 65536 it is a stored shuffle (Fisher and Yates; all permutations equally likely, as far as the key's 64
// bits allow). Above, it is a generalized Feistel network on pairs (l, r) with l < a, r < b, a·b ≥ n, a ≈ b ≈ √n, of
// eight rounds with Philox as the round function, and results ≥ n are walked on until they fall below n (Black and
// Rogaway: Ciphers with Arbitrary Finite Domains, 2002).
type Perm struct {
	n     int64
	table []uint16
	key   uint64
	a, b  uint64
}

// NewPerm returns the permutation of 0 … n−1 that belongs to key. It panics if n is negative.
func NewPerm(key uint64, n int64) *Perm {
	if n < 0 {
		panic(fmt.Sprintf("rng: permutation of %d elements: want 0 or more", n))
	}
	p := &Perm{n: n, key: Derive(key, "permutation", uint64(n))}
	if n <= tableLimit {
		p.table = shuffled(p.key, int(n))
		return p
	}
	p.a = uint64(math.Ceil(math.Sqrt(float64(n))))
	p.b = (uint64(n) + p.a - 1) / p.a
	return p
}

// shuffled returns 0 … n−1 in random order.
func shuffled(key uint64, n int) []uint16 {
	table := make([]uint16, n)
	for i := range table {
		table[i] = uint16(i)
	}
	s := NewStream(key)
	for i := n - 1; i > 0; i-- {
		j := s.Int64N(int64(i) + 1)
		table[i], table[j] = table[j], table[i]
	}
	return table
}

// Len returns n.
func (p *Perm) Len() int64 { return p.n }

// At returns element i of the permutation. It panics if i is not in [0, n).
func (p *Perm) At(i int64) int64 {
	if i < 0 || i >= p.n {
		panic(fmt.Sprintf("rng: element %d of a permutation of %d", i, p.n))
	}
	if p.table != nil {
		return int64(p.table[i])
	}
	x := p.forward(uint64(i))
	for x >= uint64(p.n) {
		x = p.forward(x)
	}
	return int64(x)
}

// forward is the Feistel network, a bijection of [0, a·b).
func (p *Perm) forward(x uint64) uint64 {
	l, r := x%p.a, x/p.a
	for round := uint64(0); round < feistelRounds; round += 2 {
		l = (l + p.round(round, r)%p.a) % p.a
		r = (r + p.round(round+1, l)%p.b) % p.b
	}
	return r*p.a + l
}

func (p *Perm) round(round, half uint64) uint64 { return At(p.key, round, half).Uint64(0) }
