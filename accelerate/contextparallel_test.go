// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/cp"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// divided runs four windows on ranks of a mesh whose sequences have four chunks, and returns what each rank ended with:
// the losses, counts and norms of its windows, and its weights.
func divided(t *testing.T, mesh string, set func(*args.TrainingArguments), body func(acc *accelerate.Accelerator,
	m *gpt2.Model) ([]float64, error), opts ...accelerate.Option) (out []string, errs []error) {
	t.Helper()
	m, err := comm.ParseMesh(mesh)
	require.NoError(t, err)
	ranks := m.Size(^comm.Axes(0))
	out, errs = make([]string, ranks), make([]error, ranks)
	_ = local.Run(ranks, comm.Options{Timeout: time.Minute, Log: quiet}, func(g *comm.Group) (err error) {
		defer func() { errs[g.Rank()] = err }()
		a := rankArgs(1)
		set(a)
		dev := tensor.NewCPU(1)
		usual := []accelerate.Option{accelerate.WithGroup(g), accelerate.WithDevice(dev), accelerate.WithLogger(quiet),
			accelerate.WithMesh(m), accelerate.WithContextParallel(accelerate.ContextParallel{Chunks: 4})}
		acc, err := accelerate.New(a, append(usual, opts...)...)
		if err != nil {
			return err
		}
		model, err := whole(dev, uint64(g.Rank()))
		if err != nil {
			return err
		}
		if err := acc.Open(t.Context()); err != nil {
			return err
		}
		defer func() { err = cmp.Or(err, acc.Close()) }()
		figures, err := body(acc, model)
		if err != nil {
			return err
		}
		if err := acc.Unshard(t.Context()); err != nil {
			return err
		}
		out[g.Rank()] = fmt.Sprint(figures)
		for _, p := range nn.NamedParameters(model) {
			out[g.Rank()] += fmt.Sprintf("%s %x\n", p.Name, tensor.ReadBytes(acc.Ctx().NoGrad(), p.Tensor))
		}
		return nil
	})
	return out, errs
}

// whole is staged with memory.
func whole(dev *tensor.Device, seed uint64) (*gpt2.Model, error) {
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = 61, 8, 16, 2, 2
	return gpt2.New(nn.NewInit(dev, seed), cfg)
}

func unchanged(*args.TrainingArguments) {}

func fourWindows(acc *accelerate.Accelerator, m *gpt2.Model) ([]float64, error) {
	return windows(context.Background(), acc, m)
}

// Windows have the bits of one process with the same chunks, whichever ranks share tokens and samples: losses, counts
// and norms with accumulation, a short window, frozen parameters, and parameters that differed at first.
func TestContextParallelWindows(t *testing.T) {
	for name, set := range map[string]func(*args.TrainingArguments){
		"float32": unchanged,
		"bf16":    func(a *args.TrainingArguments) { a.BF16 = true },
	} {
		if testing.Short() && name == "bf16" {
			continue // the race detector's run: ranks send each other as much
		}
		want, errs := divided(t, "cp=1", set, fourWindows)
		require.NoError(t, errors.Join(errs...), name)
		for _, mesh := range []string{"cp=2", "dp_replicate=2", "dp_replicate=2,cp=2", "pp=2,cp=2",
			"pp=2,dp_replicate=2,cp=2"} {
			got, errs := divided(t, mesh, set, fourWindows, withStages)
			require.NoError(t, errors.Join(errs...), "%s %s", name, mesh)
			for rank := range got {
				require.Equal(t, want[0], got[rank], "%s %s: rank %d", name, mesh, rank)
			}
		}
	}
}

