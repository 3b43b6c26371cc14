// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/fake"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// What a rank sends and receives in a step of GPT-2 is what the formulas of docs/sharding.md say, by the flight record:
// with P trained parameters, R of them in the root, and A micro-batches of each of N ranks.
func TestTrafficOfAStep(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's, and this model is large
	}
	for _, ranks := range []int{2, 4} {
		for _, passes := range []int{1, 3} {
			if ranks > 2 && passes > 1 {
				continue
			}
			for _, s := range strategies {
				t.Run(fmt.Sprintf("%s, %d ranks, %d passes", s, ranks, passes), func(t *testing.T) {
					record, p, r := recordedStep(t, s, ranks, passes, nil)
					gathers, gradients := map[string]int{}, map[string]int{} // calls by label
					gathered, sent := 0, 0                                   // elements
					for _, e := range record {
						switch {
						case e.Op == comm.AllGather:
							gathers[e.Label]++
							gathered += e.Count * ranks
						case strings.HasPrefix(e.Label, "gradients"):
							gradients[e.Label]++
							sent += e.Count * ranks
						}
					}
					units := 12 + 1
					switch s {
					case shard.Optimizer:
						requireWithin(t, p, gathered)
						requireWithin(t, p, sent)
						return
					case shard.Gradients:
						requireWithin(t, p, gathered)
						requireWithin(t, passes*p, sent)
						return
					case shard.GradOp:
						requireWithin(t, passes*p, gathered)
					case shard.Full:
						requireWithin(t, passes*(2*p-r), gathered)
					}
					requireWithin(t, passes*p, sent)
					require.Len(t, gathers, units)
					require.Len(t, gradients, units)
					for label, n := range gradients {
						require.Equal(t, passes, n, label)
					}
					for label, n := range gathers {
						want := passes
						if s == shard.Full && !strings.Contains(label, "root") {
							want = 2 * passes
						}
						require.Equal(t, want, n, label)
					}
				})
			}
		}
	}
}

// Under bf16 the weights and biases of products are gathered in half the bytes, and gradients are float32 all the same;
// unless they are to travel rounded.
func TestTrafficOfAStepInBF16(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's, and this model is large
	}
	for _, s := range []shard.Strategy{shard.GradOp, shard.Full} {
		for _, rounded := range []bool{false, true} {
			const ranks, passes = 2, 2
			record, p, r := recordedStep(t, s, ranks, passes, func(a *args.TrainingArguments) {
				a.BF16 = true
				if rounded {
					a.FSDPReduceDType = args.ReduceBFloat16
				}
			})
			gathered, sent := 0, 0 // bytes
			for _, e := range record {
				bytes := e.Count * ranks * e.DType.Size()
				switch {
				case e.Op == comm.AllGather:
					gathered += bytes
				case strings.HasPrefix(e.Label, "gradients"):
					sent += bytes
				}
			}
			products := 2 * (p - r)
			if s == shard.Full {
				products *= 2 // forward and backward
			}
			requireWithin(t, passes*(products+4*r), gathered)
			size := 4
			if rounded {
				size = 2
			}
			requireWithin(t, passes*size*p, sent)
		}
	}
}

func requireWithin(t *testing.T, want, got int) {
	t.Helper()
	require.InEpsilon(t, want, got, 0.01)
}

// recordedStep is the flight record of the second step of rank 0, on a device without values and with ranks that answer
// at once, and the number of parameters of the model and of its root.
func recordedStep(t *testing.T, s shard.Strategy, ranks, passes int, set func(a *args.TrainingArguments)) (
	record []comm.FlightEntry, params, root int) {
	t.Helper()
	ctx, dev := t.Context(), tensor.NewMeta()
	defer dev.Close()
	silent := slog.New(slog.DiscardHandler)
	group, engine := fake.New(0, ranks, comm.Options{Log: silent})
	engine.Mirror = true
	a := args.Default("")
	a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps = 1, passes
	sharding := accelerate.Sharding{Strategy: s, Gather: true}
	if set != nil {
		set(a)
		sharding.Rounded = a.FSDPReduceDType == args.ReduceBFloat16
	}
	acc, err := accelerate.New(a, accelerate.WithGroup(group), accelerate.WithDevice(dev),
		accelerate.WithLogger(silent),
		accelerate.WithSharding(sharding))
	require.NoError(t, err)
	defer func() { require.NoError(t, acc.Close()) }()
	m, err := gpt2.New(nn.NewInit(dev, 3), gpt2.DefaultConfig())
	require.NoError(t, err)
	params, root = nn.NumParameters(m), m.Transformer.WTE.Weight.Numel()+m.Transformer.WPE.Weight.Numel()
	require.NoError(t, acc.Prepare(ctx, m, adamW, m.RecomputeUnits()...))
	source := data.NewSource(data.Slice[struct{}](make([]struct{}, 2*ranks*passes)),
		func(c *tensor.Ctx, samples []struct{}) (*data.Batch, error) {
			return m.ExampleBatch(c, len(samples), 64), nil
		})
	windows, err := acc.Windows(ctx, source, samplers.NewSequential(int64(2*ranks*passes)), 2)
	require.NoError(t, err)
	before := 0
	for w, err := range windows.All() {
		require.NoError(t, err)
		before = len(group.Flight().Entries)
		_, err := acc.Accumulate(context.Background(), w.Batches, func(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
			return m.Forward(c, b).Loss
		})
		require.NoError(t, err)
		require.NoError(t, acc.Step(t.Context()))
	}
	require.Zero(t, group.Flight().Dropped)
	return group.Flight().Entries[before:], params, root
}
