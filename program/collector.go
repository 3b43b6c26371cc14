// SPDX-License-Identifier: Apache-2.0

package program

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// gcPercent is GOGC of a large heap unless the environment sets it: see Memory in the package comment.
	gcPercent = 25
	// smallHeap is the size up to which a heap grows before it is collected: each collection costs the same however
	// little it finds.
	smallHeap = 6 << 20
	// gcPercentSmall is GOGC of a small heap, which Go collects at 4 MiB × GOGC / 100.
	gcPercentSmall = 100 * smallHeap / (4 << 20)
)

// collectEarly sets GOGC, now and after each collection, unless the environment sets it.
func collectEarly() {
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(gcPercentSmall)
	afterCollection(gcPercentSmall)
}

// afterCollection sets GOGC for the heap that the next collection leaves, and the ones after it. It is percent now.
func afterCollection(percent int) {
	runtime.AddCleanup(&struct{ _ *int }{}, func(old int) {
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		percent := gcPercentFor(live[0].Value.Uint64())
		if percent != old {
			if set := debug.SetGCPercent(percent); set != old { // by the program, which knows better
				debug.SetGCPercent(set)
				return
			}
		}
		afterCollection(percent)
	}, percent)
}

// gcPercentFor is GOGC for a heap of which so many bytes live.
func gcPercentFor(live uint64) int {
	if live >= smallHeap {
		return gcPercent
	}
	return int(min(max(100*(smallHeap-live)/max(live, 1), gcPercent), gcPercentSmall))
}
