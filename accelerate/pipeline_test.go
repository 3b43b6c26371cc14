// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// staged makes a GPT-2 of two tiny layers, with tied embeddings and dropout, without memory.
func staged(dev *tensor.Device, seed uint64) (*gpt2.Model, error) {
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = 61, 8, 16, 2, 2
	cfg.BosTokenID, cfg.EosTokenID = nil, nil
	return gpt2.New(nn.NewInit(dev, seed).Deferred(), cfg)
}

func stage(c *nn.Ctx, m nn.Module, b *data.Batch) (accelerate.Output, error) {
	out := m.(models.Model).Forward(c.WithLossOnly(), b)
	return accelerate.Output{Hidden: out.Hidden, Loss: out.Loss, Count: b.Count}, nil
}

var withStages = accelerate.WithStages(accelerate.Stages{Forward: stage,
	Example: func(c *tensor.Ctx, m nn.Module) (*data.Batch, error) {
		return m.(models.Example).ExampleBatch(c, 1, 0), nil
	}})

// ids is micro-batch i.
func ids(c *tensor.Ctx, i int) *data.Batch {
	n := 5 + i%3
	list := make([]int64, 2*n)
	for j := range list {
		list[j] = int64((i*17 + j*j*7 + j) % 61)
	}
	t := tensor.FromSlice(c.NoGrad(), list, 2, n)
	return &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: t, data.Labels: t}, Size: 2,
		Count: float64(2 * (n - 1)), Position: int64(2 * i)}
}

// pipeline runs body on ranks with a device each, so that what they hold can be told apart.
func pipeline(t *testing.T, ranks int, set func(*args.TrainingArguments),
	body func(acc *accelerate.Accelerator, m *gpt2.Model) error, opts ...accelerate.Option) []error {
	t.Helper()
	return onDevices(t, ranks, func(a *args.TrainingArguments) {
		if set(a); ranks > 1 {
			a.PPSize = 2
		}
	}, staged, body, append([]accelerate.Option{withStages}, opts...)...)
}

// onDevices runs body on ranks with a device each, and a model that the rank's number is the seed of.
func onDevices(t *testing.T, ranks int, set func(*args.TrainingArguments),
	model func(dev *tensor.Device, seed uint64) (*gpt2.Model, error),
	body func(acc *accelerate.Accelerator, m *gpt2.Model) error, opts ...accelerate.Option) []error {
	t.Helper()
	errs, accs := make([]error, ranks), make([]*accelerate.Accelerator, ranks)
	_ = local.Run(ranks, comm.Options{Timeout: time.Minute, Log: quiet}, func(g *comm.Group) error {
		a := rankArgs(1)
		set(a)
		rank := func() error {
			dev := tensor.NewCPU(1)
			usual := []accelerate.Option{accelerate.WithGroup(g), accelerate.WithDevice(dev),
				accelerate.WithLogger(quiet)}
			acc, err := accelerate.New(a, append(usual, opts...)...)
			if err != nil {
				return err
			}
			accs[g.Rank()] = acc
			m, err := model(dev, uint64(g.Rank()))
			if err != nil {
				return err
			}
			if err = acc.Open(t.Context()); err == nil {
				err = body(acc, m)
			}
			return err
		}
		errs[g.Rank()] = rank()
		return errs[g.Rank()]
	})
	for _, acc := range accs {
		if acc != nil {
			_ = acc.Close() // of a group that is dead already
		}
	}
	return errs
}

// Collective calls and other work on a rank's device are apart until two steps have been made, after each Prepare.
func TestWarmUp(t *testing.T) {
	errs := onDevices(t, 2, func(*args.TrainingArguments) {}, staged,
		func(acc *accelerate.Accelerator, m *gpt2.Model) error {
			for range 2 {
				if err := acc.Prepare(t.Context(), m, adamW); err != nil {
					return err
				}
				for step := range 4 {
					assert.Equal(t, step >= 2, acc.Group().Overlaps(), "after %d steps", step)
					if err := acc.Step(t.Context()); err != nil {
						return err
					}
					acc.ZeroGrad()
				}
			}
			return nil
		})
	require.NoError(t, errors.Join(errs...))
}

