// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package kernels

// Leaves of cpuid that describe caches, in the same form: Intel's, and AMD's.
const (
	cachesIntel = 0x4
	cachesAMD   = 0x8000001d
)

// dataCache asks the processor for the lines in a set of its data cache of that level, and for the bytes in all; 0
// means that it does not say.
func dataCache(level uint32) (ways, size int) {
	for _, leaf := range []uint32{cachesAMD, cachesIntel} {
		if highest, _, _, _ := cpuid(leaf&^0xffff, 0); highest < leaf {
			continue
		}
		for cache := range uint32(8) {
			eax, ebx, ecx, _ := cpuid(leaf, cache)
			const none, instructions = 0, 2
			kind := eax & 31
			if kind == none {
				break
			}
			if eax>>5&7 == level && kind != instructions {
				ways, partitions, line, sets := int(ebx>>22)+1, int(ebx>>12&0x3ff)+1, int(ebx&0xfff)+1, int(ecx)+1
				return ways, ways * partitions * line * sets
			}
		}
	}
	return 0, 0
}
