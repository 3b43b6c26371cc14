// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trace"
	"github.com/lockstep-ml/lockstep/trainer"
)

// raggedTexts are n sequences of 2 to 7 tokens.
func raggedTexts(n int) data.Source { return data.NewSource(sequences(n), data.CausalLM(0)) }

// sequences are the samples of raggedTexts.
func sequences(n int) data.Slice[[]int32] {
	r := rand.New(rand.NewPCG(4, 2))
	list := make(data.Slice[[]int32], n)
	for i := range list {
		list[i] = make([]int32, 2+r.IntN(6))
		for j := range list[i] {
			list[i][j] = r.Int32N(vocabulary)
		}
	}
	return list
}

// rankArgs is a run whose optimizer steps have 8 micro-batches of 2, on any number of
// ranks: ragged lengths, a tail of 3 samples in each epoch, clipping.
func rankArgs(ranks int) *args.TrainingArguments {
	a := args.Default(out)
	a.PerDeviceTrainBatchSize, a.PerDeviceEvalBatchSize, a.GlobalTrainBatchSize, a.NumReplicas = 2, 2, 16, ranks
	a.NumTrainEpochs, a.LearningRate, a.MaxGradNorm, a.LoggingSteps = 2, 1e-2, 0.5, 1
	a.EvalStrategy, a.EvalSteps, a.SaveSteps = args.StrategySteps, new(2.0), 2
	a.DDPTimeout = 20
	return a
}

// fourSteps are half of those that rankArgs trains, in short tests: two before a checkpoint and two behind it.
func fourSteps(a *args.TrainingArguments) {
	if testing.Short() {
		a.MaxSteps = 4
	}
}

// rankRun is what a run on several ranks leaves.
type rankRun struct {
	weights map[string][]byte
	history []callbacks.Record
	disk    *vfs.Mem
}

func trainOnRanks(t *testing.T, ranks int, set ...func(*args.TrainingArguments)) rankRun {
	t.Helper()
	return trainOnRanksFrom(t, vfs.NewMem(), ranks, set...)
}

func trainOnRanksFrom(t *testing.T, disk *vfs.Mem, ranks int, set ...func(*args.TrainingArguments)) rankRun {
	t.Helper()
	return trainModel(t, newGPT2(t, 0.2), disk, ranks, set...)
}

func trainModel(t *testing.T, m models.Model, disk *vfs.Mem, ranks int, set ...func(*args.TrainingArguments)) rankRun {
	t.Helper()
	a := rankArgs(ranks)
	for _, f := range set {
		f(a)
	}
	tr := newTrainer(disk, m, a, trainer.WithTrainData(raggedTexts(51)), trainer.WithEvalData(raggedTexts(13)))
	_, err := tr.Train()
	require.NoError(t, err)
	return rankRun{weights(m), untimed(tr.State().LogHistory), disk}
}

// untimed are the records without what depends on the clock or the process.
func untimed(history []callbacks.Record) []callbacks.Record {
	var list []callbacks.Record
	for _, rec := range history {
		kept := callbacks.Record{}
		for _, key := range []string{"loss", "grad_norm", "learning_rate", "epoch", "step", "eval_loss", "train_loss",
			"parts/half", "samples", "eval_parts/half", "eval_samples"} {
			if v, ok := rec[key]; ok {
				kept[key] = v
			}
		}
		list = append(list, kept)
	}
	return list
}

func TestSameBitsOnAnyNumberOfRanks(t *testing.T) {
	one := trainOnRanks(t, 1)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent()) // after the device has started its workers
	require.NotEmpty(t, one.history)
	for _, ranks := range []int{2, 4, 8} {
		many := trainOnRanks(t, ranks)
		require.Equal(t, one.history, many.history, "%d ranks", ranks)
		require.Equal(t, one.weights, many.weights, "%d ranks", ranks)
	}
	small := trainOnRanks(t, 4, func(a *args.TrainingArguments) {
		a.GradientCheckpointing, a.DataloaderNumWorkers = true, 2
	})
	require.Equal(t, one.weights, small.weights, "recomputation and loader workers")
}

// The control of the test above: sums in another grouping have other bits, so the equality
// is the rule's doing.
func TestAnotherOrderOfSumsHasOtherBits(t *testing.T) {
	one := trainOnRanks(t, 1)
	sequential := trainOnRanks(t, 1, func(a *args.TrainingArguments) { a.DeterministicRanks = 1 })
	require.NotEqual(t, one.weights, sequential.weights)
}