// windows trains four windows. The tied embedding and a layer are frozen in the third.
func windows(ctx context.Context, acc *accelerate.Accelerator, m *gpt2.Model) (losses []float64, err error) {
	if err := acc.Prepare(ctx, m, adamW); err != nil {
		return nil, err
	}
	layout, err := acc.Layout()
	if err != nil {
		return nil, err
	}
	for w := range 4 {
		for i, p := range nn.NamedParameters(m) {
			p.SetRequiresGrad(w != 2 || i > 3)
		}
		var batches []*data.Batch
		for i := range layout.AccumulationSteps {
			if at := layout.MicroBatch(i); w != 3 || at < 3 { // the last window is short
				batches = append(batches, ids(acc.Ctx(), 8*w+at))
			}
		}
		loss, err := acc.RunWindow(ctx, batches, accelerate.WindowOptions{
			Loss: func(c *nn.Ctx, b *data.Batch) (accelerate.Output, error) { return stage(c, m, b) }})
		if err != nil {
			return nil, err
		}
		norm, err := acc.ClipGradNorm(ctx, 0.1)
		if err != nil {
			return nil, err
		}
		if err := acc.Step(ctx); err != nil {
			return nil, err
		}
		acc.ZeroGrad()
		losses = append(losses, loss.Sum, loss.Count, norm)
	}
	return losses, nil
}

// A training loop without the Trainer trains through a pipeline, with the first rank's parameters and the bits of one
// rank, also with all of the first stage frozen. A rank has no memory for other stages, until the model is whole again.
func TestPipelineInATrainingLoop(t *testing.T) {
	for _, ranks := range []int{2, 4} {
		for _, schedule := range []string{"1f1b", "zb_h1", "zbv"} {
			run := func(ranks int) (losses [][]float64, bits []map[string]string) {
				losses, bits = make([][]float64, ranks), make([]map[string]string, ranks)
				errs := pipeline(t, ranks, func(a *args.TrainingArguments) { a.PPSchedule = schedule },
					func(acc *accelerate.Accelerator, m *gpt2.Model) (err error) {
						if losses[acc.Rank()], err = windows(t.Context(), acc, m); err != nil {
							return err
						}
						held := int64(0)
						for _, p := range acc.Trained() {
							held += 3 * int64(p.Bytes()) // and moments
						}
						if in := acc.Device().MemStats().InUse; ranks == 2 && in > 2*held {
							return fmt.Errorf("rank %d has %d bytes: want about %d", acc.Rank(), in, held)
						}
						if err := acc.Unshard(t.Context()); err != nil {
							return err
						}
						bits[acc.Rank()] = map[string]string{}
						for _, p := range nn.NamedParameters(m) {
							bits[acc.Rank()][p.Name] = string(tensor.ReadBytes(acc.Ctx().NoGrad(), p.Tensor))
						}
						return nil
					})
				require.NoError(t, errors.Join(errs...), schedule)
				return losses, bits
			}
			wantLosses, want := run(1)
			losses, got := run(ranks)
			for rank := range ranks {
				require.Equal(t, wantLosses[0], losses[rank], "%s, %d ranks: rank %d", schedule, ranks, rank)
				for name, bits := range want[0] {
					require.True(t, bits == got[rank][name], "%s, %d ranks: rank %d: %s", schedule, ranks, rank, name)
				}
			}
		}
	}
}

