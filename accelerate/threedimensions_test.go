// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// later is dividable without memory.
func later(dev *tensor.Device, seed uint64) (*gpt2.Model, error) {
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = 61, 8, 16, 2, 4
	cfg.BosTokenID, cfg.EosTokenID = nil, nil
	return gpt2.New(nn.NewInit(dev, seed).Deferred(), cfg)
}

// cube is the mesh and schedule of a run in a hand-written loop.
type cube struct {
	comm.Mesh
	schedule string
	sharding accelerate.Sharding
}

// run trains with sums in four parts.
func (c cube) run(t *testing.T, set func(*args.TrainingArguments)) []ended {
	t.Helper()
	ranks := c.Size(^comm.Axes(0))
	ends := make([]ended, ranks)
	for rank, err := range onDevices(t, ranks, func(a *args.TrainingArguments) {
		set(a)
		a.TPParts, a.PPSize, a.DPReplicateSize = 4, max(1, c.PP), max(1, c.DPReplicate)
		a.DPShardSize, a.CPSize, a.TPSize = max(1, c.DPShard), max(1, c.CP), max(1, c.TP)
		if c.schedule != "" {
			a.PPSchedule = c.schedule
		}
	}, later, func(acc *accelerate.Accelerator, m *gpt2.Model) (err error) {
		end := &ends[acc.Rank()]
		if end.losses, err = windows(t.Context(), acc, m); err != nil {
			return err
		}
		held := int64(0)
		for _, p := range acc.Trained() {
			held += int64(p.Bytes())
		}
		if most := acc.ShardMemory(); ranks > 1 && c.DPReplicate <= 1 && held > most.Parameters+most.Uncut {
			return fmt.Errorf("%d bytes of parameters are trained: want those that the rank has, %+v", held, most)
		}
		if err = acc.Unshard(t.Context()); err == nil {
			end.weights = weightsOf(acc, m)
		}
		return err
	}, withStages, accelerate.WithSharding(c.sharding)) {
		require.NoError(t, err, "%v, rank %d", c, rank)
	}
	return ends
}

// Parts of matrices are sharded as whole ones are, over ranks that see other samples, and stages of pipelines have
// parts of their layers, sharded or not: with the bits of one rank with the same parts, one rank along tp included.
func TestPartsOfMatricesOnMeshes(t *testing.T) {
	sharded := func(s shard.Strategy, gather bool) accelerate.Sharding {
		return accelerate.Sharding{Strategy: s, Gather: gather}
	}
	whole := accelerate.Sharding{}
	type setting = func(*args.TrainingArguments)
	for name, c := range map[string]struct {
		set   setting
		cubes []cube
	}{
		"float32": {usually, []cube{
			{comm.Mesh{DPShard: 2, TP: 2}, "", sharded(shard.Full, true)},
			{comm.Mesh{DPShard: 2, TP: 2}, "", sharded(shard.GradOp, true)},
			{comm.Mesh{DPShard: 2, TP: 2}, "", sharded(shard.Gradients, false)},
			{comm.Mesh{DPReplicate: 2, DPShard: 2, TP: 2}, "", sharded(shard.Full, true)},
			{comm.Mesh{DPShard: 2}, "", sharded(shard.Full, true)},
			{comm.Mesh{PP: 2}, "1f1b", whole},
			{comm.Mesh{PP: 2, TP: 2}, "1f1b", whole},
			{comm.Mesh{PP: 2, TP: 4}, "zbv", whole},
			{comm.Mesh{PP: 2, DPReplicate: 2, TP: 2}, "zb_h1", whole},
			{comm.Mesh{PP: 2, DPShard: 2, TP: 2}, "interleaved_1f1b", sharded(shard.Full, true)},
		}},
		"bf16": {func(a *args.TrainingArguments) { a.BF16 = true }, []cube{
			{comm.Mesh{DPShard: 2, TP: 2}, "", sharded(shard.Full, false)},
			{comm.Mesh{DPShard: 2, TP: 2}, "", sharded(shard.Optimizer, false)},
			{comm.Mesh{PP: 2, DPShard: 2, TP: 2}, "zbv", sharded(shard.Full, true)},
		}},
		"tokens": {func(a *args.TrainingArguments) { a.CPChunks = 4 }, []cube{
			{comm.Mesh{PP: 2, CP: 2, TP: 2}, "zbv", whole},
			{comm.Mesh{PP: 2, CP: 2, TP: 2}, "1f1b", sharded(shard.Full, true)},
		}},
		"fp16": {func(a *args.TrainingArguments) { a.FP16 = true }, []cube{
			{comm.Mesh{PP: 2, DPShard: 2, TP: 2}, "1f1b", sharded(shard.Optimizer, true)},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			one := cube{}.run(t, c.set)[0]
			for i, on := range c.cubes {
				if testing.Short() && i%2 == 1 { // what the ranks of each have is in the others
					continue
				}
				for rank, got := range on.run(t, c.set) {
					require.Equal(t, one.losses, got.losses, "%v, rank %d", on, rank)
					for name, bits := range one.weights {
						require.True(t, bits == got.weights[name], "%v, rank %d: %s", on, rank, name)
					}
				}
			}
		})
	}
}

// A rank that loads a saved model has memory for the parts of its own layers or shards, not for those that other ranks
// of its pipeline, or of those that share its parts, will have.
func TestLoadedPartsOnMeshes(t *testing.T) {
	dir, cfg := t.TempDir(), gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = 2001, 8, 64, 24, 4
	saved, err := gpt2.New(nn.NewInit(tensor.CPU(), 1), cfg)
	require.NoError(t, err)
	config, err := models.ConfigJSON(saved)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, models.ConfigFile), config, 0o600))
	require.NoError(t, models.SaveWeights(saved, filepath.Join(dir, "model.safetensors")))
	whole := int64(4 * nn.NumParameters(saved))
	load := func(dev *tensor.Device, _ uint64) (*gpt2.Model, error) {
		m, err := models.LoadPretrained(dev, dir, models.Deferred())
		if err != nil {
			return nil, err
		}
		return m.(*gpt2.Model), nil
	}
	for _, c := range []cube{
		{comm.Mesh{PP: 2, TP: 2}, "1f1b", accelerate.Sharding{}},
		{comm.Mesh{DPShard: 2, TP: 2}, "", accelerate.Sharding{Strategy: shard.Full, Gather: true}},
	} {
		for rank, err := range onDevices(t, 4, func(a *args.TrainingArguments) {
			a.PPSize, a.DPShardSize, a.TPSize = max(1, c.PP), max(1, c.DPShard), c.TP
		}, load, func(acc *accelerate.Accelerator, m *gpt2.Model) error {
			if err := acc.Prepare(t.Context(), m, adamW, m.RecomputeUnits()...); err != nil {
				return err
			}
			held, peak := int64(0), acc.Device().MemStats().Peak
			for _, p := range acc.Trained() {
				held += int64(p.Bytes())
			}
			most := held + held/10
			if c.DPShard > 1 {
				most = whole / 2 // a shard with its padding, and two units; not all parts
			}
			if peak > most {
				return fmt.Errorf("a peak of %d bytes, %d are held: want at most %d", peak, held, most)
			}
			return nil
		}, withStages, accelerate.WithSharding(c.sharding)) {
			require.NoError(t, err, "%v, rank %d", c, rank)
		}
	}
}
