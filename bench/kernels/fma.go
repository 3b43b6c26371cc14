// SPDX-License-Identifier: Apache-2.0

package main

import (
	"sync/atomic"
	"time"

	"github.com/lockstep-ml/lockstep/bench/internal/stats"
	"github.com/lockstep-ml/lockstep/internal/kernels"
)

const (
	// fmaChunk is how many turns of the loop are timed at once, in a millisecond or so.
	fmaChunk = 1 << 18
	// shortestTurn is how long the loop runs at least beside a turn of ours, so that the clock has settled for most of
	// it.
	shortestTurn = 20 * time.Millisecond
)

// fmaSpeed is the number of float32 operations per second of fused multiply-adds on registers, in a turn of that
// length: the sum over the threads of the median of the chunks that each ran. It is 0 where the kernels have no
// assembly.
func fmaSpeed(threads int, turn time.Duration) float64 { return fmaLoop(threads, fmaChunk, turn) }

// fmaLoop is the speed of a loop whose chunks are that many turns.
func fmaLoop(threads, chunk int, turn time.Duration) float64 {
	v := kernels.Vectors()
	if v == kernels.Generic {
		return 0
	}
	speeds := make([]float64, threads)
	var ready atomic.Int64
	onThreads(threads, func(thread int) {
		x := fmaOperands(v)
		for ready.Add(1); ready.Load() < int64(threads); { // none runs alone
		}
		var list []float64
		for start := time.Now(); len(list) == 0 || time.Since(start) < turn; {
			t := time.Now()
			flops := fmaTurns(v, chunk, x)
			list = append(list, flops/time.Since(t).Seconds())
		}
		speeds[thread] = stats.Median(list)
	})
	sum := 0.0
	for _, s := range speeds {
		sum += s
	}
	return sum
}

// coresOf is how many times as fast as one thread so many are together, in a millisecond each: half the threads or so
// if each two of them share a core.
func coresOf(threads int) float64 {
	const chunk, turn = fmaChunk / 16, time.Millisecond
	alone := fmaLoop(1, chunk, turn)
	if alone == 0 {
		return 0
	}
	together := fmaLoop(threads, chunk, turn)
	return together / stats.Median([]float64{alone, fmaLoop(1, chunk, turn)})
}