// What a pipeline cannot do is refused by name.
func TestPipelineRefuses(t *testing.T) {
	own := strategy.Factory{New: func(j strategy.Job) (strategy.Strategy, error) { return strategy.NewSingle(j), nil }}
	prepare := func(acc *accelerate.Accelerator, m *gpt2.Model) error { return acc.Prepare(t.Context(), m, adamW) }
	descending := filepath.Join(t.TempDir(), "descending.csv")
	require.NoError(t, os.WriteFile(descending, []byte("0F0,0F1,0F2,0B2,0B1,0B0\n1F0,1F1,1F2,1B2,1B1,1B0\n"), 0o600))
	for want, c := range map[string]struct {
		set  func(*args.TrainingArguments)
		body func(acc *accelerate.Accelerator, m *gpt2.Model) error
		opts []accelerate.Option
	}{
		"accelerate: pp_schedule, with pp_size 2 and 7 micro-batches on each rank (gradient_accumulation_steps): " +
			"schedule interleaved_1f1b": {set: func(a *args.TrainingArguments) {
			a.GlobalTrainBatchSize, a.PPSchedule = 7, "interleaved_1f1b"
		}},
		"unknown schedule \"2f2b\"; did you mean 1f1b?": {
			set: func(a *args.TrainingArguments) { a.PPSchedule = "2f2b" }},
		"rank 0: stage 0 adds the weight gradients of micro-batch 1 after those of micro-batch 2: want ascending": {
			set: func(a *args.TrainingArguments) { a.GlobalTrainBatchSize, a.PPSchedule = 3, descending }},
		"pp_split [2 2 2] has 3 numbers: want 2, one for each stage of 1f1b": {set: func(a *args.TrainingArguments) {
			a.PPSplit = []string{"2", "2", "2"}
		}},
		"pp_split [4] has 1 number: want 2, one for each stage of 1f1b": {set: func(a *args.TrainingArguments) {
			a.PPSplit = []string{"4"}
		}},
		"accelerate: pp_schedule, with pp_size 2 and 1 micro-batch on each rank (gradient_accumulation_steps): " +
			"schedule dualpipev": {set: func(a *args.TrainingArguments) {
			a.GlobalTrainBatchSize, a.GradientAccumulationSteps, a.PPSchedule = 1, 1, "dualpipev"
		}},
		"pp_split: pp: a split of [2 9], 11 parts: want": {set: func(a *args.TrainingArguments) {
			a.PPSplit = []string{"2", "9"}
		}},
		"pp_size 2: local_sgd_steps 2: want 0": {set: func(a *args.TrainingArguments) { a.LocalSGDSteps = 2 }},
		"pp_size 2: ddp_comm_hook fp16 is not built in pipelines": {
			set: func(a *args.TrainingArguments) { a.DDPCommHook = "fp16" }},
		"pp_size 2: offload to disk is not built": {
			set: func(a *args.TrainingArguments) { a.OffloadOptimizer = args.OffloadDisk }},
		"pp_size 2: WithStrategy is not supported in pipelines": {
			opts: []accelerate.Option{accelerate.WithStrategy(own)}},
		"pp_size 2: want WithStages, which defines how a stage runs": {
			opts: []accelerate.Option{accelerate.WithStages(accelerate.Stages{})}},
		"no example batch to measure the model's parts with: want pp_split": {
			opts: []accelerate.Option{accelerate.WithStages(accelerate.Stages{Forward: stage})}},
		"pp_size 2: the model cannot be cut into stages: want one that lists its parts": {
			body: func(acc *accelerate.Accelerator, _ *gpt2.Model) error {
				return acc.Prepare(t.Context(), newNet(acc.Device(), 1), adamW)
			}},
		"averages weights, of which each rank needs all, with pp_size 2: want pp_size 1": {
			body: func(acc *accelerate.Accelerator, m *gpt2.Model) error {
				return acc.Prepare(t.Context(), m, func(c *tensor.Ctx, p []tensor.Named) (*optim.Optimizer, error) {
					return optim.ScheduleFreeSGD{}.New(c, []*optim.Group{{LR: 0.1, Params: p}}), nil
				})
			}},
		"Accumulate under pp_size: want RunWindow": {body: func(acc *accelerate.Accelerator, m *gpt2.Model) error {
			if err := prepare(acc, m); err != nil {
				return err
			}
			_, err := acc.Accumulate(t.Context(), nil, nil)
			return err
		}},
		"a backward pass of one micro-batch under pp_size: want RunWindow": {
			body: func(acc *accelerate.Accelerator, m *gpt2.Model) error {
				if err := prepare(acc, m); err != nil {
					return err
				}
				return tensor.Try(func() { acc.Backward(acc.TrainCtx(0), nil, 1, 0, true) })
			}},
	} {
		if c.set == nil {
			c.set = func(*args.TrainingArguments) {}
		}
		if c.body == nil {
			c.body = prepare
		}
		for rank, err := range pipeline(t, 2, c.set, c.body, c.opts...) {
			require.ErrorContains(t, err, want, "rank %d", rank)
		}
	}
}

