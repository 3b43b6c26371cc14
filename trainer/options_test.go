// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
)

// optionCases are arguments that change a run in the same way on any ranks.
var optionCases = map[string]func(*args.TrainingArguments){
	"plain": func(*args.TrainingArguments) {},
	"plateau": func(a *args.TrainingArguments) {
		a.LRSchedulerType, a.EvalSteps = args.SchedulerReduceLROnPlateau, new(2.0)
		a.LRSchedulerKwargs = map[string]any{"patience": 0, "factor": 0.5, "mode": "max"}
	},
}

// Arguments that change the steps have the same bits on one rank and on several: with whole, gathered and sharded
// parameters, and in a pipeline.
func TestOptionsOnRanks(t *testing.T) {
	micro := func(n int) func(*args.TrainingArguments) {
		return func(a *args.TrainingArguments) { a.GradientAccumulationSteps = n }
	}
	sharding := func(zero int, gather bool) func(*args.TrainingArguments) {
		return func(a *args.TrainingArguments) {
			a.NumReplicas, a.ZeroStage, a.FSDPShareParameters = 2, zero, !gather
		}
	}
	plain, _ := pipelined(t, optionCases["plain"])
	for name, set := range optionCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, records := pipelined(t, set)
			if name != "plain" {
				require.NotEqual(t, plain, want, "it has an effect")
			}
			for on, ranks := range map[string][]func(*args.TrainingArguments){
				"two ranks":  {micro(2), sharding(0, false)},
				"zero 1":     {micro(2), sharding(1, false)},
				"full shard": {micro(2), sharding(3, true)},
				"pipeline":   {pipeline(2, 2, "1f1b")},
				"two by two": {micro(2), pipeline(4, 2, "zbv"), func(a *args.TrainingArguments) { a.ZeroStage = 3 }},
				"recomputed": {func(a *args.TrainingArguments) { a.GradientCheckpointing = true }},
			} {
				if testing.Short() && on != "two ranks" {
					continue
				}
				got, logged := pipelined(t, append([]func(*args.TrainingArguments){set}, ranks...)...)
				for p, bits := range want {
					require.Equal(t, bits, got[p], "%s: %s", on, p)
				}
				require.Equal(t, records, logged, on)
			}
		})
	}
}
