// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Ddp measures the overhead of data parallelism: training steps of a GPT-2 of any size, in rounds in which every
// contender runs once, so that a drifting machine affects all alike. Processes are pinned to a core each (by taskset,
// on Linux). The contenders:
//
//	one          one process alone
//	apart        independent processes, at the same time
//	shm, tcp     processes that are ranks of one job, over the engine of that name
//	goroutines   ranks that are goroutines of one process, on the same cores
//	torch-one, torch-apart, torch-ddp
//	             the same with PyTorch (peer/ddp.py under $PYTHON, with $MKL_PRELOAD, see
//	             ../peers.sh), whose ranks use gloo
//	shm:full_shard, tcp:zero_1 …
//	             processes that shard the model: zero_1, zero_2, shard_grad_op, full_shard,
//	             or full_shard_shared, where they have the parameters once
//	torch-fsdp2  PyTorch's fully_shard, block by block
//	torch-deepspeed3
//	             DeepSpeed's ZeRO stage 3, over its own shared memory where it can build that
//
// It feeds the figures into a scaling model (model.go), compares its prediction with what was
// measured, and draws one step as SVG: forward and backward passes, and the exchange of each
// bucket, which lies under the backward pass. Beside a picture it writes a table of what the
// picture shows, from which --draw draws it again.
//
//	bench/ddp/run.sh --ranks 2 --svg ../out/step
//	go run -C bench ./ddp --draw --svg ../docs/figures/ddp-step
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/bench/internal/stats"
	"github.com/lockstep-ml/lockstep/bench/internal/workers"
	"github.com/lockstep-ml/lockstep/internal/picture"
)

// settings are what is measured; workers get them as JSON.
type settings struct {
	Layers, Width, Heads, Vocabulary int
	Batch, Block                     int
	Ranks                            int
	Steps                            int
	BucketMB                         int
	Hook                             string
	BF16                             bool
	Rank                             int    // of a worker
	Contender                        string // that a worker belongs to
}

// bench is a comparison.
type bench struct {
	settings
	rounds     int
	contenders []string
	cores      []int
	svg        string
	memory     string
	how        string // the command line
}

