// SPDX-License-Identifier: Apache-2.0

package comm

import (
	"runtime"
	"sync"
)

// SpareProcessor gives the goroutines that move messages a processor of Go's scheduler beside those that compute, once
// in a process. Without one, a process on one core would move messages only between kernels. It is for strategies whose
// calls run beside kernels.
func SpareProcessor() { spareProcessor() }

var spareProcessor = sync.OnceFunc(func() { runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1) })
