// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/tensor"
)

// printCeilings measures what the machine can do on so many threads, by the variants of the kernels that it runs.
func printCeilings(threads int) error {
	active := kernels.Active()
	for _, v := range kernels.Available() {
		if v > kernels.AVX512 { // multiplies floats by its vectors, too
			break
		}
		restore, err := kernels.Force(v)
		if err != nil {
			return err
		}
		speed := 0.0
		for range 8 {
			speed = highest(v.String(), threads, func(threads int) float64 { return fmaSpeed(threads, shortestTurn) })
		}
		if speed > 0 {
			fmt.Printf("CEILING fma_%s %d %.1f GFLOP/s\n", v, threads, speed/1e9)
		}
		restore()
	}
	if kernels.Active() != active {
		return fmt.Errorf("kernels %s after measuring: want %s", kernels.Active(), active)
	}
	copied, triad := 0.0, 0.0
	for range 5 {
		copied, triad = highest("copy", threads, copySpeed), highest("triad", threads, triadSpeed)
	}
	fmt.Printf("CEILING copy %d %.1f GB/s\n", threads, copied/1e9)
	fmt.Printf("CEILING triad %d %.1f GB/s\n", threads, triad/1e9)
	return nil
}

// ceilings are the highest speeds yet.
var ceilings = map[string]float64{}

// highest measures a speed once more and returns the highest of all times: others may be running meanwhile, and a
// ceiling is what the machine can do.
func highest(name string, threads int, measure func(threads int) float64) float64 {
	k := fmt.Sprint(name, threads)
	ceilings[k] = max(ceilings[k], measure(threads))
	return ceilings[k]
}

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

// copied are the source and target of copySpeed, tensors as large as an array of the streaming rows, which are compared
// with it: a large last cache still holds a part of arrays of that size, for the rows as for copying, and nothing of
// much larger ones. They are written to, since untouched memory is one page of zeros.
var copied = sync.OnceValue(func() (c struct {
	kept     [2]*tensor.Tensor // whose memory it is
	dst, src []byte
}) {
	ctx := tensor.NewCtx(tensor.NewCPU(1)).NoGrad()
	for i, mem := range []*[]byte{&c.dst, &c.src} {
		c.kept[i] = filled(ctx, elements)
		var ok bool
		if *mem, ok = tensor.HostBytes(ctx, c.kept[i]); !ok {
			panic("a tensor of the CPU does not lie in its memory")
		}
	}
	return c
})

// copies are ways of copying memory, of which the fastest counts; which one that is depends on the processor. What
// non-temporal stores write need not be read first; prefetching continues where the processor's own ends, at the end of
// a page or with as many lines as it prefetches by itself.
var copies = []func(dst, src []byte){
	func(dst, src []byte) { copy(dst, src) },
	func(dst, src []byte) { copyTurn(dst, src, 0, true) },
	func(dst, src []byte) { copyTurn(dst, src, 3<<10, true) },
	func(dst, src []byte) { copyTurn(dst, src, 6<<10, true) },
	func(dst, src []byte) { copyTurn(dst, src, 4<<10, false) },
}

// copySpeed is the speed of copying memory, in bytes read and written per second: the best of three for each way.
func copySpeed(threads int) float64 {
	dst, src := copied().dst, copied().src
	n := len(dst) / threads
	best := 0.0
	for range 3 {
		for _, way := range copies {
			s := onThreads(threads, func(i int) { way(dst[i*n:(i+1)*n], src[i*n:(i+1)*n]) })
			best = max(best, 2*float64(n*threads)/s)
		}
	}
	return best
}

// triad are the operands of triadSpeed.
var triad = sync.OnceValue(func() (t [3][]float32) {
	for i := range t {
		t[i] = make([]float32, 32<<20)
		for j := range t[i] {
			t[i][j] = float32(i)
		}
	}
	return t
})

// triadSpeed is the speed of a = b + 3c over 128 MiB each, in bytes read and written per second (STREAM's count: what a
// line of a costs to be fetched before it is written is not in it): the best of three.
func triadSpeed(threads int) float64 {
	a, b, c := triad()[0], triad()[1], triad()[2]
	n := len(a) / threads
	best := 0.0
	for range 3 {
		s := onThreads(threads, func(i int) { triadTurn(a[i*n:(i+1)*n], b[i*n:(i+1)*n], c[i*n:(i+1)*n]) })
		best = max(best, 3*4*float64(n*threads)/s)
	}
	return best
}

// readSpeed is the speed of reading memory, in bytes per second: the best of three over the arrays of triadSpeed.
func readSpeed(threads int) float64 {
	b := triad()[1]
	n := len(b) / threads
	sums := make([]float32, threads)
	best := 0.0
	for range 3 {
		s := onThreads(threads, func(i int) { sums[i] = readTurn(b[i*n : (i+1)*n]) })
		best = max(best, 4*float64(n*threads)/s)
	}
	return best
}

// readTurn reads x, one element in each cache line of 64 bytes.
func readTurn(x []float32) float32 {
	var a, b, c, d float32
	for ; len(x) >= 64; x = x[64:] {
		a, b, c, d = a+x[0], b+x[16], c+x[32], d+x[48]
	}
	return a + b + c + d
}
