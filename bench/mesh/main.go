// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Mesh measures training steps of GPT-2 on one rank, in pipelines, and on ranks that divide matrices. Ranks are
// processes that share memory, each pinned to a core (by taskset, on Linux) with one compute thread. A step is the
// forward and backward passes of all micro-batches and the update of AdamW. Contenders alternate, so that changes of
// the machine's speed affect all:
//
//	one          one process, micro-batch by micro-batch
//	SCHEDULE     a pipeline by one of the schedules of package accelerate/pp/schedule, such as 1f1b
//	tp           ranks with parts of each matrix (accelerate/tp), micro-batch by micro-batch, and sums in --tp_parts
//	             parts
//	parts        one process with such sums
//	torch-one, torch-SCHEDULE, torch-tp
//	             the same with PyTorch (peer/mesh.py under $PYTHON, with $MKL_PRELOAD, see ../peers.sh), whose
//	             pipelines are those of torch.distributed.pipelining over gloo, and whose matrices are DTensors
//	             (peer/tensor.py)
//	cp-METHOD    ranks with parts of each sequence (accelerate/cp), which attend by gather, ulysses or ring
//
// All contenders cut the model into the same stages. For our pipelines it prints how long ranks were idle in the passes
// of a step, measured and predicted; --timeline writes a step as a Chrome trace and a picture.
//
// link.sh puts two ranks into their own network namespaces, with a link of a given rate between them.
//
//	bench/mesh/run.sh --rounds 5
//	bench/mesh/link.sh 1gbit --contenders tp,cp-gather --micro_batches 1 --batch 8 --watch
//	bench/mesh/run.sh --rounds 5 --contenders one,tp,parts,torch-tp --micro_batches 1 --batch 8
package main

import (
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/bench/internal/stats"
	"github.com/lockstep-ml/lockstep/bench/internal/workers"
)

// settings are what is measured; workers get them as JSON.
type settings struct {
	Layers, Width, Heads, Vocabulary int
	Batch, Block                     int
	MicroBatches                     int
	Parts                            int // of each sum of divided matrices
	Ranks                            int
	Steps                            int
	Contender                        string // that a worker belongs to
	Rank                             int    // of a worker
	Split                            []int  // the parts of the model in each stage; nil on one rank
	Timeline                         string // folder for that of each pipeline; "": none is written
	Link                             bool   // ranks are on separate hosts
	Watch                            bool   // kernels and calls are timed
}

// bench is a comparison.
type bench struct {
	settings
	rounds     int
	contenders []string
	cores      []int
	peer       int // a process in the network namespace of the second rank; 0: ranks share memory
	address    string
}

func main() {
	log.SetFlags(0)
	if workers.Play(work) {
		return
	}
	var b bench
	pflag.IntVar(&b.Layers, "n_layer", 12, "layers")
	pflag.IntVar(&b.Width, "n_embd", 768, "width")
	pflag.IntVar(&b.Heads, "n_head", 12, "heads")
	pflag.IntVar(&b.Vocabulary, "vocab_size", 50257, "tokens of the vocabulary")
	pflag.IntVar(&b.Batch, "batch", 1, "samples of a micro-batch")
	pflag.IntVar(&b.Block, "block", 64, "tokens per sample")
	pflag.IntVar(&b.MicroBatches, "micro_batches", 8, "micro-batches of a step")
	pflag.IntVar(&b.Ranks, "ranks", 2, "ranks of a pipeline, or that divide matrices")
	pflag.IntVar(&b.Parts, "tp_parts", 4, "parts of each sum of divided matrices")
	pflag.IntVar(&b.Steps, "steps", 2, "timed steps of a turn, after two others")
	pflag.IntVar(&b.rounds, "rounds", 3, "turns of each contender")
	pflag.StringSliceVar(&b.contenders, "contenders", usual, "who runs, in this order")
	pflag.StringVar(&b.Timeline, "timeline", "", "folder for a timeline of a step of each of our pipelines")
	pflag.IntSliceVar(&b.cores, "cores", nil, "a core for each rank (default: the first that this process may use)")
	pflag.BoolVar(&b.Watch, "watch", false, "say how much of the calls of tp and cp ran beside kernels")
	pflag.IntVar(&b.peer, "peer", 0, "a process whose network namespace is the second rank's, see link.sh")
	pflag.StringVar(&b.address, "address", "", "where that finds the first rank")
	pflag.Parse()
	if err := b.run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// report is what a worker prints at its end.
type report struct {
	Seconds []float64 // of each timed step
	CPU     float64   // seconds of CPU per timed step
	Loss    float64   // mean of the last step, on the rank of the last stage
	// Memory is the process's between steps, Tensors what tensors have of it, Peak the most that they had, and Kept
	// what the next step takes again, in bytes.
	Memory              workers.Shares
	Tensors, Peak, Kept int64
	// Idle and Predicted are the parts of the last step's passes in which ranks of a pipeline wait, as measured and as
	// the simulator has it with the passes' times; from rank 0.
	Idle, Predicted float64 `json:",omitempty"`
	// Calls are the seconds of a step in which calls to other ranks were under way, and Hidden those of them in which a
	// kernel ran here.
	Calls, Hidden float64 `json:",omitempty"`
}

// measured is what one contender did in all rounds.
type measured struct {
	steps []float64 // median step of each round, in seconds
	cpu   []float64 // seconds of CPU per step, of all ranks
	idle  []float64 // of each round, and as predicted
	plan  []float64
	loss  float64
	last  report // of the first rank in the last round
}

// run measures and prints.
func (b *bench) run(w io.Writer) error {
	b.cores = workers.Pin(b.Ranks, b.cores)
	present, err := b.present(w)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "GPT-2 of %d layers of width %d, %d tokens in the vocabulary; %d micro-batches of %d × %d tokens\n",
		b.Layers, b.Width, b.Vocabulary, b.MicroBatches, b.Batch, b.Block)
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
			cpu := 0.0
			for _, r := range reports {
				cpu, m.loss = cpu+r.CPU, max(m.loss, r.Loss)
			}
			m.steps, m.cpu = append(m.steps, stats.Median(reports[0].Seconds)), append(m.cpu, cpu)
			m.last = reports[0]
			m.idle, m.plan = append(m.idle, reports[0].Idle), append(m.plan, reports[0].Predicted)
		}
	}
	b.print(w, present, all)
	return nil
}

