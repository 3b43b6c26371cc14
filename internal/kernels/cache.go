package kernels

import "sync"

// FirstCacheWays is the number of lines that a set of the first-level data cache holds: so many lines a multiple of 4 KiB apart, or of whatever its sets repeat
// after, are in it at the same time. 8 stands for a processor that does not say.
var FirstCacheWays = sync.OnceValue(func() int {
	if ways, _ := dataCache(1); ways > 0 {
		return ways
	}
	return 8
})

// SecondCacheSize is the number of bytes in the second-level cache of a core. 1 MiB stands for a processor that does not say.
var SecondCacheSize = sync.OnceValue(func() int {
	if _, size := dataCache(2); size > 0 {
		return size
	}
	return 1 << 20
})
