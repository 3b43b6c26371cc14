// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/launch"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// recipe is a training run that is done several times.
type recipe struct {
	name  string
	model func(t testing.TB) models.Model // nil: a line
	train data.Source                     // nil: 64 points
	set   func(a *args.TrainingArguments)
	opts  func() []trainer.Option // fresh callbacks for each run
	steps int64                   // of the whole run
	at    []int64                 // the checkpoints to resume from
}

// trainer builds a run on fsys; change comes after the recipe's settings.
func (r recipe) trainer(t testing.TB, fsys vfs.FS, change func(a *args.TrainingArguments)) (*trainer.Trainer,
	models.Model) {
	m := models.Model(nil)
	if m = newMLP(t, 1, 1); r.model != nil {
		m = r.model(t)
	}
	train := r.train
	if train == nil {
		train = source(points(64))
	}
	a := lineArgs(func(a *args.TrainingArguments) { a.SaveStrategy, a.SaveSteps = args.StrategySteps, 1 })
	if r.set != nil {
		r.set(a)
	}
	if change != nil {
		change(a)
	}
	opts := []trainer.Option{trainer.WithTrainData(train), trainer.WithEvalData(train)}
	if r.opts != nil {
		opts = append(opts, r.opts()...)
	}
	return newTrainer(fsys, m, a, opts...), m
}

func resumeFrom(step int64) func(a *args.TrainingArguments) {
	return func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = checkpointPath(step) }
}

func stopEpochAt(steps ...int64) func() []trainer.Option {
	return func() []trainer.Option {
		return []trainer.Option{on(callbacks.StepEnd, func(e *callbacks.Event) error {
			e.Control.ShouldEpochStop = e.Control.ShouldEpochStop || slices.Contains(steps, e.State.GlobalStep)
			return nil
		})}
	}
}

func recipes() []recipe {
	tiny := func(dropout float64) func(t testing.TB) models.Model {
		return func(t testing.TB) models.Model { return newGPT2(t, dropout) }
	}
	epochs := func(a *args.TrainingArguments) {
		a.LoggingStrategy, a.EvalStrategy, a.SaveStrategy = args.StrategyEpoch, args.StrategyEpoch, args.StrategyEpoch
	}
	return []recipe{
		{name: "line", steps: 24, at: []int64{1, 5, 8, 15, 16, 23, 24}},
		{name: "sequential", set: func(a *args.TrainingArguments) {
			a.TrainSamplingStrategy = args.SamplingSequential
		}, steps: 24, at: []int64{5, 15}},
		{name: "accumulation 3, ragged tail", train: source(points(61)), set: func(a *args.TrainingArguments) {
			a.GradientAccumulationSteps = 3
		}, steps: 9, at: []int64{2, 3, 4, 8}},
		{name: "global batch 32", set: func(a *args.TrainingArguments) {
			a.GlobalTrainBatchSize = 32
		}, steps: 6, at: []int64{1, 2}},
		{name: "sgd with momentum", set: func(a *args.TrainingArguments) {
			a.Optim, a.OptimArgs, a.LearningRate = args.OptimSGD, "momentum=0.9,nesterov=true", 0.01
		}, steps: 24, at: []int64{1, 5, 15}},
		{name: "warm-up, cosine, decay", set: func(a *args.TrainingArguments) {
			a.WarmupSteps, a.LRSchedulerType, a.WeightDecay = 6, args.SchedulerCosine, 0.1
		}, steps: 24, at: []int64{3, 15}},
		{name: "max_steps over epochs", set: func(a *args.TrainingArguments) {
			a.MaxSteps = 20
		}, steps: 20, at: []int64{5, 15, 16, 20}},
		{name: "part of an epoch", set: func(a *args.TrainingArguments) {
			a.NumTrainEpochs = 1.3
		}, steps: 11, at: []int64{5, 8, 10, 11}},
		{name: "drop_last", train: source(points(61)), set: func(a *args.TrainingArguments) {
			a.DataloaderDropLast = true
		}, steps: 21, at: []int64{5, 7, 15}},
		{name: "dropout, recomputation", model: tiny(0.2), train: texts(30), set: func(a *args.TrainingArguments) {
			a.GradientCheckpointing = true
		}, steps: 12, at: []int64{2, 4}},
		{name: "dropout, 2 workers", model: tiny(0.2), train: texts(30), set: func(a *args.TrainingArguments) {
			a.DataloaderNumWorkers = 2
		}, steps: 12, at: []int64{2, 4}},
		{name: "workers, accumulation", set: func(a *args.TrainingArguments) {
			a.DataloaderNumWorkers, a.GradientAccumulationSteps = 2, 3
		}, steps: 9, at: []int64{2, 3, 4}},
		{name: "tokens", model: tiny(0), train: texts(30), set: func(a *args.TrainingArguments) {
			a.IncludeNumInputTokensSeen = args.TokensSeenAll
		}, steps: 12, at: []int64{3}},
		{name: "everything by epoch", set: epochs, steps: 24, at: []int64{8, 16, 24}},
		{name: "evaluation by epoch, saves by step", set: func(a *args.TrainingArguments) {
			epochs(a)
			a.SaveStrategy = args.StrategySteps
		}, steps: 24, at: []int64{5, 8, 15, 16, 24}},
		{name: "best model, early stopping", set: func(a *args.TrainingArguments) {
			a.EvalStrategy, a.EvalSteps, a.LoadBestModelAtEnd = args.StrategySteps, new(1.0), true
		}, opts: func() []trainer.Option {
			return []trainer.Option{trainer.WithCallbacks(&callbacks.EarlyStopping{Patience: 3, Threshold: 1e-3})}
		}, steps: 14, at: []int64{5, 12}},
		{name: "epochs ended early", opts: stopEpochAt(3, 9), steps: 17, at: []int64{2, 3, 5, 9, 12}},
		{name: "epochs ended early, saves by epoch", set: epochs, opts: stopEpochAt(3, 9), steps: 17,
			at: []int64{3, 9}},
	}
}