func TestResumeOnAnotherNumberOfRanks(t *testing.T) {
	whole := trainOnRanks(t, 4)
	for _, ranks := range []int{1, 2, 8} {
		fork := whole.disk.CrashClone(nil)
		other := trainOnRanksFrom(t, fork, ranks, func(a *args.TrainingArguments) {
			a.ResumeFromCheckpoint = out + "/checkpoint-2"
		})
		require.Equal(t, whole.weights, other.weights, "4 ranks, then %d", ranks)
	}
}

// Without global_train_batch_size the step's size is the checkpoint's all the same.
func TestResumeKeepsTheStepOnAnotherNumberOfRanks(t *testing.T) {
	local := func(gas int) func(*args.TrainingArguments) {
		return func(a *args.TrainingArguments) { a.GlobalTrainBatchSize, a.GradientAccumulationSteps = 0, gas }
	}
	whole := trainOnRanks(t, 4, local(2))
	for _, ranks := range []int{1, 2, 8} {
		fork := whole.disk.CrashClone(nil)
		other := trainOnRanksFrom(t, fork, ranks, local(2), func(a *args.TrainingArguments) {
			a.ResumeFromCheckpoint = out + "/checkpoint-2"
		})
		require.Equal(t, whole.weights, other.weights, "4 ranks, then %d", ranks)
		again := trainOnRanksFrom(t, fork, 4, local(2), func(a *args.TrainingArguments) {
			a.ResumeFromCheckpoint = out + "/checkpoint-4"
		})
		require.Equal(t, whole.weights, again.weights, "then 4 again")
	}
	m := newGPT2(t, 0.2)
	a := rankArgs(3)
	local(2)(a)
	a.ResumeFromCheckpoint = out + "/checkpoint-2"
	_, err := newTrainer(whole.disk.CrashClone(nil), m, a, trainer.WithTrainData(raggedTexts(51)),
		trainer.WithEvalData(raggedTexts(13))).Train()
	require.ErrorContains(t, err, "a step of the run has 8 micro-batches, which 3 ranks cannot share evenly")
}

// Three ranks do not divide eight groups: one run is like the other, but not like one rank's.
func TestThreeRanksAreDeterministicAmongThemselves(t *testing.T) {
	set := func(a *args.TrainingArguments) {
		a.GlobalTrainBatchSize, a.EvalStrategy, a.SaveStrategy = 12, args.StrategyNo, args.StrategyNo
	}
	require.Equal(t, trainOnRanks(t, 3, set).weights, trainOnRanks(t, 3, set).weights)
}

// The field's worked example: f = w·x, squared error, w = 1, rate 0.1, four samples on two
// ranks. Averaging the ranks' gradient sums gives w = 4.0; the mean over the samples, what
// one process computes, gives 2.5.
func TestWorkedExample(t *testing.T) {
	var samples data.Slice[goldenPoint]
	for i := range 4 {
		samples = append(samples, goldenPoint{float32(i + 1), float32(2 * (i + 1))})
	}
	for _, ranks := range []int{1, 2, 4} {
		c := tensor.NewCtx(tensor.CPU())
		m := newLine(1, 0)
		m.B.SetRequiresGrad(false)
		a := args.Default(out)
		a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize, a.NumReplicas = 1, 4, ranks
		a.MaxSteps, a.LearningRate, a.Optim, a.MaxGradNorm = 1, 0.1, args.OptimSGD, 0
		a.LRSchedulerType, a.SaveStrategy = args.SchedulerConstant, args.StrategyNo
		_, err := newTrainer(vfs.NewMem(), m, a,
			trainer.WithTrainData(data.NewSource(samples, data.Stack[goldenPoint]))).Train()
		require.NoError(t, err)
		require.InDelta(t, 2.5, tensor.Item(c, m.A.Tensor), 1e-6, "%d ranks", ranks)
	}
}

