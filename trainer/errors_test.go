// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// TestConstructionErrorsWait checks that New never fails by itself and that every method
// returns what was wrong.
func TestConstructionErrorsWait(t *testing.T) {
	src := source(points(8))
	failing := on(callbacks.InitEnd, func(*callbacks.Event) error { return errors.New("no luck") })
	invalid := lineArgs(func(a *args.TrainingArguments) {
		a.PerDeviceTrainBatchSize, a.MaxSteps, a.Optim = -1, 0, "lomo"
	})
	several := lineArgs(func(a *args.TrainingArguments) {
		a.MaxSteps, a.ReportTo, a.DDPBackend = 0, []string{"wandb"}, args.BackendNCCL
	})
	report := lineArgs(func(a *args.TrainingArguments) { a.ReportTo = []string{"wandbb"} })
	epochs := lineArgs(func(a *args.TrainingArguments) { a.EvalStrategy = args.StrategyEpoch })
	start := lineArgs(func(a *args.TrainingArguments) { a.EvalOnStart = true })
	cases := map[string]struct {
		t     *trainer.Trainer
		words []string
	}{
		"no model":     {newTrainer(vfs.NewMem(), nil, lineArgs()), []string{"no model or no arguments"}},
		"no arguments": {newTrainer(vfs.NewMem(), newLine(0, 0), nil), []string{"no model or no arguments"}},
		"invalid arguments": {newTrainer(vfs.NewMem(), newLine(0, 0), invalid),
			[]string{"per_device_train_batch_size", "-1", "max_steps", "optim", "adagrad"}},
		"several at once": {newTrainer(vfs.NewMem(), newLine(0, 0), several),
			[]string{"3 faults", "max_steps is 0", `report_to is "wandb"`, `ddp_backend is "nccl": want one of auto`}},
		"unknown reporter": {newTrainer(vfs.NewMem(), newLine(0, 0), report), []string{"report_to", "wandbb"}},
		"evaluates nothing": {newTrainer(vfs.NewMem(), newLine(0, 0), epochs),
			[]string{"eval_strategy is epoch", "WithEvalData"}},
		"eval_on_start": {newTrainer(vfs.NewMem(), newLine(0, 0), start),
			[]string{"eval_on_start", "WithEvalData"}},
		"init_end": {newTrainer(vfs.NewMem(), newLine(0, 0), lineArgs(), failing),
			[]string{"init_end", "no luck"}},
		"nil metric": {newTrainer(vfs.NewMem(), newLine(0, 0), lineArgs(), trainer.WithMetrics(nil)),
			[]string{"nil metric"}},
		"nil callback": {newTrainer(vfs.NewMem(), newLine(0, 0), lineArgs(), trainer.WithCallbacks(nil)),
			[]string{"nil callback"}},
		"nil evaluation set": {newTrainer(vfs.NewMem(), newLine(0, 0), lineArgs(), trainer.WithEvalData(nil)),
			[]string{"no data"}},
		"two of one name": {newTrainer(vfs.NewMem(), newLine(0, 0), lineArgs(), trainer.WithNamedEvalData("a", src),
			trainer.WithNamedEvalData("a", src)), []string{`"a"`, "different names"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			require.Error(t, c.t.Err())
			_, trainErr := c.t.Train()
			_, evalErr := c.t.Evaluate()
			_, predictErr := c.t.Predict(src)
			for _, err := range []error{trainErr, evalErr, predictErr, c.t.SaveModel(""), c.t.SaveState(),
				c.t.SaveMetrics("eval", nil)} {
				require.Equal(t, c.t.Err(), err)
			}
			for _, w := range c.words {
				require.ErrorContains(t, c.t.Err(), w)
			}
		})
	}
}

func TestNilLoggerIsTheDefault(t *testing.T) {
	log, before := &messages{}, slog.Default()
	slog.SetDefault(log.logger())
	defer slog.SetDefault(before)
	_, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), lineArgs(), trainer.WithTrainData(source(points(8))),
		trainer.WithLogger(nil)).Train()
	require.NoError(t, err)
	require.Contains(t, log.String(), "msg=training device=cpu ")
	require.Contains(t, log.String(), " samples=8 ")
}

