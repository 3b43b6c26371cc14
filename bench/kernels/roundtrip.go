// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/lockstep-ml/lockstep/bench/internal/stats"
)

// roundTrip is the time in which a cache line goes from one thread to another and back, the median of some. It says
// whether the cores that run two threads share their last cache: a hypervisor may move virtual cores at any time, and a
// line that one thread wrote costs the other several times as much then.
func roundTrip() time.Duration {
	const trips = 2000
	var times []float64
	for range 5 {
		var line struct {
			_ [64]byte
			n atomic.Int64
			_ [64]byte
		}
		onThreads(2, func(thread int) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var start time.Time
			for i := range int64(trips) {
				if i == trips/10 { // both threads run
					start = time.Now()
				}
				for line.n.Load() != 2*i+int64(thread) {
				}
				line.n.Add(1)
			}
			if thread == 0 {
				times = append(times, time.Since(start).Seconds()/(trips-trips/10))
			}
		})
	}
	return time.Duration(1e9 * stats.Median(times))
}