// TestResumeEndsWhereTheUninterruptedRunEnds resumes each recipe from several checkpoints:
// weights, optimizer, places, counters and log must be those of the uninterrupted run.
func TestResumeEndsWhereTheUninterruptedRunEnds(t *testing.T) {
	for _, r := range recipes() {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			disk := vfs.NewMem()
			tr, m := r.trainer(t, disk, nil)
			res, err := tr.Train()
			require.NoError(t, err)
			require.Equal(t, r.steps, res.GlobalStep)
			end, final, history := contents(t, disk, r.steps), weights(m), steady(tr.State().LogHistory)
			if testing.Short() {
				r.at = r.at[:1]
			}
			for _, step := range r.at {
				fork := disk.CrashClone(nil)
				tr, m := r.trainer(t, fork, resumeFrom(step))
				again, err := tr.Train()
				require.NoError(t, err)
				require.Equal(t, r.steps, again.GlobalStep, "from step %d", step)
				require.Equal(t, res.TrainingLoss, again.TrainingLoss, "from step %d", step)
				require.Equal(t, final, weights(m), "from step %d", step)
				require.Equal(t, end, contents(t, fork, r.steps), "from step %d", step)
				require.Equal(t, history, steady(tr.State().LogHistory), "from step %d", step)
			}
		})
	}
}

func TestRunsAreReproducible(t *testing.T) {
	run := func(set ...func(*args.TrainingArguments)) map[string][]byte {
		m := newMLP(t, 1, 1)
		res, err := newTrainer(vfs.NewMem(), m, lineArgs(set...), trainer.WithTrainData(source(points(64)))).Train()
		require.NoError(t, err)
		require.EqualValues(t, 24, res.GlobalStep)
		return weights(m)
	}
	one := run()
	require.Equal(t, one, run())
	require.NotEqual(t, one, run(func(a *args.TrainingArguments) { a.Seed = 43 }))
	require.Equal(t, one, run(func(a *args.TrainingArguments) { a.DataloaderNumWorkers = 2 }))
	require.Equal(t, one, run(func(a *args.TrainingArguments) { a.Seed, a.DataSeed = 43, new(uint64(42)) }),
		"without dropout only the order matters")
}

