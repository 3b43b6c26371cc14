// SPDX-License-Identifier: Apache-2.0

package rng

// Constants of Philox4x32 (Salmon et al. 2011, table 2): the multipliers of the two halves, and the Weyl increments of
// the key.
const (
	philoxM0 = 0xD2511F53
	philoxM1 = 0xCD9E8D57
	philoxW0 = 0x9E3779B9
	philoxW1 = 0xBB67AE85
)

// Block is the output of one call of the generator: 128 random bits.
type Block [4]uint32

// Philox encrypts the 128-bit counter (words c0 lowest to c3) under key with ten rounds of Philox4x32. The key's low
// word is the first key word of Random123, whose known answers the tests hold.
func Philox(key uint64, c0, c1, c2, c3 uint32) Block {
	k0, k1 := uint32(key), uint32(key>>32)
	for range 10 {
		p0, p1 := philoxM0*uint64(c0), philoxM1*uint64(c2)
		c0, c1, c2, c3 = uint32(p1>>32)^c1^k0, uint32(p1), uint32(p0>>32)^c3^k1, uint32(p0)
		k0 += philoxW0
		k1 += philoxW1
	}
	return Block{c0, c1, c2, c3}
}

// At returns block number block of the numbers at (key, position).
func At(key, position, block uint64) Block {
	return Philox(key, uint32(block), uint32(block>>32), uint32(position), uint32(position>>32))
}

// Uint64 joins the words 2·half and 2·half+1 of the block, the lower word first; half is 0 or 1.
func (b Block) Uint64(half int) uint64 {
	return uint64(b[2*half]) | uint64(b[2*half+1])<<32
}
