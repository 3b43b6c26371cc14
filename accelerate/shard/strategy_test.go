// SPDX-License-Identifier: Apache-2.0

package shard_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/accelerate/strategy/strategytest"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/fake"
)

// Every stage has the bits of one rank, gathered and shared.
func TestStrategies(t *testing.T) {
	for _, s := range []shard.Strategy{shard.Optimizer, shard.Gradients, shard.GradOp, shard.Full} {
		for _, gather := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, gather %v", s, gather), func(t *testing.T) {
				strategytest.Run(t, shard.Options{Strategy: s, Gather: gather, Prefetch: true}.Factory(), 2, 4, 8)
			})
		}
	}
}

func TestNewRefusesJobs(t *testing.T) {
	_, err := shard.New(strategy.Job{}, shard.Options{Strategy: shard.Optimizer})
	require.ErrorContains(t, err, "shard: the job has no ranks to spread the model over (strategy.Peers.Shards): want")
	g, _ := fake.New(0, 2, comm.Options{})
	_, err = shard.New(strategy.Job{Peers: strategy.Peers{Shards: g}}, shard.Options{Strategy: shard.Full})
	require.ErrorContains(t, err, "shard: full_shard exchanges the gradients of each micro-batch, and the ranks take "+
		"no turns: want Options.Factory")
}
