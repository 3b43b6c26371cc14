// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// dividable makes a GPT-2 of four heads with dropout.
func dividable(dev *tensor.Device, seed uint64) (*gpt2.Model, error) {
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = 61, 8, 16, 2, 4
	cfg.BosTokenID, cfg.EosTokenID = nil, nil
	return gpt2.New(nn.NewInit(dev, seed), cfg)
}

// tensorRanks runs body on ranks of which so many share the model, whose sums have four parts.
func tensorRanks(t *testing.T, ranks, sharing int, set func(*args.TrainingArguments),
	body func(acc *accelerate.Accelerator, m *gpt2.Model) error, opts ...accelerate.Option) []error {
	t.Helper()
	return onDevices(t, ranks, func(a *args.TrainingArguments) {
		a.TPSize, a.TPParts = sharing, 4
		set(a)
	}, dividable, body, opts...)
}

func usually(*args.TrainingArguments) {}

// weightsOf are the bits of a whole model.
func weightsOf(acc *accelerate.Accelerator, m nn.Module) map[string]string {
	bits := map[string]string{}
	for _, p := range nn.NamedParameters(m) {
		bits[p.Name] = string(tensor.ReadBytes(acc.Ctx(), p.Tensor))
	}
	return bits
}

// A hand-written loop trains a divided model with the bits of one rank with the same parts, alone and with ranks that
// see other samples: weights, losses, counts and norms. Layers are frozen in between, and the last window is short.
func TestDividedModelInALoopOfOnesOwn(t *testing.T) {
	for name, set := range map[string]func(*args.TrainingArguments){
		"float32": usually,
		"bf16":    func(a *args.TrainingArguments) { a.BF16 = true },
		"fp16":    func(a *args.TrainingArguments) { a.FP16 = true },
	} {
		t.Run(name, func(t *testing.T) {
			run := func(ranks, sharing int) []ended {
				ends := make([]ended, ranks)
				body := func(acc *accelerate.Accelerator, m *gpt2.Model) error {
					losses, err := windows(t.Context(), acc, m)
					if err != nil {
						return err
					}
					if sharing > 1 {
						require.Regexp(t, `^4 parts of each sum over [24] ranks, 0\.0 MB of parameters per rank$`,
							acc.DescribeSharding())
					}
					if held := acc.ShardMemory().Parameters; sharing > 1 {
						require.Less(t, held, int64(4*wholeSize/sharing+4*30*16), "positions and norms are whole")
					}
					if err := acc.Unshard(t.Context()); err != nil {
						return err
					}
					ends[acc.Rank()] = ended{weightsOf(acc, m), losses}
					return nil
				}
				for rank, err := range tensorRanks(t, ranks, sharing, set, body) {
					require.NoError(t, err, "rank %d of %d", rank, ranks)
				}
				return ends
			}
			one := run(1, 1)[0]
			for _, mesh := range [][2]int{{2, 2}, {4, 4}, {4, 2}, {2, 1}} {
				if testing.Short() && mesh != [2]int{4, 2} { // the race detector's run: the others share less
					continue
				}
				for rank, got := range run(mesh[0], mesh[1]) {
					require.Equal(t, one, got, "mesh %v, rank %d", mesh, rank)
				}
			}
		})
	}
}

// wholeSize is the number of parameters of dividable.
const wholeSize = 61*16 + 8*16 + 2*(12*16*16+13*16) + 2*16

// ended is the result of a run in a hand-written loop.
type ended struct {
	weights map[string]string
	losses  []float64
}

// Callbacks of every rank read the whole model within Summon, and may change it. One rank alone is refused, and so is a
// rank's own context of another tree.
func TestWholeModelWithinSummon(t *testing.T) {
	var want map[string]string
	whole := []accelerate.Option{accelerate.WithSharding(accelerate.Sharding{})}
	sharded := func(gather bool) []accelerate.Option {
		return []accelerate.Option{accelerate.WithSharding(accelerate.Sharding{Strategy: shard.Full, Gather: gather})}
	}
	for _, mesh := range []struct {
		ranks, sharing int
		opts           []accelerate.Option
	}{{1, 1, whole}, {2, 2, whole}, {4, 2, sharded(true)}, {4, 2, sharded(false)}} {
		ranks, sharing := mesh.ranks, mesh.sharing
		body := func(acc *accelerate.Accelerator, m *gpt2.Model) error {
			ctx := t.Context()
			if err := acc.Prepare(ctx, m, adamW); err != nil {
				return err
			}
			forward := func(c *nn.Ctx) (loss float64, err error) {
				err = tensor.Try(func() {
					c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
						loss = tensor.Item(c.Ctx, m.Forward(c, ids(c.Ctx, 1)).Loss)
						return nil
					})
				})
				return loss, err
			}
			parted, err := forward(acc.EvalCtx())
			if err != nil {
				return err
			}
			var bits map[string]string
			if err := acc.Summon(true, func() error {
				bits = weightsOf(acc, m)
				whole, err := forward(acc.EvalCtx())
				if err != nil {
					return err
				}
				require.InEpsilon(t, whole, parted, 1e-6)
				fresh, err := forward(nn.NewCtx(acc.Ctx().NoGrad(), nil, false))
				require.Equal(t, whole, fresh, "the model is whole")
				tensor.FillInto(acc.Ctx().NoGrad(), m.Transformer.H[1].MLP.CFC.Weight.Tensor, 0.25)
				return err
			}); err != nil {
				return err
			}
			if sharing == 1 {
				want = bits
				return nil
			}
			require.Equal(t, want, bits, "rank 0's values")
			weight := m.Transformer.H[1].MLP.CFC.Weight
			require.Equal(t, []int{16, 32}, weight.Shape())
			require.Equal(t, float32(0.25), tensor.ToSlice[float32](acc.Ctx(), weight.Tensor)[0])
			_, err = forward(nn.NewCtx(acc.Ctx().NoGrad(), nn.Walk(m), false))
			require.ErrorContains(t, err, "is divided among ranks")
			err = acc.Alone(func() error { _, err := forward(acc.EvalCtx()); return err })
			require.ErrorContains(t, err, "this rank alone uses it")
			after, err := forward(acc.EvalCtx())
			require.NotEqual(t, parted, after)
			return err
		}
		for rank, err := range tensorRanks(t, ranks, sharing, usually, body, mesh.opts...) {
			require.NoError(t, err, "rank %d of %d", rank, ranks)
		}
	}
}

