// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/bench/internal/stats"
	"github.com/lockstep-ml/lockstep/comm"
)

// published are the speed-ups of PyTorch DDP on GPUs that its users cite.
var published = map[int]float64{2: 1.85, 4: 3.5, 8: 6.8}

// fit is the cost of an all-reduce of S bytes on n ranks of an engine,
// 2(n−1)·Latency + 2(n−1)/n·S/Bandwidth, in seconds and bytes per second.
type fit struct {
	Latency, Bandwidth float64
}

func (f fit) cost(n int, bytes float64) float64 {
	ranks := float64(n)
	return 2*(ranks-1)*f.Latency + 2*(ranks-1)/ranks*bytes/f.Bandwidth
}

// straggling is how much a step gets longer with each doubling of the ranks, because the
// slowest of more ranks is waited for.
const straggling = 0.004

// step is the length of a step on n ranks whose step alone takes so long. Ranks have one core
// each, which reduces as well: what is exchanged under the backward pass delays the pass, so
// that overlap saves waiting, no work.
func (f fit) step(n int, alone float64, buckets []int) float64 {
	t := alone
	for _, bytes := range buckets {
		t += f.cost(n, float64(bytes))
	}
	return t * (1 + straggling*math.Log2(float64(n)))
}

// groups is a hook that remembers each rank's group.
type groups struct {
	ddp.Hook
	seen sync.Map // of *comm.Group, by rank
}

// Begin implements ddp.Hook.
func (h *groups) Begin(g *comm.Group, b ddp.Bucket) func(context.Context) error {
	h.seen.Store(g.Rank(), g)
	return h.Hook.Begin(g, b)
}

func (h *groups) of(rank int) *comm.Group {
	g, _ := h.seen.Load(rank)
	return g.(*comm.Group)
}

// measure times all-reduces of 4 KiB and of so many bytes where gradients lie, in the group's memory.
func measure(ctx context.Context, acc *accelerate.Accelerator, g *comm.Group, bytes int) (*fit, error) {
	const small = 4 << 10
	memory, err := g.Alloc(max(bytes, 2*small))
	if err != nil {
		return nil, err
	}
	all := comm.View[float32](memory)
	clear(all)
	short, err := timeReduce(ctx, acc, g, all[:small/4])
	if err != nil {
		return nil, err
	}
	long, err := timeReduce(ctx, acc, g, all)
	if err != nil {
		return nil, err
	}
	n := float64(acc.WorldSize())
	f := &fit{Bandwidth: 2 * (n - 1) / n * float64(len(all)*4-small) / max(long-short, 1e-9)}
	f.Latency = max(0, short-2*(n-1)/n*small/f.Bandwidth) / (2 * (n - 1))
	return f, acc.Barrier(ctx)
}

// timeReduce is the median time of an all-reduce.
func timeReduce(ctx context.Context, acc *accelerate.Accelerator, g *comm.Group, data []float32) (float64, error) {
	var times []float64
	for range 15 {
		if err := acc.Barrier(ctx); err != nil {
			return 0, err
		}
		start := time.Now()
		if err := g.AllReduce(comm.Of(data), comm.Sum).Wait(ctx); err != nil {
			return 0, err
		}
		times = append(times, time.Since(start).Seconds())
	}
	return stats.Median(times), nil
}

// predict prints what the model says of 2, 4, 8 ranks, and how far off it was where ranks ran.
func (b *bench) predict(w io.Writer, all map[string]*measured) error {
	one := all["one"]
	if one == nil {
		return nil
	}
	alone := stats.Median(one.steps)
	for _, name := range []string{"shm", "tcp", "goroutines"} {
		m := all[name]
		if m == nil || m.last[0].Fit == nil {
			continue
		}
		f, buckets, total := *m.last[0].Fit, []int(nil), 0
		for _, s := range m.last[0].Spans {
			if s.Name == "bucket" {
				buckets, total = append(buckets, s.Bytes), total+s.Bytes
			}
		}
		fmt.Fprintf(w, "model of %s: %d buckets, %.1f MB a step, latency %.1f µs, %.1f GB/s:", name, len(buckets),
			float64(total)/1e6, f.Latency*1e6, f.Bandwidth/1e9)
		var list []string
		for _, n := range []int{2, 4, 8} {
			t := f.step(n, alone, buckets)
			text := fmt.Sprintf(" %d ranks %.2f × one (published %g)", n, float64(n)*alone/t, published[n])
			if n == b.Ranks {
				text += fmt.Sprintf(", measured %.2f: error %+.1f %%", float64(n)*alone/stats.Median(m.steps),
					100*(stats.Median(m.steps)/t-1))
			}
			list = append(list, text)
		}
		fmt.Fprintln(w, strings.Join(list, ";"))
	}
	return nil
}