// faulty is a dataset that fails at one sample.
type faulty struct {
	data.Slice[point]
	at   int
	fail func() error
}

func (f faulty) Get(i int) (point, error) {
	if i == f.at {
		if err := f.fail(); err != nil {
			return point{}, err
		}
	}
	return f.Slice.Get(i)
}

func TestDatasetFailures(t *testing.T) {
	errDisk := errors.New("the disk is gone")
	fails := map[string]struct {
		fail  func() error
		words string
	}{
		"error": {func() error { return errDisk }, "sample 17: the disk is gone"},
		"panic": {func() error { panic("index out of luck") }, "sample 17: panic: index out of luck"},
	}
	for name, c := range fails {
		for _, workers := range []int{0, 2} {
			t.Run(name, func(t *testing.T) {
				m := newMLP(t, 1, 1)
				src := data.NewSource(faulty{points(64), 17, c.fail}, data.Stack[point])
				a := lineArgs(func(a *args.TrainingArguments) {
					a.TrainSamplingStrategy, a.DataloaderNumWorkers = args.SamplingSequential, workers
				})
				tr := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(src), trainer.WithEvalData(src))
				res, err := tr.Train()
				requireOneError(t, err, c.words, "trainer: step 3")
				require.EqualValues(t, 2, res.GlobalStep)
				_, err = tr.Evaluate()
				requireOneError(t, err, c.words)
				_, err = tr.Predict(src)
				requireOneError(t, err, c.words)
			})
		}
	}
}

func TestTooLittleData(t *testing.T) {
	train := func(n int, set ...func(*args.TrainingArguments)) error {
		_, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), lineArgs(set...),
			trainer.WithTrainData(source(points(n)))).Train()
		return err
	}
	requireOneError(t, train(0), "the training set has 0 samples: want at least one")
	requireOneError(t, train(7, func(a *args.TrainingArguments) { a.DataloaderDropLast = true }), "7 samples",
		"a batch has 8", "dataloader_drop_last")
	require.NoError(t, train(7))

	_, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), lineArgs()).Train()
	requireOneError(t, err, "WithTrainData")
	_, err = newTrainer(vfs.NewMem(), newMLP(t, 1, 1), lineArgs()).Evaluate()
	requireOneError(t, err, "WithEvalData")
	_, err = newTrainer(vfs.NewMem(), newMLP(t, 1, 1), lineArgs(),
		trainer.WithNamedEvalData("small", source(points(0)))).Evaluate()
	requireOneError(t, err, `"small"`, "empty")

	disk := vfs.NewMem()
	res, err := newTrainer(disk, newMLP(t, 1, 1), lineArgs(func(a *args.TrainingArguments) {
		a.EvalStrategy, a.SaveStrategy = args.StrategyEpoch, args.StrategyEpoch
	}), trainer.WithTrainData(source(points(7))), trainer.WithEvalData(source(points(0)))).Train()
	requireOneError(t, err, `evaluation set "eval" is empty`)
	require.Nil(t, res, "before the first step")
	_, err = newTrainer(vfs.NewMem(), newMLP(t, 1, 1), lineArgs()).Predict(nil)
	requireOneError(t, err, "Predict", "source")
}