func TestPredictAndEvaluateOnRanks(t *testing.T) {
	src := raggedEqual(11)
	var want *trainer.PredictionOutput
	for _, ranks := range []int{1, 2, 4} {
		m := newGPT2(t, 0)
		tr := newTrainer(vfs.NewMem(), m, rankArgs(ranks), trainer.WithTrainData(src), trainer.WithEvalData(src),
			trainer.WithMetrics(trainer.LossMetric(func(l trainer.EvalLoss) map[string]float64 {
				return map[string]float64{"terms": float64(l.Count)}
			})))
		got, err := tr.Predict(src)
		require.NoError(t, err)
		require.Len(t, got.Predictions, 11)
		require.Equal(t, []int{6}, got.Predictions[10].LabelShape)
		require.Len(t, got.Predictions[10].Labels, 6)
		metrics, err := tr.Evaluate()
		require.NoError(t, err)
		require.EqualValues(t, 66, metrics["eval_terms"])
		if want == nil {
			want = got
		}
		require.Equal(t, want.Predictions, got.Predictions, "%d ranks", ranks)
		require.Equal(t, want.Metrics["test_loss"], got.Metrics["test_loss"])
		require.Equal(t, want.Metrics["test_loss"], metrics["eval_loss"])
	}
}

// raggedEqual are n sequences of 6 tokens.
func raggedEqual(n int) data.Source { return texts(n) }

// A rank that fails ends all of them, with its own error.
func TestARankThatFailsEndsTheRun(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	boom := errors.New("sample 7 is gone")
	src := &failingSource{Source: raggedTexts(51), after: 20, err: boom}
	m := newGPT2(t, 0)
	_, err := newTrainer(vfs.NewMem(), m, rankArgs(4), trainer.WithTrainData(src),
		trainer.WithEvalData(raggedTexts(4))).Train()
	require.ErrorIs(t, err, boom)
	var abort *comm.AbortError
	require.False(t, errors.As(err, &abort) && abort.Rank < 0, "the cause, not its echo")
}

// failingSource fails every batch that holds one sample.
type failingSource struct {
	data.Source
	after int64
	err   error
}

func (s *failingSource) Batch(c *tensor.Ctx, indices []int64) (*data.Batch, error) {
	for _, i := range indices {
		if i == s.after {
			return nil, fmt.Errorf("index %d: %w", i, s.err)
		}
	}
	return s.Source.Batch(c, indices)
}

func TestInterruptOnRanks(t *testing.T) {
	whole := trainOnRanks(t, 2)
	disk := vfs.NewMem()
	ctx, cancel := context.WithCancel(context.Background())
	stop := on(callbacks.StepEnd, func(e *callbacks.Event) error {
		if e.State.GlobalStep == 3 {
			cancel()
		}
		return nil
	})
	m := newGPT2(t, 0.2)
	_, err := newTrainer(disk, m, rankArgs(2), trainer.WithTrainData(raggedTexts(51)),
		trainer.WithEvalData(raggedTexts(13)), stop).TrainContext(ctx)
	require.ErrorIs(t, err, trainer.ErrInterrupted)
	again := trainOnRanksFrom(t, disk, 4, func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = "last" })
	require.Equal(t, whole.weights, again.weights)
}

func TestModelsThatDifferAcrossRanks(t *testing.T) {
	other := func() (models.Model, error) { return newMLP(t, 1, 3, 1), nil }
	a := lineArgs(func(a *args.TrainingArguments) { a.NumReplicas, a.DDPTimeout = 2, 20 })
	_, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 2, 1), a,
		trainer.WithTrainData(data.NewSource(points(64), data.Stack[point])), trainer.WithModelInit(other)).Train()
	require.ErrorContains(t, err, "rank 1's model has sizes [1,3,1]: want [1,2,1], as rank 0's has")

	differs := func() (models.Model, error) {
		m := newMLP(t, 1, 2, 1)
		tensor.FillInto(tensor.NewCtx(tensor.CPU()).NoGrad(), nn.NamedParameters(m)[0].Tensor, 9)
		return m, nil
	}
	a.DDPRequireEqualInit = true
	_, err = newTrainer(vfs.NewMem(), newMLP(t, 1, 2, 1), a,
		trainer.WithTrainData(data.NewSource(points(64), data.Stack[point])), trainer.WithModelInit(differs)).Train()
	require.ErrorContains(t, err, "ddp_require_equal_init: 1 of 4 parameters of rank 1")
}

