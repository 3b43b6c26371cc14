// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Lora measures steps that fine-tune a model of SmolLM2-135M's shape, all of it or a LoRA adapter of rank 16 on every
// linear layer: the median time of a step and the peak of the process's memory. Numbers are float32, and nothing is
// recomputed. peer.py measures the same with transformers and PEFT; run the two alternately.
//
// Usage: lora [--full] [--steps 6] [--tokens 512] [--threads 2] [--bf16_base | --q8_base]
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/bench/internal/stats"
	"github.com/lockstep-ml/lockstep/bench/internal/workers"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/lora"
	"github.com/lockstep-ml/lockstep/models/transformer"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// bench is what is measured.
type bench struct {
	full, half, blocks     bool
	steps, tokens, threads int
	layers                 int
	targets                []string
}

func main() {
	var b bench
	pflag.BoolVar(&b.full, "full", false, "train the whole model")
	pflag.BoolVar(&b.half, "bf16_base", false, "keep the frozen model in bfloat16")
	pflag.BoolVar(&b.blocks, "q8_base", false, "keep the frozen model in blocks of 8-bit numbers")
	pflag.IntVar(&b.steps, "steps", 6, "steps, of which the first is not counted")
	pflag.IntVar(&b.tokens, "tokens", 512, "tokens of a step's one sequence")
	pflag.IntVar(&b.threads, "threads", 2, "workers")
	pflag.IntVar(&b.layers, "layers", 30, "blocks")
	pflag.StringSliceVar(&b.targets, "targets", []string{"all-linear"}, "linear layers that are adapted")
	pflag.Parse()
	line, err := b.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(line)
}

// stopwatch keeps the times of steps.
type stopwatch struct {
	callbacks.Base
	begun   time.Time
	seconds []float64
}

func (s *stopwatch) OnStepBegin(*callbacks.Event) error {
	s.begun = time.Now()
	return nil
}

func (s *stopwatch) OnStepEnd(*callbacks.Event) error {
	s.seconds = append(s.seconds, time.Since(s.begun).Seconds())
	return nil
}

// model is one of SmolLM2-135M's shape.
func (b bench) model(dev *tensor.Device) (*transformer.Model, error) {
	cfg, err := transformer.DefaultConfig("llama")
	if err != nil {
		return nil, err
	}
	cfg.VocabSize, cfg.HiddenSize, cfg.IntermediateSize, cfg.NumHiddenLayers = 49152, 576, 1536, b.layers
	cfg.NumAttentionHeads, cfg.NumKeyValueHeads, cfg.HeadDim, cfg.MaxPositions = 9, 3, 64, 8192
	cfg.TieWordEmbeddings = true
	in := nn.NewInit(dev, 1)
	if b.half {
		in = in.As(tensor.BFloat16)
	}
	m, err := transformer.New(in, cfg)
	if err == nil && b.blocks {
		models.Quantize(m)
	}
	return m, err
}

// run trains, and gives the line with the figures.
func (b bench) run() (string, error) {
	dev := tensor.NewCPU(b.threads)
	defer dev.Close()
	m, err := b.model(dev)
	if err != nil {
		return "", err
	}
	rows := make(data.Slice[[]int32], b.steps)
	for i := range rows {
		rows[i] = make([]int32, b.tokens)
		for j := range rows[i] {
			rows[i][j] = int32((i*b.tokens + j) * 7919 % 49152)
		}
	}
	out, err := os.MkdirTemp("", "lora")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(out)
	a := args.Default(out)
	a.PerDeviceTrainBatchSize, a.MaxSteps, a.SaveStrategy = 1, b.steps, args.StrategyNo
	watch := &stopwatch{}
	opts := []trainer.Option{trainer.WithTrainData(data.NewSource(rows, data.CausalLM(0))), trainer.WithDisplay(nil),
		trainer.WithCallbacks(watch), trainer.WithDevice(dev)}
	kind := "full"
	if !b.full {
		adapter, err := lora.New(m, lora.Config{R: 16, Alpha: 32, TargetModules: lora.ParseTargets(b.targets...)})
		if err != nil {
			return "", err
		}
		opts, kind = append(opts, trainer.WithAdapter(adapter)), "lora"
	}
	if _, err := trainer.New(m, a, opts...).Train(); err != nil {
		return "", err
	}
	_, peak := workers.Memory()
	memory := dev.MemStats()
	return fmt.Sprintf("%s %8.3f s a step  %5d MB peak  %5d of tensors  %5d reserved", kind,
		stats.Median(watch.seconds[1:]), peak/1e6, memory.Peak/1e6, memory.Reserved/1e6), nil
}