func TestWhatDoesNotGoWithADividedModel(t *testing.T) {
	for want, set := range map[string]func(*args.TrainingArguments){
		"local_sgd_steps 2: want 0, or tp_size 1 and tp_pa": func(a *args.TrainingArguments) { a.LocalSGDSteps = 2 },
		"ddp_comm_hook bf16 is not built with it":           func(a *args.TrainingArguments) { a.DDPCommHook = "bf16" },
		`as --tp_plan '{"wte": "replicate", "wpe": `:        usually,
	} {
		noPlan := strings.HasPrefix(want, "as --tp_plan")
		errs := tensorRanks(t, 4, 2, set, func(acc *accelerate.Accelerator, m *gpt2.Model) error {
			if noPlan {
				return acc.Prepare(t.Context(), m.Transformer, adamW)
			}
			return acc.Prepare(t.Context(), m, adamW)
		})
		require.True(t, slices.ContainsFunc(errs, func(err error) bool {
			return err != nil && strings.Contains(err.Error(), want)
		}), "%s: %v", want, errs)
	}
	plan := func(text map[string]any) func(*args.TrainingArguments) {
		return func(a *args.TrainingArguments) { a.TPPlan = text }
	}
	parts := func(n int) func(*args.TrainingArguments) {
		return func(a *args.TrainingArguments) { a.TPParts = n }
	}
	for want, set := range map[string]func(*args.TrainingArguments){
		"accelerate: tp: tp_parts 2 on 4 ranks":                      parts(2),
		"4 heads: they do not divide into 8 parts":                   parts(8),
		`accelerate: tp: a: unknown style "column"`:                  plan(map[string]any{"a": "column"}),
		`transformer.wte.weight is shared by transformer.wte (embed`: plan(map[string]any{"lm_head": "replicate"}),
	} {
		errs := tensorRanks(t, 4, 4, set,
			func(acc *accelerate.Accelerator, m *gpt2.Model) error { return acc.Prepare(t.Context(), m, adamW) })
		require.ErrorContains(t, errs[0], want)
	}
	errs := tensorRanks(t, 2, 2, usually,
		func(acc *accelerate.Accelerator, m *gpt2.Model) error {
			return acc.Prepare(t.Context(), m, func(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error) {
				return optim.DefaultLamb().New(c, []*optim.Group{{LR: 1e-3, Params: params}}), nil
			})
		})
	require.ErrorContains(t, errs[0], "they are divided (tp_size): want "+
		"tp_size 1")
}

// Without tp_parts, sums have as many parts as deterministic_ranks, or as many as the model divides into.
func TestPartsFollowFromRanksAndModel(t *testing.T) {
	type size struct{ ranks, deterministic, want int }
	for _, c := range []size{{2, 8, 4}, {4, 8, 4}, {2, 2, 2}, {2, 1, 2}, {1, 8, 0}} {
		errs := tensorRanks(t, c.ranks, c.ranks, func(a *args.TrainingArguments) {
			a.TPParts, a.DeterministicRanks = 0, c.deterministic
		}, func(acc *accelerate.Accelerator, m *gpt2.Model) error {
			err := acc.Prepare(t.Context(), m, adamW)
			require.Equal(t, c.want, acc.TensorParts(), "%v", c)
			return err
		})
		require.NoError(t, errors.Join(errs...))
	}
}

// Ranks that share a model read the same data, each by itself: if one cannot, the window ends on all.
func TestUnreadDataOfARankThatSharesAModel(t *testing.T) {
	unreadable := errors.New("a broken file")
	seen := make([]error, 4)
	for rank, err := range tensorRanks(t, 4, 2, usually,
		func(acc *accelerate.Accelerator, m *gpt2.Model) error {
			ctx := context.Background()
			if err := acc.Prepare(ctx, m, adamW); err != nil {
				return err
			}
			o := accelerate.WindowOptions{
				Loss: func(c *nn.Ctx, b *data.Batch) (accelerate.Output, error) { return stage(c, m, b) }}
			batches := []*data.Batch{ids(acc.Ctx(), acc.DataRanks().Rank())}
			if acc.Rank() == 3 {
				o.DataErr, batches = unreadable, nil
			}
			_, seen[acc.Rank()] = acc.RunWindow(ctx, batches, o)
			o.DataErr = nil
			_, err := acc.RunWindow(ctx, []*data.Batch{ids(acc.Ctx(), acc.DataRanks().Rank())}, o)
			return err
		}) {
		require.NoError(t, err, "rank %d goes on", rank)
		require.Error(t, seen[rank])
	}
	require.ErrorIs(t, seen[3], unreadable)
}