func TestRecomputationAndWorkersLeaveTheBits(t *testing.T) {
	r := recipe{model: func(t testing.TB) models.Model { return newGPT2(t, 0.2) }, train: texts(30)}
	run := func(set func(*args.TrainingArguments)) map[string][]byte {
		tr, m := r.trainer(t, vfs.NewMem(), func(a *args.TrainingArguments) {
			a.SaveStrategy = args.StrategyNo
			set(a)
		})
		_, err := tr.Train()
		require.NoError(t, err)
		return weights(m)
	}
	one := run(func(*args.TrainingArguments) {})
	require.Equal(t, one, run(func(a *args.TrainingArguments) { a.GradientCheckpointing = true }))
	require.Equal(t, one, run(func(a *args.TrainingArguments) { a.DataloaderNumWorkers = 3 }))
	require.NotEqual(t, one, run(func(a *args.TrainingArguments) { a.Seed = 7 }))
}

func TestLearnsTheLine(t *testing.T) {
	m := newLine(0, 0)
	list := make(data.Slice[goldenPoint], 64)
	for i, p := range points(64) {
		list[i] = goldenPoint{p.Inputs[0], p.Labels}
	}
	res,
		err := newTrainer(vfs.NewMem(), m, lineArgs(func(a *args.TrainingArguments) {
		a.Optim, a.LearningRate, a.MaxGradNorm = args.OptimSGD, 0.2, 0
	}), trainer.WithTrainData(data.NewSource(list, data.Stack[goldenPoint]))).Train()
	require.NoError(t, err)
	require.EqualValues(t, 24, res.GlobalStep)
	a, b := m.values(t)
	require.InDelta(t, 2, a, 0.1)
	require.InDelta(t, 3, b, 0.1)
}

func TestResumeTwice(t *testing.T) {
	r := recipe{}
	disk := vfs.NewMem()
	tr, m := r.trainer(t, disk, nil)
	_, err := tr.Train()
	require.NoError(t, err)
	want := weights(m)

	fork := disk.CrashClone(nil)
	stop := on(callbacks.StepEnd, func(e *callbacks.Event) error {
		e.Control.ShouldTrainingStop = e.Control.ShouldTrainingStop || e.State.GlobalStep == 15
		return nil
	})
	r.opts = func() []trainer.Option { return []trainer.Option{stop} }
	tr, _ = r.trainer(t, fork, resumeFrom(5))
	res, err := tr.Train()
	require.NoError(t, err)
	require.EqualValues(t, 15, res.GlobalStep)
	r.opts = nil
	tr, m = r.trainer(t, fork, func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = "last" })
	res, err = tr.Train()
	require.NoError(t, err)
	require.EqualValues(t, 24, res.GlobalStep)
	require.Equal(t, want, weights(m))
	require.Equal(t, contents(t, disk, 24), contents(t, fork, 24))

	// The same trainer once more: it goes on from the last checkpoint, where nothing is left to do.
	res, err = tr.Train()
	require.NoError(t, err)
	require.EqualValues(t, 24, res.GlobalStep)
	require.Equal(t, want, weights(m))
}

func TestResumeInAnotherFolderFindsTheBestModel(t *testing.T) {
	best := func(a *args.TrainingArguments) {
		a.EvalStrategy, a.EvalSteps, a.LoadBestModelAtEnd = args.StrategySteps, new(1.0), true
	}
	r := recipe{set: best}
	disk := vfs.NewMem()
	tr, _ := r.trainer(t, disk, func(a *args.TrainingArguments) { a.MaxSteps, a.LearningRate = 10, 0.3 })
	_, err := tr.Train()
	require.NoError(t, err)
	require.NotNil(t, tr.State().BestModelCheckpoint)
	tr, _ = r.trainer(t, disk, func(a *args.TrainingArguments) {
		a.MaxSteps, a.LearningRate, a.OutputDir, a.ResumeFromCheckpoint = 12, 50, "elsewhere", checkpointPath(10)
	})
	log := &messages{}
	trainer.WithLogger(log.logger())(tr)
	_, err = tr.Train()
	require.NoError(t, err)
	require.Equal(t, out, filepath.Dir(*tr.State().BestModelCheckpoint),
		"the wild steps after the resume are not better")
	require.Contains(t, log.String(), "loaded the best model")
	require.Contains(t, log.String(), `key=learning_rate checkpoint=0.3 now=50`)
}

