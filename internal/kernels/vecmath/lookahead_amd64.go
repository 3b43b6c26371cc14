//go:build !noasm

package vecmath

import "github.com/lockstep-ml/lockstep/internal/kernels"

// lookahead masks the distances at which kernels ask for memory: all bits where the first cache holds it beside the rows at work. Rows of 4 KiB and what is asked for
// lie in the same sets, and where a set has eight lines one would drive out the other before it is used.
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