func main() {
	if workers.Play(work) {
		return
	}
	b := bench{how: picture.Command("-C bench ./ddp", os.Args[1:])}
	pflag.IntVar(&b.Layers, "n_layer", 4, "layers")
	pflag.IntVar(&b.Width, "n_embd", 256, "width")
	pflag.IntVar(&b.Heads, "n_head", 4, "heads")
	pflag.IntVar(&b.Vocabulary, "vocab_size", 4096, "tokens of the vocabulary")
	pflag.IntVar(&b.Batch, "batch", 8, "samples per step and rank")
	pflag.IntVar(&b.Block, "block", 128, "tokens per sample")
	pflag.IntVar(&b.Ranks, "ranks", 2, "ranks")
	pflag.IntVar(&b.Steps, "steps", 10, "timed steps of a round, after 3 others")
	pflag.IntVar(&b.rounds, "rounds", 3, "rounds")
	pflag.IntVar(&b.BucketMB, "ddp_bucket_cap_mb", 4, "size of a bucket in MiB")
	pflag.StringVar(&b.Hook, "ddp_comm_hook", "no", "no, or bf16")
	pflag.BoolVar(&b.BF16, "bf16", false, "mixed precision: ours --bf16, PyTorch's autocast or MixedPrecisionPolicy")
	pflag.StringSliceVar(&b.contenders, "contenders", usual, "who runs, in this order")
	pflag.IntSliceVar(&b.cores, "cores", nil, "a core for each rank (default: the first that this process may use)")
	pflag.StringVar(&b.svg, "svg", "", "draw a step as NAME-light.svg and NAME-dark.svg, from NAME.tsv")
	pflag.StringVar(&b.memory, "memory_svg", "", "draw the memory of each contender, in files as those of --svg")
	draw := pflag.Bool("draw", false, "measure nothing, and draw --svg and --memory_svg from their tables")
	pflag.Parse()
	run := func() error { return b.run(os.Stdout) }
	if *draw {
		run = b.draw
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

// measured is what one contender did in all rounds.
type measured struct {
	throughput []float64 // tokens per second of each round, over all ranks
	last       []report  // of the last round, by rank
	steps      []float64 // rank 0's median step of each round, in seconds
}

// run measures and prints.
func (b *bench) run(w io.Writer) error {
	b.cores = workers.Pin(b.Ranks, b.cores)
	present := b.present(w)
	all := map[string]*measured{}
	for range b.rounds {
		for _, name := range present {
			reports, err := b.round(name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			m := all[name]
			if m == nil {
				m = &measured{}
				all[name] = m
			}
			sum := 0.0
			for _, r := range reports {
				sum += float64(b.Batch*b.Block) / stats.Median(r.Seconds)
			}
			m.throughput, m.steps, m.last = append(m.throughput, sum),
				append(m.steps, stats.Median(reports[0].Seconds)), reports
		}
	}
	b.print(w, present, all)
	contender, spans := timeline(all)
	if hidden, total := overlap(spans); total > 0 {
		fmt.Fprintf(w, "%.0f %% of %.1f ms of bucket exchange lie under the backward pass\n",
			100*hidden.Seconds()/total.Seconds(), total.Seconds()*1e3)
	}
	if err := b.predict(w, all); err != nil {
		return err
	}
	return b.record(contender, spans, memoryOf(b.model(), present, all))
}

// record writes the tables that pictures are drawn from, and draws them.
func (b *bench) record(contender string, spans []span, m *memory) error {
	if b.memory != "" {
		if err := m.write(b.memory); err != nil {
			return err
		}
	}
	if b.svg != "" {
		if len(spans) == 0 {
			return errors.New("--svg: none of the contenders has ranks that exchange anything")
		}
		if err := (&step{contender + ": " + b.model(), spans}).write(b.svg); err != nil {
			return err
		}
	}
	return b.draw()
}

// draw draws the pictures from their tables.
func (b *bench) draw() error {
	if b.svg != "" {
		s, err := readStep(b.svg)
		if err != nil {
			return err
		}
		if err := s.draw(b.how).Write(b.svg); err != nil {
			return err
		}
	}
	if b.memory == "" {
		return nil
	}
	m, err := readMemory(b.memory)
	if err != nil {
		return err
	}
	return m.draw(b.how).Write(b.memory)
}

// model says what is trained.
func (s *settings) model() string {
	return fmt.Sprintf("GPT-2 of %d layers of width %d, %d × %d tokens on each of %d ranks", s.Layers, s.Width,
		s.Batch, s.Block, s.Ranks)
}

// present are the contenders that can run here; what is missing is said.
func (b *bench) present(w io.Writer) []string {
	var list []string
	var torch, deepSpeed error
	if slices.ContainsFunc(b.contenders, isTorch) {
		torch = workers.CheckPython("torch, transformers")
	}
	if slices.Contains(b.contenders, "torch-deepspeed3") {
		deepSpeed = workers.CheckPython("deepspeed")
	}
	for _, name := range b.contenders {
		switch {
		case !known(name):
			fmt.Fprintf(w, "%s is missing: unknown contender: want some of %s,%s, "+
				"or an engine and a way to shard such as shm:full_shard\n", name, strings.Join(usual, ","),
				strings.Join(sharders, ","))
		case isTorch(name) && torch != nil:
			fmt.Fprintf(w, "%s is missing: %v\n", name, torch)
		case name == "torch-deepspeed3" && deepSpeed != nil:
			fmt.Fprintf(w, "%s is missing: %v\n", name, deepSpeed)
		default:
			list = append(list, name)
		}
	}
	return list
}

// timeline are the spans of the ranks' last step, and the contender: processes if they ran, goroutines, or a sharded
// model.
func timeline(all map[string]*measured) (contender string, spans []span) {
	names := []string{"shm", "tcp", "goroutines"}
	for name := range all {
		if strings.Contains(name, ":") {
			names = append(names, name)
		}
	}
	slices.Sort(names[3:])
	for _, name := range names {
		if m := all[name]; m != nil {
			for _, r := range m.last {
				spans = append(spans, r.Spans...)
			}
			return name, spans
		}
	}
	return "", nil
}

// print writes the table: throughput, and ratios taken round by round.
func (b *bench) print(w io.Writer, present []string, all map[string]*measured) {
	if one := all["one"]; one != nil {
		ms := stats.Median(one.steps) * 1e3
		fmt.Fprintf(w, "a step of %d × %d tokens on one rank takes %.0f ms\n", b.Batch, b.Block, ms)
		if ms < 100 {
			fmt.Fprintln(w, "that is below 100 ms: take a larger model or batch")
		}
	}
	for _, name := range present {
		m := all[name]
		one, apart := all["one"], all["apart"]
		if isTorch(name) {
			one, apart = all["torch-one"], all["torch-apart"]
		}
		line := fmt.Sprintf("%-12s %10.0f tokens/s", name, stats.Median(m.throughput))
		if one != nil && m != one {
			line += fmt.Sprintf("  %.2f × one", stats.Median(stats.Ratios(m.throughput, one.throughput)))
		}
		if apart != nil && m != apart && m != one {
			line += fmt.Sprintf("  %.3f × apart", stats.Median(stats.Ratios(m.throughput, apart.throughput)))
		}
		if other := all[rival(name)]; isTorch(name) && other != nil {
			line += fmt.Sprintf("  (Lockstep %.2f × that)", stats.Median(stats.Ratios(other.throughput, m.throughput)))
		}
		if ddp := all["shm"]; ddp != nil && strings.Contains(name, ":") {
			line += fmt.Sprintf("  %.3f × the step of shm", stats.Median(stats.Ratios(m.steps, ddp.steps)))
		}
		line += fmt.Sprintf("  %.0f ms of CPU per step and rank", stats.Median(cpu(m.last))*1e3)
		if r := m.last[0]; r.PSS > 0 {
			line += fmt.Sprintf("  %.0f MB of tensors, %.0f MB in all, at most %.0f MB", float64(r.State)/1e6,
				float64(r.PSS)/1e6, float64(r.Peak)/1e6)
			if r.Go > 0 {
				line += fmt.Sprintf(" (%.0f MB idle, %.0f MB of Go's)", float64(r.Idle)/1e6, float64(r.Go)/1e6)
			}
		}
		fmt.Fprintln(w, line)
	}
	fmt.Fprintf(w, "published, PyTorch DDP on 2, 4, 8 GPUs: %.2f, %.1f, %.1f × one\n", published[2], published[4],
		published[8])
}

// rival is the contender that does what one of PyTorch's does.
func rival(torch string) string {
	if slices.Contains(sharders, torch) {
		return "shm:full_shard"
	}
	return strings.TrimPrefix(strings.Replace(torch, "torch-ddp", "torch-shm", 1), "torch-")
}

func cpu(reports []report) []float64 {
	list := make([]float64, len(reports))
	for i, r := range reports {
		list[i] = r.CPU
	}
	return list
}

// report is what a worker prints at its end.
type report struct {
	Seconds []float64 // of each timed step
	CPU     float64   // seconds of CPU per timed step
	State   int64     // bytes of parameters, gradients and the optimizer's state
	PSS     int64     // bytes of memory between steps, shared pages divided among those who share them; 0: not known
	Idle    int64     // bytes that the device keeps between steps and no tensor uses
	Go      int64     // bytes of Go's runtime
	Peak    int64     // the most bytes of resident memory so far; shared pages count fully
	Spans   []span    `json:",omitempty"` // of the last step
	Fit     *fit      `json:",omitempty"` // of the engine, from rank 0
}

// span is a piece of a step; see trace.Span.
type span struct {
	Rank               int
	Name, Detail       string
	Bytes              int
	Queued, Start, End time.Time
}