func TestResumeKeepsTheLayoutOfTheCheckpoint(t *testing.T) {
	r := recipe{set: func(a *args.TrainingArguments) { a.GradientAccumulationSteps = 2 }}
	disk := vfs.NewMem()
	tr, m := r.trainer(t, disk, nil)
	_, err := tr.Train()
	require.NoError(t, err)
	want := weights(m)

	log := &messages{}
	r.opts = func() []trainer.Option { return []trainer.Option{trainer.WithLogger(log.logger())} }
	tr, m = r.trainer(t, disk, func(a *args.TrainingArguments) {
		resumeFrom(5)(a)
		a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps, a.DeterministicRanks = 4, 4, 1
	})
	_, err = tr.Train()
	require.NoError(t, err)
	require.Equal(t, want, weights(m))
	for _, line := range []string{"key=per_device_train_batch_size checkpoint=8 ignored=4",
		"key=gradient_accumulation_steps checkpoint=2 ignored=4", "key=deterministic_ranks checkpoint=8 ignored=1"} {
		require.Contains(t, log.String(), line)
	}
}

// damage changes a file of a disk in place.
func damage(t *testing.T, disk vfs.FS, name string, change func([]byte) []byte) {
	text, err := vfs.ReadFile(disk, name, 1<<30)
	require.NoError(t, err)
	require.NoError(t, disk.Remove(name))
	require.NoError(t, vfs.WriteFile(disk, name, change(text)))
}

func TestResumeRefusals(t *testing.T) {
	disk := vfs.NewMem()
	tr, _ := recipe{set: func(a *args.TrainingArguments) { a.MaxSteps = 6 }}.trainer(t, disk, nil)
	_, err := tr.Train()
	require.NoError(t, err)
	model := func(sizes ...int) func(t testing.TB) models.Model {
		return func(t testing.TB) models.Model { return newMLP(t, sizes...) }
	}
	weightsFile := filepath.Join(checkpointPath(5), "model.safetensors")
	cases := []struct {
		name  string
		spoil func(disk vfs.FS)
		run   recipe
		words []string
	}{
		{name: "missing", run: recipe{set: resumeFrom(50)},
			words: []string{"resume_from_checkpoint", checkpointPath(50), "does not exist"}},
		{name: "a file", spoil: func(disk vfs.FS) { _ = vfs.WriteFile(disk, "file", nil) },
			run:   recipe{set: func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = "file" }},
			words: []string{"file", "want a folder"}},
		{name: "truncated", spoil: func(disk vfs.FS) {
			damage(t, disk, weightsFile, func(b []byte) []byte { return b[:len(b)-1] })
		},
			words: []string{weightsFile, "truncated"}},
		{name: "a bit", spoil: func(disk vfs.FS) {
			damage(t, disk, weightsFile, func(b []byte) []byte { b[len(b)-3] ^= 4; return b })
		}, words: []string{weightsFile, "damaged", "SHA-256"}},
		{name: "empty file", spoil: func(disk vfs.FS) {
			damage(t, disk, filepath.Join(checkpointPath(5), "sampler.json"), func([]byte) []byte { return nil })
		}, words: []string{"sampler.json", "empty"}},
		{name: "no manifest", spoil: func(disk vfs.FS) {
			_ = disk.Remove(filepath.Join(checkpointPath(5), "manifest.json"))
		},
			words: []string{"manifest.json", "not a complete checkpoint"}},
		{name: "another model", run: recipe{model: model(1, 3, 1)},
			words: []string{checkpointPath(5), "layers.0.weight", "[1 1]: want float32[3 1]",
				"layers.1.bias is missing"}},
		{name: "another dataset", run: recipe{train: source(points(63))},
			words: []string{checkpointPath(5), "64 samples per epoch, there are 63"}},
		{name: "another order", run: recipe{set: func(a *args.TrainingArguments) { a.Seed = 1 }},
			words: []string{checkpointPath(5), "seed 42, the sampler has seed 1"}},
		{name: "another optimizer", run: recipe{set: func(a *args.TrainingArguments) { a.Optim = args.OptimSGD }},
			words: []string{checkpointPath(5), `saved by optimizer "adamw", this run has "sgd"`}},
		{name: "an average", run: recipe{set: func(a *args.TrainingArguments) { a.EMADecay = 0.9 }},
			words: []string{checkpointPath(5), "saved with ema_decay 0, this run has 0.9"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			disk := disk.CrashClone(nil)
			if c.spoil != nil {
				c.spoil(disk)
			}
			tr, m := c.run.trainer(t, disk, func(a *args.TrainingArguments) {
				if a.ResumeFromCheckpoint == "" {
					a.ResumeFromCheckpoint = checkpointPath(5)
				}
			})
			before := weights(m)
			res, err := tr.Train()
			requireOneError(t, err, append(c.words, "trainer: resume")...)
			requirePermanent(t, err)
			require.Nil(t, res)
			require.Equal(t, before, weights(m), "the model is as it was")
		})
	}
}

