// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"math"
	"testing"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/trainer"
)

// Huge settings train, or are one error that names the setting: never a panic, never out of memory.
func TestHugeSettings(t *testing.T) {
	for key, c := range map[string]struct {
		set     func(a *args.TrainingArguments, n int)
		refused bool
	}{
		"per_device_train_batch_size": {func(a *args.TrainingArguments, n int) { a.PerDeviceTrainBatchSize = n }, true},
		"per_device_eval_batch_size":  {func(a *args.TrainingArguments, n int) { a.PerDeviceEvalBatchSize = n }, true},
		"gradient_accumulation_steps": {func(a *args.TrainingArguments, n int) {
			a.GradientAccumulationSteps = n
		}, true},
		"global_train_batch_size": {func(a *args.TrainingArguments, n int) { a.GlobalTrainBatchSize = n }, true},
		"dataloader_num_workers":  {func(a *args.TrainingArguments, n int) { a.DataloaderNumWorkers = n }, true},
		"dataloader_prefetch_factor": {func(a *args.TrainingArguments, n int) {
			a.DataloaderNumWorkers, a.DataloaderPrefetchFactor = 1, &n
		}, true},
		"num_replicas": {func(a *args.TrainingArguments, n int) { a.NumReplicas = n }, true},
		"ddp_bucket_cap_mb": {func(a *args.TrainingArguments, n int) {
			a.NumReplicas, a.DDPBucketCapMB = 2, n
		}, true},
		"ddp_timeout":   {func(a *args.TrainingArguments, n int) { a.NumReplicas, a.DDPTimeout = 2, n }, true},
		"profile_steps": {func(a *args.TrainingArguments, n int) { a.ProfileSteps = n }, true},
		"max_steps": {func(a *args.TrainingArguments, n int) {
			a.MaxSteps, a.MaxTrainSeconds = n, 0.01
		}, false},
		"num_train_epochs": {func(a *args.TrainingArguments, n int) {
			a.NumTrainEpochs, a.MaxTrainSeconds = float64(n), 0.01
		}, true},
		"save_total_limit":    {func(a *args.TrainingArguments, n int) { a.SaveTotalLimit = &n }, false},
		"logging_steps":       {func(a *args.TrainingArguments, n int) { a.LoggingSteps = float64(n) }, false},
		"warmup_steps":        {func(a *args.TrainingArguments, n int) { a.WarmupSteps = float64(n) }, false},
		"deterministic_ranks": {func(a *args.TrainingArguments, n int) { a.DeterministicRanks = 1 << 30 }, false},
	} {
		for _, n := range []int{math.MaxInt32, math.MaxInt} {
			src := source(points(64))
			a := lineArgs(func(a *args.TrainingArguments) { c.set(a, n) })
			_, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithTrainData(src),
				trainer.WithEvalData(src)).Train()
			if err != nil || c.refused {
				requireOneError(t, err, key+" is ", "want")
			}
		}
	}
}
