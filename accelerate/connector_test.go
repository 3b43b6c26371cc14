// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/args"
)

// What changes in the arguments after New has no effect until SetArguments.
func TestArgumentsAreReadOnce(t *testing.T) {
	a := args.Default("")
	a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps = 4, 2
	acc, err := accelerate.New(a)
	require.NoError(t, err)
	layout := func() [2]int {
		l, err := acc.Layout()
		require.NoError(t, err)
		return [2]int{l.BatchSize, l.AccumulationSteps}
	}
	a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps = 8, 3
	require.Equal(t, [2]int{4, 2}, layout())
	acc.SetArguments(a)
	require.Equal(t, [2]int{8, 3}, layout())

	a.GlobalTrainBatchSize = 12
	acc.SetArguments(a)
	_, err = acc.Layout()
	require.ErrorContains(t, err, "global_train_batch_size is 12: want a multiple of per_device_train_batch_size")
}

// fsdp and zero_stage name the strategies that package shard has.
func TestStrategiesHaveTheirNames(t *testing.T) {
	require.Equal(t,
		[]args.ShardStrategy{args.NoShard, args.ShardOptimizer, args.ShardGradients, args.ShardGradOp, args.FullShard},
		[]args.ShardStrategy{args.ShardStrategy(shard.None), args.ShardStrategy(shard.Optimizer),
			args.ShardStrategy(shard.Gradients), args.ShardStrategy(shard.GradOp), args.ShardStrategy(shard.Full)})
}
