// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// A rank that loads a deferred model to shard it holds its shard, and one unit twice: as its parameters and as the
// buffer that is cut. A model that is not deferred is whole first, as a control.
func TestLoadOfShardedModels(t *testing.T) {
	const ranks, layers = 4, 8
	for _, strategy := range []shard.Strategy{shard.Full, shard.GradOp} {
		for _, deferred := range []bool{true, false} {
			require.NoError(t, local.Run(ranks, comm.Options{Log: quiet}, func(g *comm.Group) error {
				dev := tensor.NewCPU(1)
				defer dev.Close()
				acc, err := accelerate.New(args.Default(""), accelerate.WithGroup(g), accelerate.WithDevice(dev),
					accelerate.WithLogger(quiet),
					accelerate.WithSharding(accelerate.Sharding{Strategy: strategy, Gather: true}))
				if err != nil {
					return err
				}
				defer func() { assert.NoError(t, acc.Close()) }()
				if err := acc.Open(t.Context()); err != nil {
					return err
				}
				cfg := wideConfig()
				cfg.NEmbd, cfg.NLayer = 256, layers
				in := nn.NewInit(dev, 3)
				if deferred {
					in = in.Deferred()
				}
				m, err := gpt2.New(in, cfg)
				if err != nil {
					return err
				}
				if err := acc.Prepare(t.Context(), m, adamW, m.RecomputeUnits()...); err != nil {
					return err
				}
				whole := float64(4 * nn.NumParameters(m))
				peak, most := float64(dev.MemStats().Peak), whole/ranks+2*whole/layers
				if deferred {
					assert.Less(t, peak, 1.1*most)
				} else {
					assert.Greater(t, peak, whole)
				}
				return nil
			}))
		}
	}
}
