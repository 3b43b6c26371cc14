// SPDX-License-Identifier: Apache-2.0

// Head compares the cross entropy that is fused with a language model's head with the two apart: time of a forward and
// a backward pass, and peak of tensor memory beyond the operands, alternately.
//
// Usage: head [--rows 1024] [--width 768] [--vocab 50257] [--threads 2] [--rounds 9]
package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/bench/internal/stats"
	"github.com/lockstep-ml/lockstep/tensor"
)

// bench is what is measured.
type bench struct {
	rows, width, vocab int
	threads, rounds    int
}

func main() {
	var b bench
	pflag.IntVar(&b.rows, "rows", 1024, "tokens")
	pflag.IntVar(&b.width, "width", 768, "width of the hidden states")
	pflag.IntVar(&b.vocab, "vocab", 50257, "size of the vocabulary")
	pflag.IntVar(&b.threads, "threads", 2, "workers")
	pflag.IntVar(&b.rounds, "rounds", 9, "turns of each")
	pflag.Parse()
	b.run(os.Stdout)
}

// contender is one way to the loss.
type contender struct {
	name string
	loss func(c *tensor.Ctx, x, w, ids *tensor.Tensor) *tensor.Tensor
}

var contenders = []contender{
	{"separate", func(c *tensor.Ctx, x, w, ids *tensor.Tensor) *tensor.Tensor {
		z := tensor.AddMM(c, nil, x, tensor.Transpose(c, w, 0, 1))
		return tensor.Sum(c, tensor.CrossEntropy(c, z, ids, -100), nil, false)
	}},
	{"fused", func(c *tensor.Ctx, x, w, ids *tensor.Tensor) *tensor.Tensor {
		return tensor.LinearCrossEntropy(c, x, w, nil, ids, -100)
	}},
}

// run measures and prints.
func (b bench) run(out io.Writer) {
	times, peaks := make([][]float64, len(contenders)), make([]int64, len(contenders))
	for round := range b.rounds + 1 {
		for i, k := range contenders {
			seconds, peak := b.once(k)
			if round > 0 { // the first is for caches
				times[i], peaks[i] = append(times[i], seconds), peak
			}
		}
	}
	var ratios []float64
	for r := range b.rounds {
		ratios = append(ratios, times[1][r]/times[0][r])
	}
	for i, k := range contenders {
		fmt.Fprintf(out, "%-9s %8.1f ms  %6d MiB\n", k.name, 1e3*stats.Median(times[i]), peaks[i]>>20)
	}
	fmt.Fprintf(out, "fused / separate: %.3f of the time (median of the rounds), %.3f of the memory\n",
		stats.Median(ratios), float64(peaks[1])/float64(max(peaks[0], 1)))
}

// once runs three passes of a contender on its own device and gives the median time, and the memory that a pass needs
// at most.
func (b bench) once(k contender) (seconds float64, peak int64) {
	dev := tensor.NewCPU(b.threads)
	defer dev.Close()
	c := tensor.NewCtx(dev)
	x := tensor.Normal(c.NoGrad(), tensor.Float32, 1, 0, 1, b.rows, b.width).SetRequiresGrad(true)
	w := tensor.Normal(c.NoGrad(), tensor.Float32, 2, 0, 0.02, b.vocab, b.width).SetRequiresGrad(true)
	list := make([]int32, b.rows)
	for i := range list {
		list[i] = int32(i * 7919 % b.vocab)
	}
	ids := tensor.FromSlice(c, list, b.rows)
	var times []float64
	before := dev.MemStats().InUse
	for range 4 {
		start := time.Now()
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			tensor.Backward(c, []*tensor.Tensor{k.loss(c, x, w, ids)},
				[]*tensor.Tensor{tensor.Full(c, tensor.Float32, 1/float64(b.rows))}, nil)
			return nil
		})
		times = append(times, time.Since(start).Seconds())
		x.ZeroGrad()
		w.ZeroGrad()
	}
	return stats.Median(times[1:]), dev.MemStats().Peak - before
}