// The prediction of an empty set has no predictions and no metrics of them, as transformers' has, and a warning. Its
// evaluation is an error, of a stream too.
func TestPredictAndEvaluateNothing(t *testing.T) {
	none := data.NewIterableSource(streamed[point]{}, data.Stack[point])
	for _, ranks := range []int{1, 2} {
		log := &messages{}
		var metrics []trainer.Metric
		if ranks == 1 {
			metrics = append(metrics, unlucky{"Compute"})
		}
		tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), lineArgs(func(a *args.TrainingArguments) {
			a.NumReplicas = ranks
		}), trainer.WithLogger(slog.New(slog.NewTextHandler(log, nil))),
			trainer.WithComputeMetrics(func(trainer.EvalPrediction) (map[string]float64, error) {
				panic("there is nothing to compute from")
			}), trainer.WithMetrics(metrics...))
		for i, predict := range []func() (*trainer.PredictionOutput, error){
			func() (*trainer.PredictionOutput, error) { return tr.Predict(source(nil)) },
			func() (*trainer.PredictionOutput, error) { return tr.PredictIterable(none) },
		} {
			out, err := predict()
			require.NoError(t, err)
			require.Empty(t, out.Predictions)
			require.Equal(t, []string{"test_runtime"}, slices.Sorted(maps.Keys(out.Metrics)))
			require.Equal(t, i+1, strings.Count(log.String(), "the set to predict is empty"))
		}
		_, err := tr.EvaluateIterableOn(t.Context(), none, "stream")
		requireOneError(t, err, `evaluation set "stream" is empty`)
		_, err = tr.EvaluateOn(t.Context(), source(nil), "test")
		requireOneError(t, err, `evaluation set "test" is empty`)
	}
}

func TestCallbackFailures(t *testing.T) {
	kinds := []callbacks.Kind{callbacks.TrainBegin, callbacks.StepBegin, callbacks.SubstepEnd,
		callbacks.PreOptimizerStep, callbacks.StepEnd,
		callbacks.Log, callbacks.PredictionStep, callbacks.Evaluate, callbacks.Save, callbacks.EpochEnd,
		callbacks.TrainEnd}
	errTired := errors.New("tired")
	for _, kind := range kinds {
		for _, panics := range []bool{false, true} {
			a := lineArgs(func(a *args.TrainingArguments) {
				a.GradientAccumulationSteps, a.LoggingSteps = 2, 1
				a.EvalStrategy, a.SaveStrategy = args.StrategyEpoch, args.StrategyEpoch
			})
			tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithTrainData(source(points(64))),
				trainer.WithEvalData(source(points(8))),
				on(kind, func(*callbacks.Event) error {
					if panics {
						panic(errTired)
					}
					return errTired
				}))
			_, err := tr.Train()
			requireOneError(t, err, "callback every", string(kind), "tired")
			require.ErrorIs(t, err, errTired)
			var failure *callbacks.Error
			require.ErrorAs(t, err, &failure)
			require.Equal(t, kind, failure.Event)
			require.Equal(t, panics, failure.Stack != nil)
		}
	}
}

// closer is a callback that counts how often it is closed.
type closer struct {
	callbacks.Base
	closed int
	err    error
}

func (c *closer) Close() error { c.closed++; return c.err }

var _ io.Closer = (*closer)(nil)

func TestCallbacksAreClosedHoweverTheRunEnds(t *testing.T) {
	c := &closer{}
	run := func(set func(*args.TrainingArguments), src data.Source, opts ...trainer.Option) error {
		_, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), lineArgs(set),
			append(opts, trainer.WithTrainData(src), trainer.WithCallbacks(c))...).Train()
		return err
	}
	require.NoError(t, run(func(*args.TrainingArguments) {}, source(points(8))))
	require.Equal(t, 1, c.closed)
	require.Error(t, run(resumeFrom(3), source(points(8))))
	require.Equal(t, 2, c.closed)
	require.Error(t, run(func(*args.TrainingArguments) {}, source(points(8)),
		on(callbacks.StepEnd, func(*callbacks.Event) error { return io.ErrUnexpectedEOF })))
	require.Equal(t, 3, c.closed)
	c.err = os.ErrClosed
	require.ErrorIs(t, run(func(*args.TrainingArguments) {}, source(points(8))), os.ErrClosed)
}

