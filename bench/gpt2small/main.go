// SPDX-License-Identifier: Apache-2.0

// Gpt2small trains GPT-2 small, 124 M parameters, on made-up tokens for a few AdamW steps and prints the time of each
// step and the peak of resident memory: a measure of the whole engine at a well-known size.
//
//	gpt2small [--steps 5] [--batch 1] [--seq 256] [--gradient_checkpointing] [--bf16] [--logits] [--profile DIR]
//
// It is not a training run: the tokens carry no information but their frequencies.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/profile"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/rng"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// options are the command's flags.
type options struct {
	steps, batch, seq int
	checkpointing     bool
	bf16              bool
	logits            bool
	profile           string
}

func main() {
	o, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpt2small:", err)
		os.Exit(2)
	}
	if err := run(o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gpt2small:", err)
		os.Exit(1)
	}
}

func parse(argv []string) (options, error) {
	var o options
	fs := pflag.NewFlagSet("gpt2small", pflag.ContinueOnError)
	fs.IntVar(&o.steps, "steps", 5, "optimizer steps")
	fs.IntVar(&o.batch, "batch", 1, "sequences per step")
	fs.IntVar(&o.seq, "seq", 256, "tokens per sequence")
	fs.BoolVar(&o.checkpointing, "gradient_checkpointing", false, "recompute activations in the backward pass")
	fs.BoolVar(&o.bf16, "bf16", false, "compute in bfloat16 where that is safe")
	fs.BoolVar(&o.logits, "logits", false, "compute the logits as a whole, as where a metric asks for them")
	fs.StringVar(&o.profile, "profile", "", "folder for a profile of all steps but the first")
	if err := fs.Parse(argv); err != nil {
		return o, err
	}
	limit := gpt2.DefaultConfig().NPositions
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if o.steps < 1 || o.batch < 1 || o.seq < 2 || o.seq > limit {
		return o, fmt.Errorf("--steps %d --batch %d --seq %d: want at least 1 step, 1 sequence, and 2 to %d tokens",
			o.steps, o.batch, o.seq, limit)
	}
	return o, kernels.Init()
}

func run(o options, w io.Writer) error {
	start := time.Now()
	a := args.Default("")
	a.PerDeviceTrainBatchSize, a.GradientCheckpointing, a.BF16 = o.batch, o.checkpointing, o.bf16
	acc, err := accelerate.New(a)
	if err != nil {
		return err
	}
	m, err := prepare(acc, a)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%d parameters, kernels %s, made in %.1f s\n", nn.NumParameters(m), kernels.Active(),
		time.Since(start).Seconds())
	var p *profile.Profiler // nil records nothing
	if o.profile != "" {
		p = profile.New(profile.Options{Dir: o.profile, SkipFirst: 1, Active: max(1, o.steps-1)})
		acc.Trace().Listen(p.Span)
	}
	if err := p.Start(context.Background(), acc.Ctx()); err != nil {
		return err
	}
	tokens := rng.NewStream(rng.Key(a.Seed, "tokens", 0))
	for step := range o.steps {
		start := time.Now()
		loss, err := train(acc, m, o, tokens, step)
		if err != nil {
			return err
		}
		took := time.Since(start).Seconds()
		if err := p.Step(); err != nil {
			return err
		}
		fmt.Fprintf(w, "step %d: loss %.4f, %.2f s, %.0f tokens/s\n", step+1, loss, took, float64(o.batch*o.seq)/took)
	}
	memory := callbacks.Record{}
	if err := (&callbacks.Memory{}).OnLog(&callbacks.Event{Record: memory}); err != nil {
		return err
	}
	if peak, ok := memory["memory_rss_peak"].(int64); ok {
		fmt.Fprintf(w, "peak RSS %d MiB\n", peak>>20)
	} else {
		fmt.Fprintln(w, "peak RSS unknown: the system does not tell")
	}
	return p.Close()
}

// prepare makes the model and its optimizer.
func prepare(acc *accelerate.Accelerator, a *args.TrainingArguments) (*gpt2.Model, error) {
	m, err := gpt2.New(nn.NewInit(acc.Device(), a.Seed), gpt2.DefaultConfig())
	if err != nil {
		return nil, err
	}
	newOptimizer := func(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error) {
		groups := []*optim.Group{{LR: 1e-4, WeightDecay: 0.01}, {LR: 1e-4}}
		decay := nn.DecayNames(m)
		for _, p := range params {
			g := groups[1]
			if decay[p.Name] {
				g = groups[0]
			}
			g.Params = append(g.Params, p)
		}
		return optim.AdamW{Beta1: a.AdamBeta1, Beta2: a.AdamBeta2, Eps: a.AdamEpsilon}.New(c, groups), nil
	}
	return m, acc.Prepare(context.Background(), m, newOptimizer, m.RecomputeUnits()...)
}

// train takes one step on fresh tokens, of which small ids are the more frequent, and returns the mean loss.
func train(acc *accelerate.Accelerator, m *gpt2.Model, o options, tokens *rng.Stream, step int) (loss float64,
	err error) {
	samples := make([][]int32, o.batch)
	for i := range samples {
		samples[i] = make([]int32, o.seq)
		for j := range samples[i] {
			u := tokens.Float64()
			samples[i][j] = int32(u * u * u * float64(m.Cfg.VocabSize))
		}
	}
	b, err := data.CausalLM(0)(acc.Ctx(), samples)
	if err != nil {
		return 0, err
	}
	defer b.Free()
	err = tensor.Try(func() {
		acc.ZeroGrad()
		acc.TrainCtx(int64(step * o.batch)).Scope(func(c *nn.Ctx) []*tensor.Tensor {
			if !o.logits {
				c = c.WithLossOnly()
			}
			out := m.Forward(c, b)
			loss = tensor.Item(c.Ctx, out.Loss) / float64(b.Count)
			acc.Backward(c, out.Loss, b.Count, 0, true)
			return nil
		})
		ctx := context.Background()
		if err = acc.Reduce(ctx); err != nil {
			return
		}
		if _, err = acc.ClipGradNorm(ctx, 1); err == nil {
			err = acc.Step(ctx)
		}
	})
	return loss, err
}