// A sharded model has the bits of one process with the same chunks, whatever is sharded, over ranks that see other
// tokens and over those that see other samples; and so it has if gradients are added one by one, since the tree of few
// deterministic ranks is not the group's.
func TestContextParallelSharded(t *testing.T) {
	few := func(a *args.TrainingArguments) { a.DeterministicRanks = 2 }
	twelve := func(a *args.TrainingArguments) { a.GlobalTrainBatchSize = 12 }
	zbv := func(a *args.TrainingArguments) { a.PPSchedule = "zbv" }
	alone := func(set func(*args.TrainingArguments)) string {
		out, errs := divided(t, "cp=1", set, fourWindows)
		require.NoError(t, errors.Join(errs...))
		return out[0]
	}
	usual := alone(unchanged) // of pipelines too, whatever their schedule
	raced := []string{"zero 2", "shared", "full", "pipeline, full"}
	full := accelerate.Sharding{Strategy: shard.Full, Gather: true}
	kept := accelerate.Sharding{Strategy: shard.GradOp, Gather: true}
	cases := map[string]struct {
		mesh     string
		sharding accelerate.Sharding
		set      func(*args.TrainingArguments)
		want     string
	}{
		"zero 1 over tokens": {"cp=2", accelerate.Sharding{Strategy: shard.Optimizer}, unchanged, usual},
		"zero 1":             {"dp_shard=2,cp=2", accelerate.Sharding{Strategy: shard.Optimizer}, unchanged, usual},
		"zero 2":             {"dp_shard=2,cp=2", accelerate.Sharding{Strategy: shard.Gradients}, unchanged, usual},
		"shared":             {"dp_shard=2,cp=2", accelerate.Sharding{Strategy: shard.Full}, unchanged, usual},
		"full":               {"dp_shard=2,cp=2", full, unchanged, usual},
		"full over tokens":   {"cp=2", full, unchanged, usual},
		"full, few":          {"dp_shard=2,cp=2", full, few, alone(few)},
		"replicas":           {"dp_replicate=2,cp=2", kept, unchanged, usual},
		"three":              {"dp_shard=3,cp=2", full, twelve, alone(twelve)},
		"pipeline, full":     {"pp=2,dp_shard=2,cp=2", full, zbv, usual},
		"pipeline, zero 1":   {"pp=2,cp=2", accelerate.Sharding{Strategy: shard.Optimizer}, zbv, usual},
		"pipeline, zero 2": {"pp=2,dp_shard=2,cp=2", accelerate.Sharding{Strategy: shard.Gradients},
			func(a *args.TrainingArguments) { a.PPSchedule = "zb_h1" }, usual},
	}
	for _, name := range raced {
		require.Contains(t, cases, name)
	}
	for name, c := range cases {
		if testing.Short() && !slices.Contains(raced, name) {
			continue // the race detector's run: ranks of each way to send
		}
		t.Run(name, func(t *testing.T) {
			got, errs := divided(t, c.mesh, c.set, fourWindows, accelerate.WithSharding(c.sharding), withStages)
			require.NoError(t, errors.Join(errs...))
			for rank := range got {
				require.Equal(t, c.want, got[rank], "rank %d", rank)
			}
		})
	}
}

// The count of a window is that of its labels, not once for each rank along cp, and figures are those of the samples.
func TestContextParallelCounts(t *testing.T) {
	figures := func(acc *accelerate.Accelerator, m *gpt2.Model) ([]float64, error) {
		if err := acc.Prepare(context.Background(), m, adamW); err != nil {
			return nil, err
		}
		own := []float64{3}
		loss, err := acc.RunWindow(context.Background(), []*data.Batch{ids(acc.Ctx(), 0)}, accelerate.WindowOptions{
			Figures: own, Loss: func(c *nn.Ctx, b *data.Batch) (accelerate.Output, error) { return stage(c, m, b) }})
		return []float64{loss.Count, own[0], loss.Mean()}, err
	}
	want, errs := divided(t, "cp=1", unchanged, figures)
	require.NoError(t, errors.Join(errs...))
	require.Contains(t, want[0], "[8 3 4.")
	got, errs := divided(t, "cp=2", unchanged, figures)
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, want[0], got[0])
	require.Equal(t, want[0], got[1])
}

