//go:build !noasm

package kernels

// cpuid executes the instruction of that name.
//
//go:noescape
func cpuid(leaf, subleaf uint32) (eax, ebx, ecx, edx uint32)

// Leaves of cpuid that describe caches, in the same form: Intel's, and AMD's.
const (
	cachesIntel = 0x4
	cachesAMD   = 0x8000001d
)

// firstCacheWays asks the processor; 0 means that it does not say.
func firstCacheWays() int {
	for _, leaf := range []uint32{cachesAMD, cachesIntel} {
		if highest, _, _, _ := cpuid(leaf&^0xffff, 0); highest < leaf {
			continue
		}
		for cache := range uint32(8) {
			eax, ebx, _, _ := cpuid(leaf, cache)
			const none, instructions = 0, 2
			kind, level := eax&31, eax>>5&7
			if kind == none {
				break
			}
			if level == 1 && kind != instructions {
				return int(ebx>>22) + 1
			}
		}
	}
	return 0
}
