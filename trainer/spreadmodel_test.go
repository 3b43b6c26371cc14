// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// Ranks of a model that stays spread train, evaluate, predict and save without memory for all of it, and come to what
// others do, which have it whole at the end. A second run begins with the parts.
func TestSpreadModel(t *testing.T) {
	cfg := gpt2.DefaultConfig()
	cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.VocabSize, cfg.NPositions = 6, 128, 4, 64, 8
	if testing.Short() {
		cfg.NEmbd = 32
	}
	const ranks = 4
	type outcome struct {
		losses      []float64
		models      [2][]byte
		most, whole int64 // bytes of tensors of a rank, and of the model
	}
	for name, set := range map[string]func(a *args.TrainingArguments){
		"full_shard": fullShard,
		"tp":         func(a *args.TrainingArguments) { a.TPSize = ranks },
		"pp":         func(a *args.TrainingArguments) { a.PPSize, a.PPSplit = ranks, []string{"2", "2", "2", "2"} },
		"pp, full_shard": func(a *args.TrainingArguments) {
			fullShard(a)
			a.PPSize, a.DPShardSize = 2, 2
		},
	} {
		t.Run(name, func(t *testing.T) {
			train := func(opts ...trainer.Option) (o outcome) {
				a := args.Default(out)
				a.PerDeviceTrainBatchSize, a.PerDeviceEvalBatchSize, a.MaxSteps = 1, 1, 2
				a.SaveStrategy, a.FSDPShareParameters, a.DeterministicRanks = args.StrategyNo, false, 1
				a.Optim = args.OptimSGD // a rank's moments of AdamW would be as large as the model
				set(a)
				outcomes, fsys := make([]outcome, ranks), vfs.NewMem()
				require.NoError(t, local.Run(ranks, comm.Options{}, func(g *comm.Group) error {
					dev := tensor.NewCPU(1)
					defer dev.Close()
					m, err := gpt2.New(nn.NewInit(dev, 1).Deferred(), cfg)
					if err != nil {
						return err
					}
					o := &outcomes[g.Rank()]
					o.whole = int64(4 * nn.NumParameters(m))
					tr := newTrainer(fsys, m, a.Clone(), append(opts, trainer.WithGroup(g), trainer.WithDevice(dev),
						trainer.WithTrainData(blank(32, cfg)), trainer.WithEvalData(blank(8, cfg)))...)
					if _, err := tr.Train(); err != nil {
						return err
					}
					metrics, err := tr.Evaluate()
					if err != nil {
						return err
					}
					predicted, err := tr.Predict(blank(8, cfg))
					if err != nil {
						return err
					}
					o.losses = []float64{metrics["eval_loss"], predicted.Metrics["test_loss"]}
					if err := tr.SaveModel("model"); err != nil {
						return err
					}
					o.most = dev.MemStats().Peak
					if a.ShardStrategy() != args.NoShard { // whose units and their gradients come and go
						o.most = dev.MemStats().InUse
					}
					if _, err := tr.Train(); err != nil {
						return err
					}
					return errors.Join(tr.SaveModel("again"), tr.Close())
				}))
				for _, other := range outcomes {
					o.most = max(o.most, other.most)
					require.Equal(t, outcomes[0].losses, other.losses)
				}
				o.losses, o.whole = outcomes[0].losses, outcomes[0].whole
				for i, dir := range []string{"model", "again"} {
					text, err := vfs.ReadFile(fsys, dir+"/model.safetensors", 1<<30)
					require.NoError(t, err)
					o.models[i] = text
				}
				return o
			}
			whole, spread := train(), train(trainer.WithSpreadModel())
			t.Logf("most of a rank: %.2f of the model, and %.2f where it becomes whole",
				float64(spread.most)/float64(spread.whole), float64(whole.most)/float64(whole.whole))
			require.Less(t, spread.most, spread.whole)
			require.Greater(t, whole.most, whole.whole, "a control")
			require.InDeltaSlice(t, whole.losses, spread.losses, 1e-6) // parts have sums of their own
			require.True(t, slices.EqualFunc(whole.models[:], spread.models[:], bytes.Equal), "saved models")
			require.False(t, bytes.Equal(spread.models[0], spread.models[1]), "a control: it trains on")
		})
	}
}
