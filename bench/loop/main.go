// SPDX-License-Identifier: Apache-2.0

// Loop measures the overhead of the trainer: training steps of a GPT-2 by a bare loop (batch, forward, backward, clip,
// AdamW, and nothing else) and by a trainer, alternately, and the share of the garbage collector in the processors'
// time of each. Medians of steps are compared.
//
//	go run -C bench ./loop --steps 200 --rounds 5
package main

import (
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"runtime"
	"runtime/metrics"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/bench/internal/stats"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// bench is what is measured.
type bench struct {
	model         gpt2.Config
	batch         int
	threads       int
	steps, rounds int
}

func main() {
	b := bench{model: gpt2.DefaultConfig()}
	pflag.IntVar(&b.model.NLayer, "n_layer", 4, "layers")
	pflag.IntVar(&b.model.NEmbd, "n_embd", 128, "width")
	pflag.IntVar(&b.model.NHead, "n_head", 4, "heads")
	pflag.IntVar(&b.model.VocabSize, "vocab_size", 2048, "tokens of the vocabulary")
	pflag.IntVar(&b.model.NPositions, "block", 128, "tokens per sample")
	pflag.IntVar(&b.batch, "batch", 8, "samples per step")
	pflag.IntVar(&b.threads, "threads", 2, "workers of a kernel")
	pflag.IntVar(&b.steps, "steps", 200, "timed steps of a turn, after 5 others")
	pflag.IntVar(&b.rounds, "rounds", 5, "turns of each")
	pflag.Parse()
	if err := b.run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// figures are what a turn measured.
type figures struct {
	step        float64 // seconds, the median
	allocations float64 // per step
	bytes       float64 // per step, on the Go heap
	collector   float64 // share of the processors' time
}

// run measures and prints.
func (b *bench) run(w io.Writer) error {
	turns := []struct {
		name string
		f    func(d *data.Source, watch *watch) error
		all  []figures
	}{{name: "bare loop", f: b.bare}, {name: "trainer", f: b.train}}
	src := b.source()
	var ratios []float64
	for range b.rounds {
		for i := range turns {
			watch := &watch{skip: 5}
			if err := turns[i].f(&src, watch); err != nil {
				return err
			}
			turns[i].all = append(turns[i].all, watch.figures())
		}
		n := len(turns[0].all) - 1
		ratios = append(ratios, turns[1].all[n].step/turns[0].all[n].step)
	}
	for _, t := range turns {
		middle := func(f func(figures) float64) float64 {
			var x []float64
			for _, v := range t.all {
				x = append(x, f(v))
			}
			return stats.Median(x)
		}
		fmt.Fprintf(w, "%-10s %8.3f ms a step  %6.0f allocations  %7.0f bytes  collector %.2f %% of CPU\n", t.name,
			1e3*middle(func(f figures) float64 { return f.step }),
			middle(func(f figures) float64 { return f.allocations }),
			middle(func(f figures) float64 { return f.bytes }),
			100*middle(func(f figures) float64 { return f.collector }))
	}
	fmt.Fprintf(w, "trainer / bare loop: %.4f (median of the rounds)\n", stats.Median(ratios))
	fmt.Fprintf(w, "RATIO trainer_loop %d %.4f\n", b.threads, 1/stats.Median(ratios))
	return nil
}

// source is a training set of made-up tokens.
func (b *bench) source() data.Source {
	texts := make(data.Slice[[]int32], 4*b.batch)
	for i := range texts {
		texts[i] = make([]int32, b.model.NPositions)
		for j := range texts[i] {
			texts[i][j] = int32((i*i + 7*j) % b.model.VocabSize)
		}
	}
	return data.NewSource(texts, data.CausalLM(0))
}

// bare is a training loop without a trainer.
func (b *bench) bare(src *data.Source, watch *watch) error {
	dev := tensor.NewCPU(b.threads)
	defer dev.Close()
	m, err := gpt2.New(nn.NewInit(dev, 42), b.model)
	if err != nil {
		return err
	}
	c, tree := tensor.NewCtx(dev), nn.Walk(m)
	opt := optim.DefaultAdamW().New(c, []*optim.Group{{Params: tree.Parameters(), LR: 1e-4}})
	indices := make([]int64, b.batch)
	for step := range b.steps + watch.skip {
		for i := range indices {
			indices[i] = int64((step*b.batch + i) % (*src).Len())
		}
		batch, err := (*src).Batch(c.NoGrad(), indices)
		if err != nil {
			return err
		}
		opt.ZeroGrad()
		nn.NewCtx(c.WithRandom(42, int64(step*b.batch)), tree,
			true).WithLossOnly().Scope(func(c *nn.Ctx) []*tensor.Tensor {
			seed := tensor.Full(c.Ctx, tensor.Float32, 1/float64(batch.Count))
			loss := m.Forward(c, batch).Loss
			_ = tensor.Item(c.Ctx, loss)
			tensor.Backward(c.Ctx, []*tensor.Tensor{loss}, []*tensor.Tensor{seed}, nil)
			return nil
		})
		opt.ScaleGrads(optim.ClipFactor(optim.GradNorm(c, opt.Params()), 1))
		opt.Step(c)
		batch.Free()
		watch.step()
	}
	return nil
}

// train is the same by the trainer, with its progress shown to nobody.
func (b *bench) train(src *data.Source, watch *watch) error {
	dev := tensor.NewCPU(b.threads)
	defer dev.Close()
	m, err := gpt2.New(nn.NewInit(dev, 42), b.model)
	if err != nil {
		return err
	}
	a := args.Default("")
	a.PerDeviceTrainBatchSize, a.MaxSteps, a.SaveStrategy, a.LearningRate = b.batch, b.steps+watch.skip,
		args.StrategyNo, 1e-4
	_, err = trainer.New(m, a, trainer.WithDevice(dev), trainer.WithTrainData(*src), trainer.WithCallbacks(watch),
		trainer.WithDisplay(nil), trainer.WithLogger(slog.New(slog.DiscardHandler))).Train()
	return err
}

// watch takes the time between ends of steps.
type watch struct {
	callbacks.Base
	skip   int
	done   int
	last   time.Time
	times  []float64
	before snapshot
}

// OnStepEnd implements callbacks.Callback.
func (w *watch) OnStepEnd(*callbacks.Event) error { w.step(); return nil }

func (w *watch) step() {
	w.done++
	switch {
	case w.done == w.skip:
		runtime.GC()
		w.before = take()
	case w.done > w.skip:
		w.times = append(w.times, time.Since(w.last).Seconds())
	}
	w.last = time.Now()
}

// snapshot is what the runtime has counted so far.
type snapshot struct{ collector, cpu, allocations, bytes float64 }

func take() (s snapshot) {
	samples := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/cpu/classes/total:cpu-seconds"},
		{Name: "/cpu/classes/idle:cpu-seconds"},
		{Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(samples)
	s.collector = samples[0].Value.Float64()
	s.cpu = samples[1].Value.Float64() - samples[2].Value.Float64()
	s.allocations, s.bytes = float64(samples[3].Value.Uint64()), float64(samples[4].Value.Uint64())
	return s
}

// figures sums the turn up.
func (w *watch) figures() figures {
	n := float64(len(w.times))
	now := take()
	f := figures{step: stats.Median(w.times), allocations: (now.allocations - w.before.allocations) / n,
		bytes: (now.bytes - w.before.bytes) / n}
	runtime.GC() // the runtime brings its figures of time up to date then
	now = take()
	if cpu := now.cpu - w.before.cpu; cpu > 0 {
		f.collector = (now.collector - w.before.collector) / cpu
	}
	return f
}
