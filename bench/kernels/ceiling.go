package main

import (
	"bytes"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/internal/kernels"
)

// onThreads is the time in which f runs on so many threads at once.
func onThreads(threads int, f func(thread int)) float64 {
	var all sync.WaitGroup
	start := time.Now()
	for i := range threads {
		all.Go(func() { f(i) })
	}
	all.Wait()
	return time.Since(start).Seconds()
}

// copied are the source and target of copySpeed: several times what caches hold, and written to, since untouched memory is one page of zeros.
var copied = sync.OnceValue(func() (c [2][]byte) {
	for i := range c {
		c[i] = bytes.Repeat([]byte{byte(i + 1)}, 256<<20)
	}
	return c
})

// copySpeed is the speed of copying memory, in bytes read and written per second: the best of three.
func copySpeed(threads int) float64 {
	dst, src := copied()[0], copied()[1]
	n := len(dst) / threads
	best := 0.0
	for range 3 {
		s := onThreads(threads, func(i int) { copy(dst[i*n:(i+1)*n], src[i*n:]) })
		best = max(best, 2*float64(n*threads)/s)
	}
	return best
}

// fmaSpeed is the number of float32 operations per second of fused multiply-adds on registers: the best of three. It is 0 where the kernels have
// no assembly.
func fmaSpeed(threads int) float64 {
	const turns = 1 << 20
	best := 0.0
	for range 3 {
		var flops float64
		s := onThreads(threads, func(i int) {
			if n := fmaTurns(kernels.Active(), turns); i == 0 {
				flops = n
			}
		})
		best = max(best, flops*float64(threads)/s)
	}
	return best
}
