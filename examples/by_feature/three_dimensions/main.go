// SPDX-License-Identifier: Apache-2.0

// Three_dimensions trains a small GPT-2 in its own loop on eight ranks, which are goroutines: pipelines of two stages
// (pp_size), whose layers two ranks divide (tp_size), and of whose parts two ranks have a shard each (dp_shard_size).
// In each step every rank checks that it has what one rank has: samples, loss, norm, gradients, weights and moments, to
// the bit. Then runs continue from its checkpoint, which the ranks wrote in pieces, on other meshes. A check that fails
// ends the program with an error; -spoil WHAT makes one fail, by one bit on one rank: samples, gradients, weights or
// checkpoint.
//
// HuggingFace's 3d_parallel_checks does this for transformers. Under a launcher the eight ranks are processes:
//
//	CGO_ENABLED=0 go build -o out/bin/three_dimensions ./examples/by_feature/three_dimensions
//	go run ./cmd/lockstep launch --nproc_per_node 8 -- out/bin/three_dimensions
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/gpt"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer/loop"
)

const (
	steps  = 4
	folder = "out/three_dimensions"
)

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	spoil := ""
	if i := slices.Index(p.Args, "-spoil"); i >= 0 && i+1 < len(p.Args) {
		spoil = p.Args[i+1]
	}
	place, err := env.Detect(os.LookupEnv)
	if err != nil {
		return err
	}
	one := &trace{}
	alone := comm.Mesh{PP: 1, DPShard: 1, TP: 1}
	group := accelerate.WithGroup(local.New(1, comm.Options{})[0]) // under a launcher too
	if err := (&job{mesh: alone, note: one}).run(ctx, group); err != nil {
		return err
	}
	cube := comm.Mesh{PP: 2, DPShard: 2, TP: 2}
	first := &job{mesh: cube, goroutines: 8, want: one, saves: true, spoil: spoil}
	if place.Distributed() {
		first.goroutines = 1
	}
	if err := first.run(ctx); err != nil {
		return fmt.Errorf("mesh %s: %w", cube, err)
	}
	p.Printf("%s: as on 1 rank in each step, weights %s\n", cube, one.hash)
	if place.Distributed() {
		return nil
	}
	if spoil == "checkpoint" {
		if err := damage(); err != nil {
			return err
		}
	}
	for _, mesh := range []comm.Mesh{{PP: 1, DPShard: 2, TP: 2}, {PP: 4, DPShard: 1, TP: 1}, alone} {
		next := &job{mesh: mesh, goroutines: mesh.Size(^comm.Axes(0)), want: one, resumes: true}
		if err := next.run(ctx); err != nil {
			return fmt.Errorf("mesh %s, from the checkpoint: %w", mesh, err)
		}
		p.Printf("%s, from the checkpoint: as on 1 rank in each step, weights %s\n", mesh, one.hash)
	}
	return nil
}

// damage changes a byte of what a rank wrote of the checkpoint.
func damage() error {
	file := filepath.Join(folder, fmt.Sprintf("checkpoint-%d", steps/2), "shard-00003-of-00008.safetensors")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text[len(text)-1] ^= 1
	return os.WriteFile(file, text, 0o600)
}

// job is a run on a mesh.
type job struct {
	mesh       comm.Mesh
	goroutines int    // ranks of this process
	note       *trace // what one rank notes; or
	want       *trace // what all must have
	saves      bool   // after half of the steps, or
	resumes    bool   // from there
	spoil      string
}

func (j *job) run(ctx context.Context, opts ...accelerate.Option) error {
	a := args.Default(folder)
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize, a.NumReplicas = 1, 8, j.goroutines
	a.PPSize, a.DPShardSize, a.TPSize, a.TPParts = j.mesh.PP, j.mesh.DPShard, j.mesh.TP, 2
	if j.mesh.DPShard > 1 {
		a.FSDP, a.FSDPStateDictType = []string{"full_shard"}, args.ShardedStateDict
	}
	if a.OverwriteOutputDir = !j.resumes; j.resumes {
		a.ResumeFromCheckpoint = "last"
	}
	stages := accelerate.WithStages(accelerate.Stages{Forward: forward,
		Example: func(c *tensor.Ctx, m nn.Module) (*data.Batch, error) {
			return m.(models.Example).ExampleBatch(c, 1, 0), nil
		}})
	return accelerate.Run(ctx, a, func(acc *accelerate.Accelerator) error { return j.train(ctx, acc, a) },
		append(opts, stages)...)
}

