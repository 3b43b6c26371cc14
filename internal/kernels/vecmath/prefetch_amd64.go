// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package vecmath

import "github.com/lockstep-ml/lockstep/internal/kernels"

// prefetchL1Mask masks the distances at which kernels prefetch to the first-level cache: all bits where that holds it
// beside the rows at work. Rows of 4 KiB and what is prefetched lie in the same sets, and where a set has eight lines
// one would drive out the other before it is used.
//
//lint:ignore U1000 the assembly reads it
var prefetchL1Mask = func() int {
	if kernels.L1Ways() > 8 {
		return -1
	}
	return 0
}()

// prefetchL2InsteadMask masks distances at which kernels prefetch to the second-level cache where they do not to the
// first.
//
//lint:ignore U1000 the assembly reads it
var prefetchL2InsteadMask = ^prefetchL1Mask

// prefetchFarMask masks distances at which kernels prefetch to the second-level cache where it is ample, since the
// third one tends to be far away then: a core that reads streams from there or from memory has fewer lines on their way
// by itself than would keep either busy. Where the third-level cache is near, processors prefetch far enough.
//
//lint:ignore U1000 the assembly reads it
var prefetchFarMask = func() int {
	if kernels.LargeL2() {
		return -1
	}
	return 0
}()

// prefetchRowMask masks distances at which kernels prefetch to the first-level cache unless they do to the second,
// where that is large.
//
//lint:ignore U1000 the assembly reads it
var prefetchRowMask = prefetchL1Mask &^ prefetchFarMask