// A tensor misused in a model becomes an error that names the step; the gradients of the
// failed step do not reach the next run.
func TestEngineErrorsNameTheStep(t *testing.T) {
	broken := true
	fail := func(c *nn.Ctx, o models.Output, b *data.Batch) (*tensor.Tensor, float64) {
		if broken && b.MicroBatch == 1 && b.Position >= 32 {
			tensor.MatMul(c.Ctx, o.Logits, tensor.Zeros(c.Ctx, tensor.Float32, 3, 3))
		}
		return o.Loss, b.Count
	}
	a := lineArgs(func(a *args.TrainingArguments) { a.GradientAccumulationSteps = 2 })
	m := newMLP(t, 1, 1)
	tr := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(source(points(64))), trainer.WithLoss(fail))
	_, err := tr.Train()
	require.ErrorContains(t, err, "trainer: step 3, rank 0")
	var misuse *tensor.Error
	require.ErrorAs(t, err, &misuse)
	require.Equal(t, "MatMul", misuse.Op)

	broken = false
	twin := newMLP(t, 1, 1)
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	for i, p := range nn.NamedParameters(m) {
		tensor.CopyInto(c, nn.NamedParameters(twin)[i].Tensor, p.Tensor)
	}
	_, err = tr.Train()
	require.NoError(t, err)
	_, err = newTrainer(vfs.NewMem(), twin, a, trainer.WithTrainData(source(points(64)))).Train()
	require.NoError(t, err)
	require.Equal(t, weights(twin), weights(m))
}

func TestNothingToTrain(t *testing.T) {
	m := newLine(0, 0)
	m.A.SetRequiresGrad(false)
	m.B.SetRequiresGrad(false)
	_, err := newTrainer(vfs.NewMem(), m, lineArgs(), trainer.WithTrainData(columnsOf(points(8)).rows(0, 8))).Train()
	requireOneError(t, err, "no parameter that requires grad")
	_, err = newTrainer(vfs.NewMem(), newMLP(t, 1, 1),
		lineArgs(func(a *args.TrainingArguments) { a.GradientCheckpointing = true }),
		trainer.WithTrainData(source(points(8)))).Train()
	requireOneError(t, err, "gradient_checkpointing", "mlp.Model")
	_, err = newTrainer(vfs.NewMem(), newMLP(t, 1, 1),
		lineArgs(func(a *args.TrainingArguments) { a.GlobalTrainBatchSize, a.GradientAccumulationSteps = 32, 2 }),
		trainer.WithTrainData(source(points(8)))).Train()
	requireOneError(t, err, "gradient_accumulation_steps", "4, to match global_train_batch_size 32")
}

func TestFrozenParametersStay(t *testing.T) {
	m := newLine(0.5, 0.25)
	m.A.SetRequiresGrad(false)
	res, err := newTrainer(vfs.NewMem(), m, lineArgs(),
		trainer.WithTrainData(columnsOf(points(64)).rows(0, 64))).Train()
	require.NoError(t, err)
	require.EqualValues(t, 24, res.GlobalStep)
	a, b := m.values(t)
	require.EqualValues(t, 0.5, a)
	require.Greater(t, b, float32(1))
}

func TestOwnOptimizer(t *testing.T) {
	var names []string
	own := trainer.WithOptimizer(func(c *tensor.Ctx, groups []*optim.Group) *optim.Optimizer {
		for i, g := range groups {
			for _, p := range g.Params {
				names = append(names, p.Name)
				require.Equal(t, i == 0, g.WeightDecay != 0)
			}
		}
		return optim.SGD{}.New(c, groups)
	})
	set := func(a *args.TrainingArguments) { a.WeightDecay = 0.1 }
	one, two := newMLP(t, 1, 1), newMLP(t, 1, 1)
	_, err := newTrainer(vfs.NewMem(), one, lineArgs(set), trainer.WithTrainData(source(points(64))), own).Train()
	require.NoError(t, err)
	_, err = newTrainer(vfs.NewMem(), two, lineArgs(set, func(a *args.TrainingArguments) { a.Optim = args.OptimSGD }),
		trainer.WithTrainData(source(points(64)))).Train()
	require.NoError(t, err)
	require.Equal(t, []string{"layers.0.weight", "layers.0.bias"}, names)
	require.Equal(t, weights(two), weights(one))

	none := trainer.WithOptimizer(func(*tensor.Ctx, []*optim.Group) *optim.Optimizer { return nil })
	_, err = newTrainer(vfs.NewMem(), one, lineArgs(), trainer.WithTrainData(source(points(64))), none).Train()
	requireOneError(t, err, "WithOptimizer", "no optimizer")
}
