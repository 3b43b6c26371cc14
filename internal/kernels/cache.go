// SPDX-License-Identifier: Apache-2.0

package kernels

import "sync"

// L1Ways is the number of lines that a set of the first-level data cache holds: so many lines a multiple of 4 KiB
// apart, or of whatever its sets repeat after, are in it at the same time. 8 stands for a processor that does not say.
var L1Ways = sync.OnceValue(func() int {
	if ways, _ := dataCache(1); ways > 0 {
		return ways
	}
	return 8
})

// LargeL2 reports whether the second-level cache of a core has 2 MiB or more. It makes up for a third-level cache that
// is far away, from where a core gets lines too late unless they are prefetched, in long runs or many at a time. It is
// false for a processor that does not say.
var LargeL2 = sync.OnceValue(func() bool {
	_, size := dataCache(2)
	return size >= 2<<20
})
