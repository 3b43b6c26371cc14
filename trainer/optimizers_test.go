// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/catalog"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Every optimizer ends with the same weights and state on 1, 2 and 3 ranks, and when a run is resumed on another number
// of ranks under another strategy. Those that need whole parameters share them out only where ranks own whole ones.
func TestEveryOptimizerOnAnyNumberOfRanks(t *testing.T) {
	for _, row := range catalog.Optimizers {
		name := row.AllNames()[0]
		t.Run(name, func(t *testing.T) {
			train := func(disk *vfs.Mem, ranks int, set ...func(*args.TrainingArguments)) rankRun {
				return trainWide(t, disk, ranks, "", false, append(set, func(a *args.TrainingArguments) {
					a.Optim, a.MaxSteps, a.WeightDecay = args.Optim(name), 4, 0.1
					a.AdamBeta2 = 0.9 // so that few steps are enough to move a parameter by its second moment
				})...)
			}
			cfg, err := optim.ByName(name, nil, nil)
			require.NoError(t, err)
			whole, sharded := cfg.New(tensor.NewCtx(tensor.CPU()), nil).NeedsWhole(), fullShard
			if whole != nil {
				sharded = zero(0)
			}
			first := train(vfs.NewMem(), 1)
			three := train(vfs.NewMem(), 3, sharded)
			require.Equal(t, first.weights, three.weights, "3 ranks")
			resumed := three.disk.CrashClone(nil)
			two := train(resumed, 2, zero(0), func(a *args.TrainingArguments) {
				a.ResumeFromCheckpoint = out + "/checkpoint-2"
			})
			require.Equal(t, first.weights, two.weights, "resumed on 2 ranks")
			for _, part := range []string{"model.safetensors", "optimizer.safetensors", "optimizer.json"} {
				path := out + "/checkpoint-4/" + part
				require.Equal(t, content(t, first.disk, path), content(t, resumed, path), part)
			}
		})
	}
}
