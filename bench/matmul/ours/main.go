// Command ours times gemm.Float32 the way ../peer/openblas.c times cblas_sgemm: square, contiguous, one thread. It prints one line per size
// with the size and the GFLOP/s of the fastest of several repetitions. Usage: ours SIZE...
package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/gemm"
)

func main() {
	if err := kernels.Init(); err != nil {
		fail(err)
	}
	fmt.Fprintf(os.Stderr, "variant %s, 1 thread\n", kernels.Active())
	for _, arg := range os.Args[1:] {
		n, err := strconv.Atoi(arg)
		if err != nil || n < 1 {
			fail(fmt.Errorf("size %q, want a positive number", arg))
		}
		fmt.Printf("%d %.2f\n", n, 2*float64(n)*float64(n)*float64(n)/fastest(n).Seconds()*1e-9)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "ours:", err)
	os.Exit(2)
}

// fastest returns the shortest time of one n×n product among the repetitions of 0.4 s, three at least.
func fastest(n int) time.Duration {
	a, b, c := matrix(n), matrix(n), make([]float32, n*n)
	best := time.Duration(1 << 62)
	start := time.Now()
	for i := 0; i < 3 || time.Since(start) < 400*time.Millisecond; i++ {
		t := time.Now()
		gemm.Float32(nil, n, n, n, a, n, 1, b, n, 1, c, n, false)
		best = min(best, time.Since(t))
	}
	return best
}

// matrix returns n×n random elements in [-0.5, 0.5).
func matrix(n int) []float32 {
	x := make([]float32, n*n)
	for i := range x {
		x[i] = rand.Float32() - 0.5
	}
	return x
}
