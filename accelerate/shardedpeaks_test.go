// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"cmp"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// What a rank holds is what the formulas of docs/sharding.md say, within 5 %: parameters, gradients and optimizer state
// as the table has them, and the most at one time, on a device of its own, as shard.Memory has it with what comes and
// goes. Activations of a few tokens are nothing beside it.
func TestPeaksOfShardedModels(t *testing.T) {
	if testing.Short() {
		t.Skip("large matrices: not under the race detector")
	}
	for _, c := range []struct {
		strategy shard.Strategy
		share    bool
		replicas int
		bf16     bool
		stays    func(n float64) float64 // bytes per parameter, from the number of ranks
	}{
		{shard.None, false, 0, false, func(float64) float64 { return 16 }},
		{shard.Optimizer, false, 0, false, func(n float64) float64 { return 8 + 8/n }},
		{shard.Gradients, false, 0, false, func(n float64) float64 { return 4 + 12/n }},
		{shard.GradOp, false, 0, false, func(n float64) float64 { return 16 / n }},
		{shard.Full, false, 0, false, func(n float64) float64 { return 16 / n }},
		{shard.Full, true, 0, false, func(n float64) float64 { return 16 / n }},
		{shard.Full, false, 2, false, func(n float64) float64 { return 16 / n }},
		{shard.Full, true, 2, false, func(n float64) float64 { return 16 / n }},
		{shard.Full, false, 0, true, func(n float64) float64 { return 16 / n }},
		{shard.Full, true, 0, true, func(n float64) float64 { return 18 / n }},
	} {
		name := fmt.Sprintf("%s, shared %v, %d replicas, bf16 %v", cmp.Or(c.strategy, "ddp"), c.share, c.replicas,
			c.bf16)
		t.Run(name, func(t *testing.T) {
			ranks := 2 * max(c.replicas, 1)
			var wait sync.WaitGroup
			for _, g := range local.New(ranks, comm.Options{Log: quiet}) {
				wait.Go(func() {
					sharding := accelerate.Sharding{Strategy: c.strategy, Gather: !c.share}
					peak, stays, formula, params := peakOf(t, g, c.bf16, sharding)
					assert.InEpsilon(t, c.stays(2)*params, stays, 0.05)
					assert.InEpsilon(t, formula, peak, 0.05)
					t.Logf("%.3f of the formula, %.0f bytes per parameter", peak/formula, peak/params)
				})
			}
			wait.Wait()
		})
	}
}

// peakOf trains two steps of one micro-batch as a rank of g. It gives the most bytes that the rank held, those that the
// formulas say stay from step to step and are there at most, and the number of parameters.
func peakOf(t *testing.T, g *comm.Group, bf16 bool, sharding accelerate.Sharding) (peak, stays, formula,
	params float64) {
	ctx, dev := t.Context(), tensor.NewCPU(1)
	defer dev.Close()
	a := args.Default("")
	a.PerDeviceTrainBatchSize, a.DDPBucketCapMB, a.BF16 = 1, 1, bf16
	a.DPReplicateSize = g.Size() / 2 // each is spread over two ranks
	acc, err := accelerate.New(a, accelerate.WithGroup(g), accelerate.WithDevice(dev), accelerate.WithLogger(quiet),
		accelerate.WithSharding(sharding))
	require.NoError(t, err)
	defer func() { require.NoError(t, acc.Close()) }()
	require.NoError(t, acc.Open(ctx))
	cfg := wideConfig()
	cfg.NEmbd, cfg.NLayer = 256, 8
	m, err := gpt2.New(nn.NewInit(dev, 3).Deferred(), cfg)
	require.NoError(t, err)
	require.NoError(t, acc.Prepare(ctx, m, adamW, m.RecomputeUnits()...))
	ranks := int64(acc.WorldSize())
	source := data.NewSource(data.Slice[[]int32](make([][]int32, 2*ranks)),
		func(c *tensor.Ctx, _ [][]int32) (*data.Batch, error) {
			return data.CausalLM(0)(c, [][]int32{{1, 2, 3}})
		})
	windows, err := acc.Windows(ctx, source, samplers.NewSequential(2*ranks), 2)
	require.NoError(t, err)
	for w, err := range windows.All() {
		require.NoError(t, err)
		_, err := acc.Accumulate(ctx, w.Batches, func(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
			return m.Forward(c, b).Loss
		})
		require.NoError(t, err)
		clip(t, acc, 1)
		require.NoError(t, acc.Step(t.Context()))
	}
	params = float64(nn.NumParameters(m))
	if acc.Shards() == nil {
		return float64(dev.MemStats().Peak + acc.DataRanks().Allocated()), 16 * params, 16 * params, params
	}
	state := 0
	for _, p := range acc.Trained() {
		state += 8 * p.Numel()
	}
	held := acc.ShardMemory()
	return float64(dev.MemStats().Peak + held.Allocated), float64(held.Parameters + held.Gradients + int64(state)),
		float64(held.Together + int64(state)), params
}
