// SPDX-License-Identifier: Apache-2.0

package shard_test

import (
	"fmt"
	"testing"

	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/accelerate/strategy/strategytest"
)

// Every stage has the bits of one rank, gathered and shared.
func TestStrategies(t *testing.T) {
	for _, s := range []shard.Strategy{shard.Optimizer, shard.Gradients, shard.GradOp, shard.Full} {
		for _, gather := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, gather %v", s, gather), func(t *testing.T) {
				strategytest.Run(t, strategytest.Suite{
					New: func(j strategy.Job) (strategy.Strategy, error) {
						return shard.New(j, shard.Options{Strategy: s, Gather: gather, Prefetch: true})
					},
					Interleaved: s.ShardsGradients(), Ranks: []int{2, 4, 8},
				})
			})
		}
	}
}
