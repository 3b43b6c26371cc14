// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/syncbuffer"
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// odd is a model with what makes sharding hard: two units share a weight, one is called twice, one is frozen in part,
// and parts are not used.
type odd struct {
	Links []*link `nn:"links"`
}

func newOdd(dev *tensor.Device) *odd {
	m := &odd{newChain(dev).Links}
	m.Links[1].Inner.Weight = m.Links[0].Inner.Weight
	m.Links[3].Inner.Weight.SetRequiresGrad(false)
	return m
}

func (m *odd) units() (list []nn.Module) {
	for _, l := range m.Links {
		list = append(list, l)
	}
	return list
}

func (m *odd) loss(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
	y := nn.Unit1(c, m, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		for _, i := range []int{0, 1, 2, 2, 3} {
			x = m.Links[i].Forward(c, x, false)
		}
		return x
	}, b.Tensors[data.Inputs])
	return tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, y, y), nil, false)
}

// train trains three steps of eight micro-batches; after each one callback looks at the parameters and another changes
// them.
func (m *odd) train(t *testing.T, acc *accelerate.Accelerator) (map[string]string, error) {
	ctx := t.Context()
	if err := acc.Prepare(ctx, m, adamW, m.units()...); err != nil {
		return nil, err
	}
	layout, err := acc.Layout()
	if err != nil {
		return nil, err
	}
	for step := range 3 {
		var batches []*data.Batch
		for i := range layout.AccumulationSteps {
			batches = append(batches, batch(acc.Ctx(), 8*step+layout.MicroBatch(i), false))
		}
		if _, err := acc.Accumulate(ctx, batches, m.loss); err != nil {
			return nil, err
		}
		clip(t, acc, 0.5)
		require.NoError(t, acc.Step(t.Context()))
		var seen map[string]string
		if err := acc.Summon(false, func() error { seen = weights(acc, m); return nil }); err != nil {
			return nil, err
		}
		for rank, other := range gathered(t, acc, seen) {
			if other != fmt.Sprint(seen) {
				return nil, fmt.Errorf("rank %d sees other parameters than rank %d", rank, acc.Rank())
			}
		}
		if err := acc.Summon(true, func() error {
			return tensor.Try(func() {
				for _, p := range nn.NamedParameters(m) {
					tensor.AxpbyInto(acc.Ctx().NoGrad(), p.Tensor, 0.75, p.Tensor, 0, p.Tensor)
				}
			})
		}); err != nil {
			return nil, err
		}
	}
	if err := acc.Unshard(ctx); err != nil {
		return nil, err
	}
	return weights(acc, m), nil
}

// gathered is what all ranks see.
func gathered(t *testing.T, acc *accelerate.Accelerator, seen map[string]string) (texts []string) {
	if acc.WorldSize() == 1 {
		return nil
	}
	all, err := acc.GatherBytes(t.Context(), []byte(fmt.Sprint(seen)))
	require.NoError(t, err)
	for _, text := range all {
		texts = append(texts, string(text))
	}
	return texts
}

// Tied weights of two units, units that are called twice, frozen parameters and those that nothing uses keep the bits
// of one rank, and so does a look at the whole parameters and a change of them, in float32 and bf16, with recomputation
// and without.
func TestOddModelsSharded(t *testing.T) {
	for _, flags := range []struct{ bf16, again bool }{{false, false}, {true, false}, {true, true}} {
		set := func(_ int, a *args.TrainingArguments) { a.BF16, a.GradientCheckpointing = flags.bf16, flags.again }
		var want map[string]string
		for _, strategy := range append([]shard.Strategy{shard.None}, strategies...) {
			for _, gather := range []bool{true, false} {
				n := 4
				if strategy == shard.None {
					n = 1
				}
				var said syncbuffer.Buffer
				ranks := accelerators(t, n, set, accelerate.WithSharding(accelerate.Sharding{Strategy: strategy,
					Gather: gather}), accelerate.WithLogger(slog.New(slog.NewTextHandler(&said, nil))))
				what := fmt.Sprintf("%s, gathered %v, %+v", strategy, gather, flags)
				errs := job(t, ranks, func(acc *accelerate.Accelerator) error {
					got, err := newOdd(acc.Device()).train(t, acc)
					switch {
					case err != nil:
					case want == nil:
						want = got
					case !equalWeights(want, got):
						err = fmt.Errorf("rank %d has other weights", acc.Rank())
					}
					return err
				})
				require.Equal(t, make([]error, n), errs, what)
				if gather && (strategy == shard.Full || strategy == shard.GradOp) {
					require.Contains(t, said.String(), "belong to the unit around them")
					require.Contains(t, said.String(), "links.0.inner.weight")
				}
			}
		}
	}
}

// A text that a callback generates during training is that of one rank, and disturbs nothing.
func TestGenerationWhileTrainingSharded(t *testing.T) {
	for _, bf16 := range []bool{false, true} {
		run := func(ranks int, strategy shard.Strategy, share bool) (map[string]string, []string) {
			texts := make([]string, ranks)
			got, _ := shardRun{ranks: ranks, strategy: strategy, microBatches: 4, steps: 2, samples: 20, share: share,
				set: func(a *args.TrainingArguments) { a.BF16 = bf16 },
				after: func(acc *accelerate.Accelerator, m *gpt2.Model) error {
					return acc.Summon(false, func() error {
						ids, err := generation.Generate(context.Background(), acc.EvalCtx(), m, []int{1, 2, 3},
							generation.Options{MaxNewTokens: 8})
						texts[acc.Rank()] += fmt.Sprint(ids)
						return err
					})
				}}.run(t)
			return got[0], texts
		}
		want, text := run(1, shard.None, false)
		require.NotEmpty(t, text[0])
		for _, strategy := range strategies {
			for _, share := range []bool{false, true} {
				if testing.Short() && share == bf16 { // the race detector's run: the dtype does not matter to it
					continue
				}
				got, texts := run(2, strategy, share)
				require.Equal(t, []string{text[0], text[0]}, texts, strategy)
				require.True(t, equalWeights(want, got), strategy)
			}
		}
	}
}
