// SPDX-License-Identifier: Apache-2.0

package rng

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func requireBijection(t require.TestingT, p *Perm) {
	seen := make([]bool, p.Len())
	for i := range p.Len() {
		x := p.At(i)
		if x < 0 || x >= p.Len() || seen[x] {
			require.Fail(t, "not a bijection", "n = %d: element %d is %d", p.Len(), i, x)
		}
		seen[x] = true
	}
}

func TestPermIsBijection(t *testing.T) {
	for n := range int64(2001) {
		requireBijection(t, NewPerm(uint64(n)%3, n))
	}
	for _, n := range []int64{5000, tableLimit - 1, tableLimit, tableLimit + 1, 257 * 257, 66049 + 1} {
		requireBijection(t, NewPerm(7, n))
	}
}

// The network itself is a bijection for every size, small ones included, where Perm uses the table.
func TestFeistelIsBijection(t *testing.T) {
	for n := int64(1); n <= 600; n++ {
		requireBijection(t, feistel(uint64(n), n))
	}
	rapid.Check(t, func(t *rapid.T) {
		requireBijection(t, feistel(rapid.Uint64().Draw(t, "key"), rapid.Int64Range(601, 5000).Draw(t, "n")))
	})
}

// feistel is NewPerm without the table.
func feistel(key uint64, n int64) *Perm {
	p := NewPerm(key, n+tableLimit)
	p.n, p.a = n, 1
	for int64(p.a*p.a) < n {
		p.a++
	}
	p.b = (uint64(n) + p.a - 1) / p.a
	return p
}

// For domains too large to enumerate: the network can be undone, so it is a bijection of [0, a·b), and a walk ends in
// [0, n).
func TestLargePermIsBijection(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := NewPerm(rapid.Uint64().Draw(t, "key"), rapid.Int64Range(tableLimit+1, 1<<62).Draw(t, "n"))
		require.GreaterOrEqual(t, p.a*p.b, uint64(p.n))
		require.Less(t, p.a*p.b-uint64(p.n), p.a)
		i := rapid.Int64Range(0, p.n-1).Draw(t, "i")
		x := p.At(i)
		require.True(t, x >= 0 && x < p.n)
		back := p.backward(uint64(x))
		for back >= uint64(p.n) {
			back = p.backward(back)
		}
		require.EqualValues(t, i, back)
	})
}

func (p *Perm) backward(x uint64) uint64 {
	l, r := x%p.a, x/p.a
	for round := uint64(feistelRounds); round > 0; round -= 2 {
		r = (r + p.b - p.round(round-1, l)%p.b) % p.b
		l = (l + p.a - p.round(round-2, r)%p.a) % p.a
	}
	return r*p.a + l
}

// All permutations of a small set come up equally often over the keys.
func TestSmallPermsAreUniform(t *testing.T) {
	for _, n := range []int{2, 3, 4} {
		counts := map[string]float64{}
		const keys = 24 * 500
		for key := range uint64(keys) {
			name := ""
			for _, x := range permutation(key, n) {
				name += string(rune('a' + x))
			}
			counts[name]++
		}
		kinds := 1
		for i := 2; i <= n; i++ {
			kinds *= i
		}
		require.Len(t, counts, kinds)
		var chi float64
		want := float64(keys) / float64(kinds)
		for _, c := range counts {
			chi += (c - want) * (c - want) / want
		}
		require.Less(t, chi, 60.) // at most 23 degrees of freedom: exceeded with probability 4e-5
	}
}

// A large permutation looks random: images of neighbours are spread, it has about one fixed point, and positions are
// uncorrelated with values.
func TestLargePermLooksRandom(t *testing.T) {
	const n = 100000
	var fixed, ascents, correlation float64
	for key := range uint64(8) {
		p := NewPerm(key, n)
		last := p.At(0)
		for i := range int64(n) {
			x := p.At(i)
			if x == i {
				fixed++
			}
			if x > last {
				ascents++
			}
			correlation += (float64(x)/n - 0.5) * (float64(i)/n - 0.5) * 12
			last = x
		}
	}
	require.InDelta(t, 8, fixed, 14)
	require.InDelta(t, 0.5, ascents/(8*n), 0.003)
	require.InDelta(t, 0, correlation/(8*n), 0.006)
}

func TestPermGolden(t *testing.T) {
	require.Equal(t, []int{2, 1, 6, 0, 7, 5, 4, 3}, permutation(42, 8))
	big := NewPerm(42, 1_000_000_007)
	require.Equal(t, []int64{772813127, 950701603, 8823951}, []int64{big.At(0), big.At(1), big.At(1_000_000_006)})
}

func TestPermMisuse(t *testing.T) {
	require.Panics(t, func() { NewPerm(1, -1) })
	require.Panics(t, func() { NewPerm(1, 0).At(0) })
	require.Panics(t, func() { NewPerm(1, 100000).At(100000) })
	require.Empty(t, permutation(1, 0))
}

func BenchmarkPermAt(b *testing.B) {
	p := NewPerm(1, 1<<30)
	for i := int64(0); b.Loop(); i++ {
		p.At(i % p.n)
	}
}

// permutation is NewPerm(key, n) as a slice.
func permutation(key uint64, n int) []int {
	p := NewPerm(key, int64(n))
	out := make([]int, n)
	for i := range out {
		out[i] = int(p.At(int64(i)))
	}
	return out
}
