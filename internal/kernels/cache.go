package kernels

import "sync"

// FirstCacheWays is the number of lines that a set of the first-level data cache holds: so many lines a multiple of 4 KiB apart, or of whatever its sets repeat
// after, are in it at the same time. 8 stands for a processor that does not say.
var FirstCacheWays = sync.OnceValue(func() int {
	if ways := firstCacheWays(); ways > 0 {
		return ways
	}
	return 8
})