// Ranks of a pipeline whose models or schedules differ do not begin: each would wait for what no other sends.
func TestPipelineComparesModelsAndTables(t *testing.T) {
	other := func(acc *accelerate.Accelerator, m *gpt2.Model) error {
		if acc.Rank() == 1 {
			m.LMHead.Weight = nn.NewInit(acc.Device(), 1).Deferred().Normal("head", 1, 61, 16)
		}
		return acc.Prepare(t.Context(), m, adamW)
	}
	for rank, err := range pipeline(t, 2, func(*args.TrainingArguments) {}, other) {
		require.ErrorContains(t, err, "the model of rank 1 has other parameters than that of rank 0", "rank %d", rank)
	}
	require.NoError(t, accelerate.Disagreement("a", "a"))
	require.ErrorContains(t, accelerate.Disagreement("a", "b"), "pp_schedule: the file has another table on rank 1")
}

// A loss that is not finite, and a window without loss terms, leave out the step on all ranks of a pipeline.
func TestPipelineLeavesOutSteps(t *testing.T) {
	for _, wrong := range []string{"loss", "terms"} {
		numbers := make([]accelerate.Numbers, 2)
		none := func(*args.TrainingArguments) {}
		errs := pipeline(t, 2, none, func(acc *accelerate.Accelerator, m *gpt2.Model) error {
			if err := acc.Prepare(t.Context(), m, adamW); err != nil {
				return err
			}
			read := func() (list []string) {
				for _, p := range acc.Trained() {
					list = append(list, string(tensor.ReadBytes(acc.Ctx().NoGrad(), p.Tensor)))
				}
				return list
			}
			before := read()
			s, err := acc.StartWindow(t.Context(), []*data.Batch{ids(acc.Ctx(), 0), ids(acc.Ctx(), 1)},
				accelerate.WindowOptions{Loss: func(c *nn.Ctx, b *data.Batch) (accelerate.Output, error) {
					out, err := stage(c, m, b)
					switch {
					case out.Loss == nil:
					case wrong == "loss":
						out.Loss = tensor.Affine(c.Ctx, out.Loss, 1, math.NaN())
					default:
						out.Loss, out.Count = tensor.Affine(c.Ctx, out.Loss, 0, 0), 0
					}
					return out, err
				}})
			if err != nil {
				return err
			}
			defer s.Free()
			if err := errors.Join(s.Clip(t.Context(), 1), s.Step(t.Context())); err != nil {
				return err
			}
			if numbers[acc.Rank()], err = s.Read(t.Context()); err != nil {
				return err
			}
			require.Equal(t, before, read())
			return nil
		})
		require.NoError(t, errors.Join(errs...), wrong)
		for _, n := range numbers {
			require.Equal(t, wrong == "terms", n.Empty)
			require.Equal(t, wrong == "terms", n.Finite)
		}
	}
}

// A model that fits into memory only in stages is not refused.
func TestPipelineOfAModelThatDoesNotFitAsAWhole(t *testing.T) {
	m, err := staged(tensor.CPU(), 0)
	require.NoError(t, err)
	n := nn.NumParameters(m)
	train := func(acc *accelerate.Accelerator, m *gpt2.Model) error { return acc.Prepare(t.Context(), m, adamW) }
	for bytes, fits := range map[int]bool{20: true, 14: false} { // 16 of an element: with its gradient and moments
		back := accelerate.SetHostLimit(uint64(bytes * n))
		errs := pipeline(t, 2, func(*args.TrainingArguments) {}, train)
		back()
		if fits {
			require.NoError(t, errors.Join(errs...))
		} else {
			require.ErrorContains(t, errors.Join(errs...), "each of the 2 ranks on this host needs")
		}
	}
}
