// SPDX-License-Identifier: Apache-2.0

package vecmath

import "math"

// PhiloxBlocks sets as many of dst as fill vectors to consecutive blocks of random bits and returns their number; 0
// under the generic variant. Block i is Philox4x32-10 (Salmon et al. 2011) of the 128-bit counter (block+i, position)
// under key, low words first: package rng's At, which is the generic version.
func PhiloxBlocks(dst [][4]uint32, key, position, block uint64) int {
	done := 0
	for done < len(dst) {
		n := min(len(dst)-done, stretch/4)
		b := block + uint64(done)
		if uint64(uint32(b))+uint64(n) > math.MaxUint32 { // the counter's second word changes on the way
			return done
		}
		m := philoxVector(n, &dst[done], uint32(b), uint32(b>>32), uint32(position), uint32(position>>32), uint32(key),
			uint32(key>>32))
		done += m
		if m < n {
			break
		}
	}
	return done
}

// Keep sets dst[i] = scale·x[i] where bits[i]>>8 ≥ threshold, else 0: dropout with rng.KeepThreshold and the random
// bits of each element. dst may be x.
func Keep(dst, x []float32, bits []uint32, threshold uint32, scale float32) {
	checkLengths(len(dst), len(x), len(bits))
	done := keepVector(len(dst), first(dst), first(x), first(bits), threshold-1, scale)
	for i := done; i < len(dst); i++ {
		v := scale * x[i]
		if bits[i]>>8 < threshold {
			v = 0
		}
		dst[i] = v
	}
}

// Hide sets dst[i] to the value where mask[i] is 0.
func Hide(dst []float32, mask []uint8, value float32) {
	checkLengths(len(dst), len(mask))
	done := hideVector(len(dst), first(dst), first(mask), value)
	for i := done; i < len(dst); i++ {
		if mask[i] == 0 {
			dst[i] = value
		}
	}
}
