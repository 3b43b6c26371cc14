// SPDX-License-Identifier: Apache-2.0

package rng

// Domain constants keep Key(x, s, n) and Derive(x, s, n) apart: fractional bits of √2 and √3.
const (
	domainKey    = 0x6A09E667F3BCC908
	domainDerive = 0xBB67AE8584CAA73B
	golden       = 0x9E3779B97F4A7C15
)

// Key returns the key for the random numbers of one use: seed is the run's seed, path the module's dotted path (or any
// other name of the use), ordinal tells several uses at the same path apart. The value is stable for ever.
func Key(seed uint64, path string, ordinal uint64) uint64 {
	return hash(domainKey, seed, path, ordinal)
}

// Derive returns a key below another key, for uses that are nested: name and ordinal as in Key. Derive(k, …) never
// equals Key(k, …) by construction but by chance of 2⁻⁶⁴.
func Derive(key uint64, name string, ordinal uint64) uint64 {
	return hash(domainDerive, key, name, ordinal)
}

// hash absorbs its arguments in words of 64 bits. The name is cut into little-endian words, the last padded by zeros;
// its length is absorbed too, so that the padding is unambiguous. Each step is a bijection of the state.
func hash(domain, a uint64, name string, b uint64) uint64 {
	h := absorb(domain, a)
	for rest := name; len(rest) > 0; {
		n := min(8, len(rest))
		var word uint64
		for i := range n {
			word |= uint64(rest[i]) << (8 * i)
		}
		h = absorb(h, word)
		rest = rest[n:]
	}
	h = absorb(h, uint64(len(name)))
	return absorb(h, b)
}

func absorb(h, word uint64) uint64 { return mix((h ^ word) + golden) }

// mix is the finalizer of SplitMix64 (Stafford's variant 13): a bijection in which every input bit reaches every output
// bit.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}