// On two hosts of two ranks: the first rank of each logs like rank 0, if it is to.
func TestLogOnEachNode(t *testing.T) {
	for name, value := range map[string]string{
		"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500",
		"LOCKSTEP_JOB_TOKEN": "a token of this test alone",
	} {
		t.Setenv(name, value)
	}
	for each, want := range map[bool][]bool{true: {true, false, true, false}, false: {true, false, false, false}} {
		for rank, info := range want {
			t.Setenv("RANK", fmt.Sprint(rank))
			t.Setenv("LOCAL_RANK", fmt.Sprint(rank%2))
			a := args.Default(out)
			a.LogOnEachNode = each
			log := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithTrainData(source(points(8)))).Logger()
			require.Equal(t, info, log.Enabled(t.Context(), slog.LevelInfo), "rank %d, log_on_each_node %t", rank, each)
			require.True(t, log.Enabled(t.Context(), slog.LevelWarn))
		}
	}
}

// hearer is a callback that listens to the spans of a run.
type hearer struct {
	callbacks.Base
	stop  func()
	heard map[string]int
}

func (h *hearer) OnTrainBegin(e *callbacks.Event) error {
	h.stop = e.Trace.Listen(func(s trace.Span) { h.heard[s.Name]++ })
	return nil
}

func (h *hearer) OnTrainEnd(*callbacks.Event) error {
	h.stop()
	return nil
}

// Callbacks listen to spans beside a profile, and each other, and the end of one ends no other.
func TestCallbacksHearSpans(t *testing.T) {
	one, other := &hearer{heard: map[string]int{}}, &hearer{heard: map[string]int{}}
	a := rankArgs(1)
	a.MaxSteps, a.Profile, a.ProfileSkipFirst, a.ProfileSteps = 3, t.TempDir(), 0, 1
	_, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithTrainData(raggedTexts(51)),
		trainer.WithEvalData(raggedTexts(3)), trainer.WithCallbacks(one, other)).Train()
	require.NoError(t, err)
	require.Equal(t, one.heard, other.heard)
	for _, name := range []string{"data", "clip", "optimizer"} {
		require.Equal(t, 3, one.heard[name], name)
	}
	require.Equal(t, one.heard["forward"], one.heard["backward"])
	require.FileExists(t, filepath.Join(a.Profile, "trace_rank0.json"))
}

// A profile of each rank has its phases and collective calls, and changes no bit.
func TestProfile(t *testing.T) {
	want := trainOnRanks(t, 2)
	for _, ranks := range []int{1, 2} {
		dir := t.TempDir()
		got := trainOnRanks(t, ranks, func(a *args.TrainingArguments) {
			a.Profile, a.ProfileSkipFirst, a.ProfileSteps = dir, 1, 3
		})
		require.Equal(t, want.weights, got.weights)
		for rank := range ranks {
			text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("ops_rank%d.txt", rank)))
			require.NoError(t, err)
			rows := []string{"data", "forward", "backward", "clip", "optimizer", "evaluate", "save", "matmul",
				"attention_grad"}
			if ranks > 1 {
				rows = append(rows, "wait", "bucket", "collective")
			}
			for _, row := range rows {
				require.Regexp(t, `(?m)^`+row+` +\d`, string(text), "rank %d of %d", rank, ranks)
			}
			require.FileExists(t, filepath.Join(dir, fmt.Sprintf("trace_rank%d.json", rank)))
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	a := rankArgs(2)
	a.Profile = filepath.Join(file, "x")
	_, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithTrainData(raggedTexts(51)),
		trainer.WithEvalData(raggedTexts(3))).Train()
	require.ErrorContains(t, err, "profile: mkdir")
}

// What a callback of rank 0 asks for after a log, an evaluation or a save holds for all ranks: they end together.
func TestCallbacksOfRankZeroSteerAllRanks(t *testing.T) {
	for name, c := range map[string]struct {
		kind     callbacks.Kind
		strategy args.Strategy
		step     int64
	}{
		"evaluation at the end of an epoch": {callbacks.Evaluate, args.StrategyEpoch, 4},
		"evaluation in an epoch":            {callbacks.Evaluate, args.StrategySteps, 2},
		"log":                               {callbacks.Log, args.StrategySteps, 1},
		"save":                              {callbacks.Save, args.StrategySteps, 2},
	} {
		t.Run(name, func(t *testing.T) {
			a := rankArgs(2)
			a.NumTrainEpochs, a.EvalStrategy = 4, c.strategy
			tr := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithTrainData(raggedTexts(51)),
				trainer.WithEvalData(raggedTexts(13)),
				on(c.kind, func(e *callbacks.Event) error {
					e.Control.ShouldTrainingStop = true
					return nil
				}))
			res, err := tr.Train()
			require.NoError(t, err)
			require.Equal(t, c.step, res.GlobalStep)
		})
	}
	disk := vfs.NewMem()
	a := rankArgs(2)
	a.SaveStrategy, a.MaxSteps = args.StrategyNo, 4
	_, err := newTrainer(disk, newGPT2(t, 0), a, trainer.WithTrainData(raggedTexts(51)),
		trainer.WithEvalData(raggedTexts(13)),
		on(callbacks.Evaluate, func(e *callbacks.Event) error {
			e.Control.ShouldSave = e.State.GlobalStep == 2
			return nil
		})).Train()
	require.NoError(t, err)
	require.NotEmpty(t, contents(t, disk, 2), "saved")
}