// Parameters of a half type have a compensation under kahan alone.
func TestResumeWithAnotherHalfUpdate(t *testing.T) {
	for _, k := range []struct{ saved, now args.HalfUpdate }{
		{args.HalfUpdatePlain, args.HalfUpdateKahan}, {args.HalfUpdateKahan, args.HalfUpdateStochastic},
	} {
		disk := vfs.NewMem()
		run := func(h args.HalfUpdate, from string) (models.Model, error) {
			tr, m := recipe{
				model: func(t testing.TB) models.Model { return newGPT2As(t, 0, tensor.BFloat16) },
				train: raggedTexts(9),
				set: func(a *args.TrainingArguments) {
					a.HalfUpdate, a.MaxSteps, a.SaveSteps, a.ResumeFromCheckpoint = h, 5, 5, from
				},
			}.trainer(t, disk, nil)
			_, err := tr.Train()
			return m, err
		}
		_, err := run(k.saved, "")
		require.NoError(t, err)
		m, err := run(k.now, checkpointPath(5))
		requireOneError(t, err, "trainer: resume", "saved with half_update "+string(k.saved), string(k.now))
		require.Equal(t, weights(newGPT2As(t, 0, tensor.BFloat16)), weights(m), "the model is as it was")
	}
}

func TestResumeLastWithoutCheckpoints(t *testing.T) {
	last := func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = "last" }
	disk := vfs.NewMem()
	tr, _ := recipe{}.trainer(t, disk, last)
	_, err := tr.Train()
	require.ErrorIs(t, err, checkpoint.ErrNone)
	require.ErrorIs(t, err, fs.ErrNotExist)
	requireOneError(t, err, "resume_from_checkpoint = last", "no checkpoint", out)
	requirePermanent(t, err)

	require.NoError(t, disk.Mkdir(out))
	tr, _ = recipe{}.trainer(t, disk, last)
	_, err = tr.Train()
	require.ErrorIs(t, err, checkpoint.ErrNone)
	requirePermanent(t, err)
}

// requirePermanent says that a launcher that may restart the run will not do so.
func requirePermanent(t testing.TB, err error) {
	t.Helper()
	p, ok := errors.AsType[launch.Permanent](err)
	require.True(t, ok && p.Permanent(), "%v", err)
}

