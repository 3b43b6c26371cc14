// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
	"github.com/lockstep-ml/lockstep/trainer/checkpointer"
)

// wideGPT2 is a GPT-2 whose matrices have several cells of 4,096 elements, so that each of eight ranks owns a part. The
// names that start with frozen are not trained, if it is not "".
func wideGPT2(t testing.TB, frozen string) models.Model {
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = vocabulary, 8, 64, 2, 2
	if testing.Short() {
		cfg.NEmbd = 32
	}
	cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = 0.1, 0.1, 0.1
	cfg.BosTokenID, cfg.EosTokenID = nil, nil
	m, err := gpt2.New(nn.NewInit(tensor.CPU(), 1), cfg)
	require.NoError(t, err)
	for _, p := range nn.NamedParameters(m) {
		if frozen != "" && strings.HasPrefix(p.Name, frozen) {
			p.SetRequiresGrad(false)
		}
	}
	return m
}

// shardsArgs make steps of 24 micro-batches, which 1, 2, 3, 4 and 8 ranks can share.
func shardsArgs(a *args.TrainingArguments) {
	a.GlobalTrainBatchSize, a.NumTrainEpochs, a.SaveSteps = 48, 3, 2
	a.EvalStrategy, a.EvalSteps, a.LearningRate = args.StrategyNo, nil, 1e-3
}

// trainWide trains a wideGPT2. gather: ranks gather parameters, though they could share memory.
func trainWide(t *testing.T, disk *vfs.Mem, ranks int, frozen string, gather bool,
	set ...func(*args.TrainingArguments)) rankRun {
	t.Helper()
	return trainWideOn(t, disk, 51, ranks, frozen, gather, set...)
}

// trainWideOn is trainWide on so many samples.
func trainWideOn(t *testing.T, disk *vfs.Mem, samples, ranks int, frozen string, gather bool,
	set ...func(*args.TrainingArguments)) rankRun {
	t.Helper()
	a := rankArgs(ranks)
	shardsArgs(a)
	for _, f := range set {
		f(a)
	}
	m := wideGPT2(t, frozen)
	opts := []trainer.Option{trainer.WithTrainData(raggedTexts(samples)), trainer.WithEvalData(raggedTexts(13))}
	if gather {
		opts = append(opts, trainer.WithSharding(accelerate.Sharding{
			Strategy: shard.Strategy(a.ShardStrategy()), Gather: true}))
	}
	tr := newTrainer(disk, m, a, opts...)
	_, err := tr.Train()
	require.NoError(t, err)
	return rankRun{weights(m), untimed(tr.State().LogHistory), disk}
}

func fullShard(a *args.TrainingArguments) { a.FSDP = []string{"full_shard"} }

func zero(stage int) func(a *args.TrainingArguments) {
	return func(a *args.TrainingArguments) { a.ZeroStage = stage }
}

func scattered(a *args.TrainingArguments) { a.FSDPStateDictType = args.ShardedStateDict }

// exported copies a folder to the disk of the machine.
func exported(t *testing.T, fsys vfs.FS, path string) string {
	dir := t.TempDir()
	entries, err := fsys.ReadDir(path)
	require.NoError(t, err)
	for _, e := range entries {
		require.NoError(t, os.WriteFile(filepath.Join(dir, e.Name()), []byte(content(t, fsys, path+"/"+e.Name())),
			0o644))
	}
	return dir
}

