// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/args"
)

// Under mixed precision the weights of products come rounded, which is how the products read them: the bits are those
// of one rank.
func TestShardedModelsInMixedPrecision(t *testing.T) {
	samples, steps := 44, int64(3)
	if testing.Short() {
		samples, steps = 26, 2
	}
	for i, c := range []struct {
		name string
		set  func(a *args.TrainingArguments)
	}{
		{"bf16", func(a *args.TrainingArguments) { a.BF16 = true }},
		{"bf16, recomputed", func(a *args.TrainingArguments) { a.BF16, a.GradientCheckpointing = true, true }},
		{"fp16", func(a *args.TrainingArguments) { a.FP16, a.FP16InitialScale = true, 16 }},
		{"bf16, by class", func(a *args.TrainingArguments) {
			a.BF16, a.FSDPTransformerLayerClsToWrap = true, []string{"GPT2MLP", "gpt2.Attention"}
		}},
	} {
		one := shardRun{ranks: 1, microBatches: 24, steps: steps, samples: samples, set: c.set}
		want, norms := one.run(t)
		for j, strategy := range []shard.Strategy{shard.GradOp, shard.Full} {
			for k, share := range []bool{false, true} {
				if testing.Short() && share != (strategy == shard.Full) {
					continue
				}
				r := one
				r.ranks, r.strategy, r.share = 2+(i+j+k)%3, strategy, share // every two settings meet
				if testing.Short() {
					r.ranks = 3
				}
				what := fmt.Sprintf("%s, %s, %d ranks, shared %v", c.name, strategy, r.ranks, share)
				got, n := r.run(t)
				require.Equal(t, norms, n, what)
				for rank := range got {
					require.True(t, equalWeights(want[0], got[rank]), "%s: rank %d", what, rank)
				}
			}
		}
	}
}

// Parameters of ignored modules, and small ones, stay whole on every rank, and change no bit.
func TestParametersThatStay(t *testing.T) {
	for _, bf16 := range []bool{false, true} {
		set := func(a *args.TrainingArguments) { a.BF16 = bf16 }
		want, norms := shardRun{ranks: 1, microBatches: 8, steps: 2, samples: 20, set: set}.run(t)
		for what, also := range map[string]func(s *accelerate.Sharding){
			"ignored":   func(s *accelerate.Sharding) { s.Ignored = `transformer\.h\.\d\.mlp` },
			"small":     func(s *accelerate.Sharding) { s.Persist = 5000 },
			"all small": func(s *accelerate.Sharding) { s.Persist = 1 << 30 },
		} {
			for _, strategy := range []shard.Strategy{shard.GradOp, shard.Full} {
				got, n := shardRun{ranks: 2, strategy: strategy, microBatches: 8, steps: 2, samples: 20, set: set,
					also: also}.run(t)
				require.Equal(t, norms, n, what)
				require.True(t, equalWeights(want[0], got[0]), "%s: %s", what, strategy)
				require.True(t, equalWeights(want[0], got[1]), "%s: %s", what, strategy)
			}
		}
	}
	a := rankArgs(2)
	err := accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
		m := newNet(acc.Device(), 1)
		return acc.Prepare(t.Context(), m, nil)
	}, accelerate.WithLogger(quiet), accelerate.WithSharding(accelerate.Sharding{Strategy: shard.Full, Gather: true,
		Ignored: "head"}))
	require.ErrorContains(t, err, `shard: fsdp_ignored_modules "head" matches no module's path; they are as `)
}

// Gradients that travel rounded are added in float32, micro-batch by micro-batch: the result differs from that of
// float32, and not with the number of ranks.
func TestGradientsThatTravelRounded(t *testing.T) {
	run := func(ranks int, strategy shard.Strategy, rounded bool) (map[string]string, []float64) {
		got, norms := shardRun{ranks: ranks, strategy: strategy, microBatches: 12, steps: 2, samples: 40,
			also: func(s *accelerate.Sharding) { s.Rounded = rounded }}.run(t)
		for rank := range got {
			require.True(t, equalWeights(got[0], got[rank]), rank)
		}
		return got[0], norms
	}
	exact, norms := run(1, shard.None, false)
	want, near := run(2, shard.Gradients, true)
	require.False(t, equalWeights(exact, want))
	for i, n := range norms {
		require.InEpsilon(t, n, near[i], 0.01)
	}
	for _, strategy := range strategies[1:] {
		for _, ranks := range []int{2, 3, 4} {
			if testing.Short() && ranks != 3 { // the race detector's run: two share less
				continue
			}
			got, n := run(ranks, strategy, true)
			require.Equal(t, near, n, strategy)
			require.True(t, equalWeights(want, got), "%s, %d ranks", strategy, ranks)
		}
	}
	_, first := run(2, shard.Optimizer, true) // each rank adds its micro-batches up before
	for i, n := range norms {
		require.InEpsilon(t, n, first[i], 0.01)
	}
}