func TestResumeLastTakesTheNewestUndamaged(t *testing.T) {
	disk := vfs.NewMem()
	r := recipe{set: func(a *args.TrainingArguments) { a.MaxSteps = 6 }}
	tr, m := r.trainer(t, disk, nil)
	_, err := tr.Train()
	require.NoError(t, err)
	want := weights(m)
	damage(t, disk, filepath.Join(checkpointPath(6), "optimizer.safetensors"), func(b []byte) []byte {
		b[len(b)-1]++
		return b
	})
	log := &messages{}
	r.opts = func() []trainer.Option { return []trainer.Option{trainer.WithLogger(log.logger())} }
	tr, m = r.trainer(t, disk, func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = "last" })
	_, err = tr.Train()
	require.NoError(t, err)
	require.Equal(t, want, weights(m))
	require.Contains(t, log.String(), checkpointPath(5))
}

func TestModelOnlyCheckpointsCannotBeResumed(t *testing.T) {
	disk := vfs.NewMem()
	r := recipe{set: func(a *args.TrainingArguments) { a.SaveOnlyModel = true }}
	tr, _ := r.trainer(t, disk, nil)
	_, err := tr.Train()
	require.NoError(t, err)
	entries, err := disk.ReadDir(checkpointPath(24))
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.Equal(t, []string{"config.json", "manifest.json", "model.safetensors", "trainer_state.json",
		"training_args.json"}, names)
	tr, _ = r.trainer(t, disk, resumeFrom(24))
	_, err = tr.Train()
	requireOneError(t, err, checkpointPath(24), "save_only_model")
}

func TestFailedResumeLeavesTheTrainerUsable(t *testing.T) {
	disk := vfs.NewMem()
	tr, _ := recipe{}.trainer(t, disk, nil)
	_, err := tr.Train()
	require.NoError(t, err)
	a := lineArgs(resumeFrom(5), func(a *args.TrainingArguments) { a.PerDeviceTrainBatchSize = 4 })
	given := a.Clone()
	tr = newTrainer(disk, newMLP(t, 1, 3, 1), a, trainer.WithTrainData(source(points(64))),
		trainer.WithEvalData(source(points(8))))
	_, err = tr.Evaluate()
	require.NoError(t, err)
	_, err = tr.Train()
	require.Error(t, err)
	require.Empty(t, given.Diff(a), "the arguments are the user's still")
	require.Len(t, tr.State().LogHistory, 1, "and so is the record of the evaluation")
	a.ResumeFromCheckpoint = ""
	_, err = tr.Train()
	require.NoError(t, err)
}

// TestCheckpointHasHuggingFacesFiles lists what a full checkpoint consists of.
func TestCheckpointHasHuggingFacesFiles(t *testing.T) {
	disk := vfs.NewMem()
	r := recipe{opts: func() []trainer.Option {
		return []trainer.Option{trainer.WithParts(checkpoint.BytesPart("tokenizer.json", []byte("{}")))}
	}}
	tr, _ := r.trainer(t, disk, func(a *args.TrainingArguments) { a.SaveTotalLimit, a.SaveSteps = new(2), 5 })
	_, err := tr.Train()
	require.NoError(t, err)
	entries, err := disk.ReadDir(out)
	require.NoError(t, err)
	names := map[string]bool{}
	for _, e := range entries {
		names[e.Name()] = true
	}
	require.Equal(t, map[string]bool{"LATEST": true, "checkpoint-20": true, "checkpoint-24": true}, names)
	ck, err := (&checkpoint.Store{Dir: out, FS: disk}).Open(ctx, "checkpoint-20")
	require.NoError(t, err)
	var files []string
	for _, f := range ck.Files {
		files = append(files, f.Name)
	}
	want := append(slices.Clone(exactParts), "config.json", "progress.json", "tokenizer.json", "trainer_state.json",
		"training_args.json")
	require.ElementsMatch(t, want, files)
	var names20 []string
	for key := range maps.Keys(contents(t, disk, 20)) {
		names20 = append(names20, key)
	}
	require.Len(t, names20, len(exactParts)+2, strings.Join(names20, " "))
	require.NotEqual(t, fmt.Sprint(contents(t, disk, 20)), fmt.Sprint(contents(t, disk, 24)))
}