// Far more chunks than the first sequences have tokens are refused. Sequences that are shorter may come later.
func TestContextParallelLengths(t *testing.T) {
	lengths := func(first, then int) error {
		_, errs := divided(t, "cp=2", unchanged, func(acc *accelerate.Accelerator, m *gpt2.Model) ([]float64, error) {
			if err := acc.Prepare(context.Background(), m, adamW); err != nil {
				return nil, err
			}
			for _, n := range []int{first, then} {
				b := ids(acc.Ctx(), 0)
				for name, of := range b.Tensors {
					b.Tensors[name] = tensor.Slice(acc.Ctx().NoGrad(), of, 1, 0, n)
				}
				if _, err := acc.RunWindow(context.Background(), []*data.Batch{b}, accelerate.WindowOptions{
					Loss: func(c *nn.Ctx, b *data.Batch) (accelerate.Output, error) { return stage(c, m, b) },
				}); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}, accelerate.WithContextParallel(accelerate.ContextParallel{Chunks: 8}))
		return errors.Join(errs...)
	}
	require.NoError(t, lengths(5, 4))
	require.ErrorContains(t, lengths(4, 5), "accelerate: the sequences of the first step have 4 tokens at most, in 8 "+
		"chunks (cp_chunks, or two for each rank along cp): want at most 4 chunks")
}

// A rank that fails while others wait for it in an attention ends them all, and is named by its number in the job. So
// it is where they would also wait for its gradients, and have not sent theirs.
func TestContextParallelFailure(t *testing.T) {
	broken := errors.New("out of memory")
	for _, opts := range [][]accelerate.Option{
		nil, {accelerate.WithSharding(accelerate.Sharding{Strategy: shard.Full, Gather: true})}} {
		_, errs := divided(t, "dp_replicate=2,cp=2", unchanged,
			func(acc *accelerate.Accelerator, m *gpt2.Model) ([]float64, error) {
				if err := acc.Prepare(context.Background(), m, adamW); err != nil {
					return nil, err
				}
				chunks := 0
				loss := func(c *nn.Ctx, b *data.Batch) (accelerate.Output, error) {
					out, err := stage(c, m, b)
					if chunks++; acc.Rank() == 3 && chunks == 2 {
						err = broken // the other chunk's backward pass is in an attention
					}
					return out, err
				}
				layout, _ := acc.Layout()
				b := ids(acc.Ctx(), layout.MicroBatch(0))
				_, err := acc.RunWindow(context.Background(), []*data.Batch{b}, accelerate.WindowOptions{Loss: loss})
				return nil, err
			}, opts...)
		require.ErrorIs(t, errs[3], broken)
		for _, err := range errs[:3] {
			require.ErrorContains(t, err, "rank 3")
			require.ErrorContains(t, err, "out of memory")
		}
	}
}

// What is not built for divided tokens is refused at Prepare, and a pass of one micro-batch too.
func TestContextParallelRefuses(t *testing.T) {
	prepare := func(acc *accelerate.Accelerator, m *gpt2.Model) ([]float64, error) {
		return nil, acc.Prepare(context.Background(), m, adamW)
	}
	for want, set := range map[string]func(*args.TrainingArguments){
		"accelerate: sequences whose tokens are divided (cp_size 2, 4 chunks) with local_sgd_steps 2: want 0": func(
			a *args.TrainingArguments) {
			a.LocalSGDSteps = 2
		},
	} {
		_, errs := divided(t, "cp=2", set, prepare)
		require.EqualError(t, errs[0], want)
	}
	_, errs := divided(t, "cp=2", unchanged, prepare,
		accelerate.WithContextParallel(accelerate.ContextParallel{Chunks: 2, Method: cp.Ulysses}))
	require.ErrorContains(t, errs[0], "cp_chunks 2 with cp_size 2: want a power of two that is at least 4")
	_, errs = divided(t, "cp=4", unchanged, prepare,
		accelerate.WithContextParallel(accelerate.ContextParallel{Chunks: 16, Method: cp.Ulysses}))
	require.EqualError(t, errs[0], "accelerate: transformer.h.0.attn has 2 key heads on 4 ranks: want a cp_size "+
		"(sp_size) among 1, 2, powers of two that divide the key heads, or cp_strategy gather\naccelerate: the model "+
		"reads 8 tokens, in 16 chunks (cp_chunks): want at most 8 chunks")
	_, errs = divided(t, "cp=1", unchanged, func(acc *accelerate.Accelerator, m *gpt2.Model) ([]float64, error) {
		if _, err := prepare(acc, m); err != nil {
			return nil, err
		}
		return nil, tensor.Try(func() {
			acc.Backward(acc.TrainCtx(0), tensor.Zeros(acc.Ctx(), tensor.Float32), 1, 0, true)
		})
	})
	require.ErrorContains(t, errs[0], "whose tokens are divided: want RunWindow")
}
