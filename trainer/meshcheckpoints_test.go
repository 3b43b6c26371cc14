// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/trainer"
	"github.com/lockstep-ml/lockstep/trainer/checkpointer"
)

// meshRun trains a wideGPT2, of tied weights and dropout, for 10 steps of 8 micro-batches, two and a half epochs,
// and saves every 5.
func meshRun(t *testing.T, disk *vfs.Mem, ranks int, set ...func(*args.TrainingArguments)) rankRun {
	t.Helper()
	return trainModel(t, wideGPT2(t, ""), disk, ranks, append([]func(*args.TrainingArguments){shardsArgs,
		func(a *args.TrainingArguments) {
			a.GlobalTrainBatchSize, a.MaxSteps, a.SaveSteps, a.LoggingSteps = 16, 10, 5, 5
		}}, set...)...)
}

func fullySharded(set func(*args.TrainingArguments)) func(*args.TrainingArguments) {
	return func(a *args.TrainingArguments) {
		fullShard(a)
		set(a)
	}
}

// A run that saves on a mesh goes on, on any other, to the bits of one rank that was never interrupted; in between lie
// the files of one rank.
func TestCheckpointsOverMeshes(t *testing.T) {
	const half, last = out + "/checkpoint-5", out + "/checkpoint-10"
	files := []string{"model.safetensors", "optimizer.safetensors", "optimizer.json"}
	whole := meshRun(t, vfs.NewMem(), 1)
	type on struct {
		name  string
		ranks int
		set   func(*args.TrainingArguments)
	}
	resumes := []on{{"one rank", 1, zero(0)}, {"pp 2", 2, meshOf(2, 0, 0, "interleaved_1f1b")},
		{"dp_shard 4", 4, fullShard}, {"pp 4", 4, meshOf(4, 0, 0, "zb_h1")},
		{"dp 4 × pp 2", 8, meshOf(2, 4, 0, "1f1b")}, {"dp 8", 8, zero(0)}}
	for i, save := range []struct {
		on
		form args.StateDictType
	}{{on{"pp 2", 2, meshOf(2, 0, 0, "zbv")}, args.FullStateDict},
		{on{"dp 2 × pp 2", 4, meshOf(2, 2, 0, "1f1b")}, args.FullStateDict},
		{on{"dp 2 × pp 2", 4, meshOf(2, 2, 0, "zb_h1")}, args.ShardedStateDict},
		{on{"pp 4", 4, meshOf(4, 0, 0, "1f1b")}, args.ShardedStateDict},
		{on{"dp_shard 2 × pp 2", 4, fullySharded(meshOf(2, 1, 2, "1f1b"))}, args.FullStateDict},
		{on{"dp 2 × dp_shard 2 × pp 2", 8, fullySharded(meshOf(2, 2, 2, "zbv"))}, args.ShardedStateDict},
		{on{"one rank", 1, zero(0)}, args.FullStateDict}} {
		if testing.Short() && i != 2 {
			continue
		}
		t.Run(save.name+" "+string(save.form), func(t *testing.T) {
			saved := meshRun(t, vfs.NewMem(), save.ranks, save.set, func(a *args.TrainingArguments) {
				a.FSDPStateDictType = save.form
			})
			require.Equal(t, whole.weights, saved.weights)
			dir := exported(t, saved.disk, half)
			if save.form == args.ShardedStateDict {
				require.NotContains(t, filesOf(t, saved.disk, half), files[0])
				merged := t.TempDir()
				_, err := checkpointer.MergeWeights(t.Context(), dir, merged,
					checkpointer.MergeOptions{Optimizer: true})
				require.NoError(t, err)
				dir = merged
			}
			for _, name := range files {
				text, err := os.ReadFile(filepath.Join(dir, name))
				require.NoError(t, err)
				require.Equal(t, content(t, whole.disk, half+"/"+name), string(text), name)
			}
			for k, resume := range resumes {
				if k%2 != i%2 { // each mesh resumes from at least two others
					continue
				}
				fork := saved.disk.CrashClone(nil)
				resumed := meshRun(t, fork, resume.ranks, resume.set, func(a *args.TrainingArguments) {
					a.ResumeFromCheckpoint = half
				})
				require.Equal(t, whole.weights, resumed.weights, resume.name)
				for _, name := range files {
					require.Equal(t, content(t, whole.disk, last+"/"+name), content(t, fork, last+"/"+name), "%s: %s",
						resume.name, name)
				}
			}
		})
	}
}

// The best checkpoint of a mesh is loaded at the end, whether it holds a model alone or what a run goes on with.
func TestTheBestModelOfAMesh(t *testing.T) {
	run := func(ranks int, set ...func(*args.TrainingArguments)) rankRun {
		return meshRun(t, vfs.NewMem(), ranks, append([]func(*args.TrainingArguments){func(a *args.TrainingArguments) {
			a.EvalStrategy, a.EvalSteps, a.SaveSteps, a.MaxSteps = args.StrategySteps, new(2.0), 2, 8
			a.LoadBestModelAtEnd, a.GreaterIsBetter = true, new(true) // of losses: the last is not the best
		}}, set...)...)
	}
	whole := run(1)
	last := run(1, func(a *args.TrainingArguments) { a.LoadBestModelAtEnd = false })
	require.NotEqual(t, fmt.Sprint(last.weights), fmt.Sprint(whole.weights), "the last is not the best")
	for _, alone := range []bool{false, true} {
		for _, form := range []args.StateDictType{args.FullStateDict, args.ShardedStateDict} {
			if testing.Short() && alone != (form == args.FullStateDict) {
				continue
			}
			many := run(4, meshOf(2, 2, 0, "1f1b"), func(a *args.TrainingArguments) {
				a.SaveOnlyModel, a.FSDPStateDictType = alone, form
			})
			require.Equal(t, whole.weights, many.weights, "save_only_model %v, %s", alone, form)
			require.Equal(t, whole.history, many.history)
		}
	}
}

// A rank of a pipeline that cannot write ends the run on all ranks, and the checkpoint before remains.
func TestARankOfAPipelineThatCannotWriteEndsTheRun(t *testing.T) {
	for name, form := range map[string]args.StateDictType{"shard-00002-of-00002": args.ShardedStateDict,
		"model.safetensors": args.FullStateDict, "optimizer.safetensors": args.FullStateDict} {
		disk := vfs.NewMem()
		set := func(steps int) func(*args.TrainingArguments) {
			return func(a *args.TrainingArguments) {
				meshOf(2, 2, 0, "1f1b")(a)
				a.FSDPStateDictType, a.MaxSteps, a.SaveSteps = form, steps, 2
				if steps > 2 {
					a.ResumeFromCheckpoint = "last"
				}
			}
		}
		meshRun(t, disk, 4, set(2))
		a := rankArgs(4)
		shardsArgs(a)
		set(4)(a)
		_, err := newTrainer(fullDisk{disk, name}, wideGPT2(t, ""), a, trainer.WithTrainData(raggedTexts(51)),
			trainer.WithEvalData(raggedTexts(13))).Train()
		require.ErrorContains(t, err, errFull.Error())
		require.ErrorContains(t, err, name)
		require.NotContains(t, filesOf(t, disk, out), "checkpoint-4")
		meshRun(t, disk, 2, set(4), meshOf(2, 0, 0, "1f1b"))
	}
}