func filesOf(t *testing.T, fsys vfs.FS, path string) (names []string) {
	entries, err := fsys.ReadDir(path)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Each rank writes what it owns. Merged, that has the bytes of the files that rank 0 alone writes of the whole model,
// and a run that resumes from it ends with the weights and moments of one that was never interrupted, on any number of
// ranks and under any strategy.
func TestShardedCheckpoints(t *testing.T) {
	const first, last = out + "/checkpoint-2", out + "/checkpoint-6"
	parts := []string{"model.safetensors", "optimizer.safetensors", "optimizer.json"}
	ones := map[string]rankRun{} // one rank gathers nothing
	for _, k := range []struct {
		frozen string
		gather bool
	}{{"", false}, {"", true}, {"transformer.h.1.mlp", false}, {"transformer.h.1.mlp", true}} {
		if testing.Short() && (k.frozen == "") == k.gather {
			continue
		}
		frozen := k.frozen
		train := func(disk *vfs.Mem, ranks int, set ...func(*args.TrainingArguments)) rankRun {
			return trainWide(t, disk, ranks, frozen, k.gather, set...)
		}
		whole, ok := ones[frozen]
		if !ok {
			whole = train(vfs.NewMem(), 1)
			ones[frozen] = whole
		}
		require.NotEqual(t, content(t, whole.disk, first+"/"+parts[0]), content(t, whole.disk, last+"/"+parts[0]))
		many := train(vfs.NewMem(), 4, fullShard, scattered)
		require.Equal(t, whole.history, many.history)
		require.Equal(t, whole.weights, many.weights)
		for _, path := range []string{first, last} {
			names := filesOf(t, many.disk, path)
			for k := range 4 {
				require.Contains(t, names, fmt.Sprintf("shard-%05d-of-00004.safetensors", k+1))
			}
			require.NotContains(t, names, parts[0])
			require.NotContains(t, names, parts[1])
			merged := t.TempDir()
			written, err := checkpointer.MergeWeights(t.Context(), exported(t, many.disk, path), merged,
				checkpointer.MergeOptions{Optimizer: true})
			require.NoError(t, err)
			for _, part := range append(slices.Clone(parts), "config.json") {
				require.Contains(t, written, part)
				text, err := os.ReadFile(filepath.Join(merged, part))
				require.NoError(t, err)
				require.Equal(t, content(t, whole.disk, path+"/"+part), string(text), "%s/%s", path, part)
			}
		}
		for i, resume := range []struct {
			name  string
			ranks int
			set   func(a *args.TrainingArguments)
		}{
			{"1 rank", 1, fullShard}, {"2, DDP", 2, zero(0)},
			{"2, shard_grad_op", 2, func(a *args.TrainingArguments) { a.FSDP = []string{"shard_grad_op"} }},
			{"4, hybrid", 4, hybrid}, {"3, full_shard", 3, fullShard}, {"8, full_shard", 8, fullShard},
			{"4, stage 1", 4, zero(1)}, {"2, stage 2", 2, zero(2)},
			{"2, offload", 2, func(a *args.TrainingArguments) {
				fullShard(a)
				a.OffloadOptimizer, a.OffloadParams, a.OffloadDir = args.OffloadDisk, args.OffloadDisk, t.TempDir()
			}},
		} {
			name := resume.name
			if testing.Short() && resume.ranks != 3 && name != "2, offload" {
				continue
			}
			if !testing.Short() && (i%2 == 0) == ((frozen == "") == k.gather) {
				continue // each meets frozen layers and none, gathered parameters and shared ones
			}
			fork := many.disk.CrashClone(nil)
			resumed := train(fork, resume.ranks, resume.set, func(a *args.TrainingArguments) {
				a.ResumeFromCheckpoint = first
			})
			require.Equal(t, whole.weights, resumed.weights, name)
			for _, part := range parts {
				require.Equal(t, content(t, whole.disk, last+"/"+part), content(t, fork, last+"/"+part), "%s: %s", name,
					part)
			}
		}
	}
}

// hybrid has two replicas of a model that is spread over two ranks.
func hybrid(a *args.TrainingArguments) { a.DPReplicateSize, a.DPShardSize = 2, 2 }

// The strategies that keep whole parameters on every rank write pieces too; a model that one rank has is saved whole.
func TestEveryStrategyWritesShards(t *testing.T) {
	const path = out + "/checkpoint-2"
	want := ""
	for _, c := range []struct {
		ranks int
		set   func(a *args.TrainingArguments)
		shard bool
	}{{1, fullShard, false}, {2, zero(0), false}, {2, zero(1), true}, {2, zero(2), true}, {4, zero(3), true},
		{4, hybrid, true}} {
		run := trainModel(t, wideGPT2(t, ""), vfs.NewMem(), c.ranks, shardsArgs, scattered, c.set,
			func(a *args.TrainingArguments) { a.MaxSteps, a.SaveOnlyModel = 2, true })
		require.Equal(t, c.shard, slices.Contains(filesOf(t, run.disk, path), "pieces.json"))
		m, err := models.LoadPretrained(tensor.CPU(), exported(t, run.disk, path))
		require.NoError(t, err)
		require.Equal(t, run.weights, weights(m))
		got := fmt.Sprint(run.weights)
		require.True(t, want == "" || want == got)
		want = got
	}
}

// fullDisk fails to create files of a name.
type fullDisk struct {
	*vfs.Mem
	name string
}

var errFull = errors.New("no space left on device")

func (d fullDisk) Create(name string) (vfs.File, error) {
	if d.name != "" && strings.Contains(name, d.name) {
		return nil, errFull
	}
	return d.Mem.Create(name)
}

// If the disk of one rank is full, all ranks end with an error that names it, and the checkpoint before remains.
func TestARankThatCannotWriteItsShardEndsTheRun(t *testing.T) {
	full := func(a *args.TrainingArguments) { a.FSDPStateDictType = args.FullStateDict }
	for name, form := range map[string]func(*args.TrainingArguments){
		"shard-00003-of-00004": scattered, "trainer_state.json": scattered, "model.safetensors": full,
		"optimizer.safetensors": full,
	} {
		if testing.Short() && !strings.HasPrefix(name, "shard") {
			continue
		}
		disk := vfs.NewMem()
		trainModel(t, wideGPT2(t, ""), disk, 4, shardsArgs, fullShard, scattered, func(a *args.TrainingArguments) {
			a.MaxSteps = 2
		})
		a := rankArgs(4)
		for _, set := range []func(*args.TrainingArguments){shardsArgs, fullShard, form} {
			set(a)
		}
		a.ResumeFromCheckpoint = "last"
		tr := newTrainer(fullDisk{disk, name}, wideGPT2(t, ""), a, trainer.WithTrainData(raggedTexts(51)),
			trainer.WithEvalData(raggedTexts(13)))
		_, err := tr.Train()
		require.ErrorContains(t, err, errFull.Error())
		require.ErrorContains(t, err, name)
		_, err = disk.Stat(out + "/checkpoint-4")
		require.ErrorIs(t, err, fs.ErrNotExist)
		trainModel(t, wideGPT2(t, ""), disk, 2, shardsArgs, fullShard, scattered, func(a *args.TrainingArguments) {
			a.ResumeFromCheckpoint, a.MaxSteps = "last", 4
		})
	}
}

// What a rank reads of damaged pieces is an error on all ranks.
func TestResumeFromDamagedShards(t *testing.T) {
	disk := vfs.NewMem()
	trainModel(t, wideGPT2(t, ""), disk, 4, shardsArgs, fullShard, scattered, func(a *args.TrainingArguments) {
		a.MaxSteps = 2
	})
	path := out + "/checkpoint-2/shard-00004-of-00004.safetensors"
	text := []byte(content(t, disk, path))
	text[len(text)-1] ^= 1
	require.NoError(t, disk.Remove(path))
	require.NoError(t, vfs.WriteFile(disk, path, text))
	a := rankArgs(4)
	for _, set := range []func(*args.TrainingArguments){shardsArgs, fullShard} {
		set(a)
	}
	a.ResumeFromCheckpoint = out + "/checkpoint-2"
	_, err := newTrainer(disk, wideGPT2(t, ""), a, trainer.WithTrainData(raggedTexts(51)),
		trainer.WithEvalData(raggedTexts(13))).Train()
	require.ErrorContains(t, err, "shard-00004-of-00004.safetensors")
}