// The state of each rank says which it is, also after a resume from a checkpoint, which rank 0 wrote.
func TestStateSaysWhichRankItIs(t *testing.T) {
	disk := vfs.NewMem()
	for _, resumed := range []bool{false, true} {
		var mu sync.Mutex
		zero, local, other := 0, 0, 0
		log := trainer.WithLog(func(s *callbacks.State, _ callbacks.Record) error {
			mu.Lock()
			defer mu.Unlock()
			if s.IsLocalProcessZero {
				local++
			}
			if s.IsWorldProcessZero {
				zero++
			} else {
				other++
			}
			return nil
		})
		a := rankArgs(2)
		if resumed {
			resumeFrom(2)(a)
		}
		_, err := newTrainer(disk, wideGPT2(t, ""), a, log, trainer.WithTrainData(raggedTexts(35)),
			trainer.WithEvalData(raggedTexts(4))).Train()
		require.NoError(t, err)
		require.Positive(t, zero)
		require.Equal(t, zero, local, "rank 0 is the first of its host")
		require.Equal(t, zero, other, "rank 1")
	}
}

// Ranks that are goroutines have one host, which needs nothing from itself, and are gone after the run.
func TestSaveOnEachNodeOfOneHost(t *testing.T) {
	for _, full := range []bool{false, true} {
		disk := vfs.NewMem()
		a := lineArgs(func(a *args.TrainingArguments) {
			a.NumReplicas, a.SaveOnEachNode, a.MaxSteps, a.SaveStrategy = 2, true, 2, args.StrategySteps
			a.AsyncSave = !full
			if full {
				gather(a, "full_shard")
			}
		})
		tr := newTrainer(disk, newMLP(t, 1, 1), a, trainer.WithTrainData(source(points(20))))
		_, err := tr.Train()
		require.NoError(t, err)
		require.NoError(t, tr.SaveModel(""))
		_, err = vfs.ReadFile(disk, filepath.Join(out, "model.safetensors"), 1<<20)
		require.NoError(t, err)
	}
}

// Ranks of one process that would train one model get an error, whoever made them: WithModelInit, or trainers that
// share a group. Evaluating first, or training a model of each rank before, changes nothing of that.
func TestRanksWithOneModel(t *testing.T) {
	const want = "share the parameter or buffer line.weight: want a separate model for each rank"
	shared := newWrong(nil)
	requireOneError(t, trainWrong(t, func() models.Model { return shared }, 2), "the models of rank 0 and rank 1", want)
	a := lineArgs(func(a *args.TrainingArguments) { a.MaxSteps, a.PerDeviceTrainBatchSize = 2, 4 })
	run := func(of func(g *comm.Group) models.Model) []error {
		errs := make([]error, 2)
		_ = local.Run(2, comm.Options{}, func(g *comm.Group) error {
			tr := newTrainer(vfs.NewMem(), of(g), a.Clone(), trainer.WithGroup(g),
				trainer.WithTrainData(source(points(32))), trainer.WithEvalData(source(points(8))))
			if _, errs[g.Rank()] = tr.Evaluate(); errs[g.Rank()] == nil {
				_, errs[g.Rank()] = tr.Train()
			}
			return errs[g.Rank()]
		})
		return errs
	}
	own := []models.Model{newWrong(nil), newWrong(nil)}
	for range 2 {
		for _, err := range run(func(*comm.Group) models.Model { return shared }) {
			requireOneError(t, err, want)
		}
		require.Equal(t, []error{nil, nil}, run(func(g *comm.Group) models.Model { return own[g.Rank()] }))
	}
}