// forward runs a model, or a stage of it.
func forward(c *nn.Ctx, m nn.Module, b *data.Batch) (accelerate.Output, error) {
	out := m.(models.Model).Forward(c.WithLossOnly(), b)
	return accelerate.Output{Hidden: out.Hidden, Loss: out.Loss, Count: b.Count}, nil
}

func adamW(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error) {
	return optim.DefaultAdamW().New(c, []*optim.Group{{LR: 3e-3, Params: params}}), nil
}

// train is the loop of one rank.
func (j *job) train(ctx context.Context, acc *accelerate.Accelerator, a *args.TrainingArguments) error {
	model, set := gpt.Model(acc.Device()), gpt.Train()
	if err := acc.Prepare(ctx, model, adamW, model.RecomputeUnits()...); err != nil {
		return err
	}
	windows, err := acc.Windows(ctx, set, samplers.NewRandom(int64(set.Len()), a.Seed), 0)
	if err != nil {
		return err
	}
	defer windows.Close()
	state := &loop.State{Accelerator: acc, Args: a, Model: model, Windows: windows}
	defer state.Close()
	step := int64(0)
	if j.saves || j.resumes {
		if step, err = state.Load(ctx); err != nil {
			return err
		}
	}
	windows.Limit(steps - step)
	for window, err := range windows.All() {
		if err != nil {
			return err
		}
		if err := j.step(ctx, acc, model, int(step), window.Batches); err != nil {
			return fmt.Errorf("step %d: %w", step+1, err)
		}
		if step++; step == steps/2 && j.saves {
			if _, err := state.Save(ctx, step); err != nil {
				return err
			}
		}
	}
	if err := acc.Unshard(ctx); err != nil {
		return err
	}
	return j.end(gpt.Hash(model))
}

// step is an optimizer step, with its checks.
func (j *job) step(ctx context.Context, acc *accelerate.Accelerator, m *gpt2.Model, step int,
	batches []*data.Batch) error {
	r := &rank{acc, j.note, j.want, step}
	last := acc.Rank() == acc.WorldSize()-1 && step == 1
	if last && j.spoil == "samples" {
		flip(acc, batches[0].Tensors[data.InputIDs])
	}
	if err := r.samples(ctx, batches); err != nil {
		return err
	}
	loss, err := acc.RunWindow(ctx, batches, accelerate.WindowOptions{
		Loss: func(c *nn.Ctx, b *data.Batch) (accelerate.Output, error) { return forward(c, m, b) }})
	if err != nil {
		return err
	}
	norm, err := acc.ClipGradNorm(ctx, 1)
	if err != nil {
		return err
	}
	if last && j.spoil == "gradients" {
		flip(acc, acc.Trained()[0].Grad())
	}
	err = errors.Join(r.number("loss", loss.Sum/loss.Count), r.number("norm of the gradients", norm),
		r.pieces("gradient", func(p tensor.Named) *tensor.Tensor { return p.Grad() }))
	if err != nil {
		return err
	}
	if err := acc.Step(ctx); err != nil {
		return err
	}
	if last && j.spoil == "weights" {
		flip(acc, acc.Trained()[0].Tensor)
	}
	moments := acc.Optimizer().State().Tensors
	err = errors.Join(r.pieces("weights", func(p tensor.Named) *tensor.Tensor { return p.Tensor }),
		r.pieces("first moment", func(p tensor.Named) *tensor.Tensor { return moments[p.Name+".exp_avg"] }),
		r.pieces("second moment", func(p tensor.Named) *tensor.Tensor { return moments[p.Name+".exp_avg_sq"] }))
	acc.ZeroGrad()
	return err
}

// flip changes the lowest bit of a tensor's first element.
func flip(acc *accelerate.Accelerator, t *tensor.Tensor) {
	c := acc.Ctx().NoGrad()
	text := tensor.ReadBytes(c, t)
	text[0] ^= 1
	tensor.WriteBytes(c, t, text)
}
