// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package vecmath

import "github.com/lockstep-ml/lockstep/internal/kernels"

// lookahead masks the distances at which kernels ask for memory: all bits where the first cache holds it beside the
// rows at work. Rows of 4 KiB and what is asked for lie in the same sets, and where a set has eight lines one would
// drive out the other before it is used.
//
//lint:ignore U1000 the assembly reads it
var lookahead = func() int {
	if kernels.FirstCacheWays() > 8 {
		return -1
	}
	return 0
}()

// lookaheadSecond masks distances at which kernels ask for memory where they do not ask for the first cache.
//
//lint:ignore U1000 the assembly reads it
var lookaheadSecond = ^lookahead

// lookaheadFar masks distances at which kernels ask for the second cache where it is ample, since a third one tends to
// be far away then: a core that reads streams from there or from memory has fewer lines on their way by itself than
// would keep either busy. Where the third cache is near, processors look ahead far enough.
//
//lint:ignore U1000 the assembly reads it
var lookaheadFar = func() int {
	if kernels.AmpleSecondCache() {
		return -1
	}
	return 0
}()

// lookaheadFirst masks distances at which kernels ask for the first cache unless they do for the second, where that is
// large.
//
//lint:ignore U1000 the assembly reads it
var lookaheadFirst = lookahead &^ lookaheadFar
