// SPDX-License-Identifier: Apache-2.0

// Step times optimizer steps of a GPT-2 of any size on the CPU and prints what one step
// costs: seconds, tokens per second, GFLOP/s, allocations and memory.
//
//	go run -C bench ./step --n_layer 4 --n_embd 128 --batch 8 --block 128 --steps 20 --cpuprofile cpu.out
package main

import (
	"fmt"
	"log"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

func main() {
	cfg := gpt2.DefaultConfig()
	pflag.IntVar(&cfg.NLayer, "n_layer", 4, "layers")
	pflag.IntVar(&cfg.NEmbd, "n_embd", 128, "width")
	pflag.IntVar(&cfg.NHead, "n_head", 4, "heads")
	pflag.IntVar(&cfg.VocabSize, "vocab_size", 2048, "tokens of the vocabulary")
	batch := pflag.Int("batch", 8, "samples per step")
	block := pflag.Int("block", 128, "tokens per sample")
	steps := pflag.Int("steps", 20, "timed steps, after 3 others")
	bf16 := pflag.Bool("bf16", false, "under autocast in bfloat16")
	profile := pflag.String("cpuprofile", "", "write a CPU profile here")
	pflag.Parse()
	cfg.NPositions = *block
	cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = 0, 0, 0
	m, err := gpt2.New(nn.NewInit(tensor.CPU(), 1), cfg)
	if err != nil {
		log.Fatal(err)
	}
	s := newStepper(m, *batch, *block)
	if *bf16 {
		s.lower = tensor.BFloat16
	}
	for range 3 {
		s.step()
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			log.Fatal(err)
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			log.Fatal(err)
		}
		defer pprof.StopCPUProfile()
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	times := make([]time.Duration, *steps)
	for i := range times {
		t := time.Now()
		s.step()
		times[i] = time.Since(t)
	}
	runtime.ReadMemStats(&after)
	slices.Sort(times)
	median := times[len(times)/2].Seconds()
	tokens := float64(*batch * *block)
	fmt.Printf("parameters %d\nstep %.1f ms (median of %d)\ntokens/s %.0f\nGFLOP/s %.1f\nallocations/step %d, %d "+
		"bytes\ndevice memory peak %d bytes\n",
		nn.NumParameters(m), median*1e3, len(times), tokens/median, m.FLOPsPerToken(*block)*tokens/median/1e9,
		(after.Mallocs-before.Mallocs)/uint64(*steps), (after.TotalAlloc-before.TotalAlloc)/uint64(*steps),
		tensor.CPU().MemStats().Peak)
}

// stepper runs training steps on one made-up batch.
type stepper struct {
	c     *tensor.Ctx
	lower tensor.DType // of autocast, or Invalid
	m     *gpt2.Model
	tree  *nn.Tree
	opt   *optim.Optimizer
	batch *data.Batch
}

func newStepper(m *gpt2.Model, batch, block int) *stepper {
	s := &stepper{c: tensor.NewCtx(tensor.CPU()), m: m, tree: nn.Walk(m)}
	s.opt = optim.DefaultAdamW().New(s.c, []*optim.Group{{Params: s.tree.Parameters(), LR: 1e-4, WeightDecay: 0.01}})
	ids := make([]int32, batch*block)
	for i := range ids {
		ids[i] = int32(i * 7919 % m.Cfg.VocabSize)
	}
	t := tensor.FromSlice(s.c, ids, batch, block)
	s.batch = &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: t, data.Labels: t},
		Count: float64(batch * (block - 1)), Size: batch}
	return s
}

func (s *stepper) step() {
	s.opt.ZeroGrad()
	nn.NewCtx(s.c.Autocast(s.lower), s.tree, true).WithLossOnly().Scope(func(c *nn.Ctx) []*tensor.Tensor {
		out := s.m.Forward(c, s.batch)
		seed := tensor.Full(c.Ctx, tensor.Float32, 1/float64(s.batch.Count))
		tensor.Backward(c.Ctx, []*tensor.Tensor{out.Loss}, []*tensor.Tensor{seed}, nil,
			tensor.DroppingLowered())
		return nil
	})
	s.opt.ScaleGrads(optim.ClipFactor(optim.GradNorm(s.c, s.opt.Params()), 1))
	s.opt.Step(s.c)
}