// present are the contenders that can run here; what is missing is reported.
func (b *bench) present(w io.Writer) (list []string, err error) {
	var torch error
	if slices.ContainsFunc(b.contenders, isTorch) {
		torch = workers.CheckPython("torch, transformers")
	}
	for _, name := range b.contenders {
		if _, err := b.split(name); err != nil {
			return nil, err
		}
		if isTorch(name) && torch != nil {
			fmt.Fprintf(w, "%s is missing: %v\n", name, torch)
			continue
		}
		list = append(list, name)
	}
	return list, nil
}

// print writes the table: steps, and ratios taken round by round.
func (b *bench) print(w io.Writer, present []string, all map[string]*measured) {
	for _, name := range present {
		m := all[name]
		line := fmt.Sprintf("%-22s %7.0f ms a step (%.0f to %.0f), %6.0f ms of CPU, loss %.6f", name,
			stats.Median(m.steps)*1e3, slices.Min(m.steps)*1e3, slices.Max(m.steps)*1e3,
			stats.Median(m.cpu)*1e3, m.loss)
		one := "one"
		if isTorch(name) {
			one = "torch-one"
		}
		for _, other := range []string{one, "1f1b", strings.TrimPrefix(name, "torch-")} {
			if o := all[other]; o != nil && o != m && (other != "1f1b" || !isTorch(name)) {
				line += fmt.Sprintf("  %.2f × %s", stats.Median(stats.Ratios(m.steps, o.steps)), other)
			}
		}
		if o := all[one]; o != nil && o != m {
			line += fmt.Sprintf(" (%.2f × faster)", stats.Median(stats.Ratios(o.steps, m.steps)))
		}
		if idle := stats.Median(m.idle); idle > 0 {
			line += fmt.Sprintf("  %.1f %% idle, predicted %.1f %%", 100*idle, 100*stats.Median(m.plan))
		}
		if r := m.last; r.Calls > 0 {
			line += fmt.Sprintf("  calls take %.0f ms, %.0f of them beside kernels", r.Calls*1e3, r.Hidden*1e3)
		}
		if r := m.last; r.Memory.PSS > 0 {
			mb := func(n int64) float64 { return float64(n) / 1e6 }
			line += fmt.Sprintf("  %.0f MB of tensors (peak %.0f), %.0f PSS: %.0f kept, %.0f shared, %.0f Go, "+
				"%.0f program", mb(r.Tensors), mb(r.Peak), mb(r.Memory.PSS), mb(r.Kept), mb(r.Memory.Shared),
				mb(r.Memory.Go), mb(r.Memory.Files))
		}
		fmt.Fprintln(w, line)
	}
}
