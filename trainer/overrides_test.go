// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/feed"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// override trains as trainModel does, with other options, and returns the run and the error.
func override(t *testing.T, disk *vfs.Mem, ranks int, set func(*args.TrainingArguments),
	opts ...trainer.Option) (rankRun, error) {
	t.Helper()
	a := rankArgs(ranks)
	if set != nil {
		set(a)
	}
	m := newGPT2(t, 0.2)
	tr := newTrainer(disk, m, a, append(opts, trainer.WithEvalData(raggedTexts(13)))...)
	_, err := tr.Train()
	return rankRun{weights(m), untimed(tr.State().LogHistory), disk}, err
}

// A step function that does what the trainer does leaves the bits, on any number of ranks, each with its own model.
func TestStepFunction(t *testing.T) {
	want := trainOnRanks(t, 1)
	for _, ranks := range []int{1, 2} {
		var mu sync.Mutex
		seen := map[models.Model]bool{}
		calls := map[bool]int{}
		step := func(c *nn.Ctx, m models.Model, b *data.Batch) (models.Output, float64, error) {
			mu.Lock()
			defer mu.Unlock()
			seen[m] = true
			calls[c.Training]++
			return m.Forward(c.WithLossOnly(), b), b.Count, nil
		}
		got, err := override(t, vfs.NewMem(), ranks, nil, trainer.WithTrainData(raggedTexts(51)),
			trainer.WithStep(step))
		require.NoError(t, err)
		require.Equal(t, want.history, got.history, "%d ranks", ranks)
		require.Equal(t, want.weights, got.weights, "%d ranks", ranks)
		require.Len(t, seen, ranks)
		require.NotZero(t, calls[true])
		require.NotZero(t, calls[false], "evaluation calls it too")
	}
}

// What a step function computes is what is trained, logged and evaluated.
func TestStepFunctionComputesTheLoss(t *testing.T) {
	plain := trainOnRanks(t, 1)
	got, err := override(t, vfs.NewMem(), 2, nil, trainer.WithTrainData(raggedTexts(51)),
		trainer.WithStep(func(c *nn.Ctx, m models.Model, b *data.Batch) (models.Output, float64, error) {
			out := m.Forward(c, b)
			out.Loss = tensor.Affine(c.Ctx, out.Loss, 2, 0)
			return out, b.Count, nil
		}))
	require.NoError(t, err)
	require.Equal(t, 2*plain.history[0]["loss"].(float64), got.history[0]["loss"])
	require.NotEqual(t, plain.weights, got.weights)

	broken := errors.New("a broken step")
	for want, step := range map[string]trainer.StepFunc{
		"micro-batch 0: the function passed to WithStep: a broken step": func(*nn.Ctx, models.Model,
			*data.Batch) (models.Output, float64, error) {
			return models.Output{}, 0, broken
		},
		"a mean: want the SUM of the loss terms": func(c *nn.Ctx, m models.Model,
			b *data.Batch) (models.Output, float64, error) {
			out := m.Forward(c, b)
			out.Loss = tensor.Affine(c.Ctx, out.Loss, 1/b.Count, 0)
			return out, b.Count, nil
		},
		"returned no loss": func(*nn.Ctx, models.Model, *data.Batch) (models.Output, float64, error) {
			return models.Output{}, 1, nil
		},
	} {
		_, err := override(t, vfs.NewMem(), 1, nil, trainer.WithTrainData(raggedTexts(51)), trainer.WithStep(step))
		require.ErrorContains(t, err, want)
	}
}

// A dataloader function with the data and order of the trainer leaves the bits, also of a run that is resumed.
func TestTrainDataloader(t *testing.T) {
	sequential := func(a *args.TrainingArguments) { a.TrainSamplingStrategy = args.SamplingSequential }
	want := trainOnRanks(t, 1, sequential)
	load := func(ctx context.Context, acc *accelerate.Accelerator) (*feed.Windows, error) {
		return acc.Windows(ctx, raggedTexts(51), samplers.NewSequential(51), 0)
	}
	for _, ranks := range []int{1, 2} {
		disk := vfs.NewMem()
		got, err := override(t, disk, ranks, nil, trainer.WithTrainDataloader(load))
		require.NoError(t, err)
		require.Equal(t, want.history, got.history, "%d ranks", ranks)
		require.Equal(t, want.weights, got.weights, "%d ranks", ranks)
		resumed, err := override(t, disk, ranks, func(a *args.TrainingArguments) {
			a.ResumeFromCheckpoint = out + "/checkpoint-4"
		}, trainer.WithTrainDataloader(load))
		require.NoError(t, err)
		require.Equal(t, want.weights, resumed.weights, "%d ranks", ranks)
	}
}

// counting is a loader of the program's own: window n has the point n, on the one rank. It has no length.
type counting struct {
	ctx    *tensor.Ctx
	n      int64
	closed *int
	still  bool // batches do not say where they are
}

func (l *counting) Next(int64) (*feed.Window, error) {
	n := l.n
	l.n++
	b, err := source(points(64)).Batch(l.ctx, []int64{n})
	if err != nil {
		return nil, err
	}
	if !l.still {
		b.Position = n
	}
	return &feed.Window{Window: samplers.Window{Number: n, Position: n, Samples: 1, MicroBatches: 1},
		Batches: []*data.Batch{b}}, nil
}

func (l *counting) Close() { *l.closed++ }

func (l *counting) Place() feed.Place {
	text, _ := json.Marshal(l.n)
	return feed.Place{Iterable: &feed.IterablePlace{Iterable: true, Position: l.n, Cursor: text}}
}

func (l *counting) Restore(p feed.Place) error { return json.Unmarshal(p.Iterable.Cursor, &l.n) }

func (l *counting) EpochAfter(w samplers.Window, planned int64) float64 {
	return float64(w.Number+1) / float64(planned)
}

func TestWithTrainDataloader(t *testing.T) {
	disk, closed, log := vfs.NewMem(), 0, &messages{}
	load := func(_ context.Context, acc *accelerate.Accelerator) (*feed.Windows, error) {
		return feed.New(&counting{ctx: acc.Ctx().NoGrad(), closed: &closed}, samplers.WindowLayout{BatchSize: 1,
			AccumulationSteps: 1, WorldSize: 1}, 0, 0), nil
	}
	train := func(steps int, resume string) (map[string][]byte, *trainer.Trainer, error) {
		a := args.Default(out)
		a.PerDeviceTrainBatchSize, a.MaxSteps, a.SaveSteps, a.ResumeFromCheckpoint = 1, steps, 2, resume
		m := newMLP(t, 1, 1)
		tr := newTrainer(disk, m, a, trainer.WithTrainDataloader(load),
			trainer.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
		_, err := tr.Train()
		return weights(m), tr, err
	}
	want, tr, err := train(5, "")
	require.NoError(t, err)
	require.Equal(t, 1.0, tr.State().Epoch)
	require.NotZero(t, closed)
	got, _, err := train(5, out+"/checkpoint-2")
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Contains(t, log.String(), "the training data have no fingerprint (data.Fingerprinter)")
	disk = vfs.NewMem()
	_, _, err = train(-1, "")
	require.ErrorContains(t, err, "max_steps is -1: want at least 1: the training data has no length")
}

// named is a loader that says which data it has.
type named struct {
	*counting
	data string
}

func (l named) Fingerprint() string { return l.data }

// A resume recognizes other data of a dataloader function: of the trainer's windows, and of a loader that names them.
func TestDataloadersHaveFingerprints(t *testing.T) {
	lists := map[string]int{"a": 64, "b": 65}
	for name, load := range map[string]func(data string) trainer.DataloaderFunc{
		"windows": func(data string) trainer.DataloaderFunc {
			return func(ctx context.Context, acc *accelerate.Accelerator) (*feed.Windows, error) {
				return acc.Windows(ctx, source(points(lists[data])), samplers.NewSequential(64), 0)
			}
		},
		"loader": func(data string) trainer.DataloaderFunc {
			return func(_ context.Context, acc *accelerate.Accelerator) (*feed.Windows, error) {
				l := &counting{ctx: acc.Ctx().NoGrad(), closed: new(int)}
				layout, err := acc.Layout()
				return feed.New(named{l, data}, layout, 0, 0), err
			}
		},
	} {
		disk := vfs.NewMem()
		train := func(data, resume string) error {
			a := args.Default(out)
			a.PerDeviceTrainBatchSize, a.MaxSteps, a.SaveSteps, a.ResumeFromCheckpoint = 1, 3, 2, resume
			_, err := newTrainer(disk, newMLP(t, 1, 1), a, trainer.WithTrainDataloader(load(data))).Train()
			return err
		}
		require.NoError(t, train("a", ""), name)
		require.NoError(t, train("a", out+"/checkpoint-2"), name)
		require.ErrorContains(t, train("b", out+"/checkpoint-2"), "the training data (fingerprint ", name)
	}
}

// A step function may leave the loss out where it does not train, also under full_shard; one that leaves it out in
// training is named. Windows of another number of micro-batches are refused.
func TestOverridesThatAreIncomplete(t *testing.T) {
	step := func(always bool) trainer.Option {
		return trainer.WithStep(func(c *nn.Ctx, m models.Model, b *data.Batch) (models.Output, float64, error) {
			out := m.Forward(c, b)
			if always || !c.Training {
				out.Loss = nil
			}
			return out, b.Count, nil
		})
	}
	train := func(o trainer.Option, set func(*args.TrainingArguments)) error {
		a := args.Default(out)
		a.PerDeviceTrainBatchSize, a.MaxSteps, a.SaveStrategy = 4, 2, "no"
		set(a)
		opts := []trainer.Option{o}
		if a.PerDeviceTrainBatchSize > 1 {
			opts = append(opts, trainer.WithTrainData(source(points(64))))
		}
		_, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, opts...).Train()
		return err
	}
	sharded := func(a *args.TrainingArguments) { a.NumReplicas, a.FSDP = 2, []string{"full_shard", "auto_wrap"} }
	require.NoError(t, train(step(false), func(*args.TrainingArguments) {}))
	require.NoError(t, train(step(false), sharded))
	stranger := newMLP(t, 1, 1)
	other := trainer.WithStep(func(c *nn.Ctx, _ models.Model, b *data.Batch) (models.Output, float64, error) {
		return stranger.Forward(c, b), b.Count, nil
	})
	require.ErrorContains(t, train(other, func(*args.TrainingArguments) {}),
		"the loss reaches no trained parameter of the prepared model: want a loss of the model that was prepared")
	detached := trainer.WithStep(func(c *nn.Ctx, m models.Model, b *data.Batch) (models.Output, float64, error) {
		out := m.Forward(c, b)
		out.Loss = tensor.Detach(out.Loss)
		return out, b.Count, nil
	})
	for _, set := range []func(*args.TrainingArguments){func(*args.TrainingArguments) {}, sharded} {
		require.ErrorContains(t, train(detached, set), "no parameter that requires a gradient leads to the loss: want")
	}
	require.ErrorContains(t, train(step(true), func(*args.TrainingArguments) {}),
		"the function passed to WithStep returned no loss: want")
	load := trainer.WithTrainDataloader(func(_ context.Context, acc *accelerate.Accelerator) (*feed.Windows, error) {
		return feed.New(&counting{ctx: acc.Ctx().NoGrad(), closed: new(int)}, samplers.WindowLayout{BatchSize: 1,
			AccumulationSteps: 1, WorldSize: 1}, 0, 0), nil
	})
	still := trainer.WithTrainDataloader(func(_ context.Context, acc *accelerate.Accelerator) (*feed.Windows, error) {
		layout, err := acc.Layout()
		return feed.New(&counting{ctx: acc.Ctx().NoGrad(), closed: new(int), still: true}, layout, 0, 0), err
	})
	require.ErrorContains(t, train(still, func(a *args.TrainingArguments) { a.PerDeviceTrainBatchSize = 1 }),
		"feed: window 1 has a batch at position 0 of the training stream: want at least 1, where the window begins")
	accumulating := func(a *args.TrainingArguments) { a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps = 1, 2 }
	require.ErrorContains(t, train(load, accumulating),
		"the windows of WithTrainDataloader have 1 micro-batches over all ranks: want 2")
}

func TestOverridesRefuse(t *testing.T) {
	load := func(context.Context, *accelerate.Accelerator) (*feed.Windows, error) { return nil, nil }
	loss := func(*nn.Ctx, models.Output, *data.Batch) (*tensor.Tensor, float64) { return nil, 0 }
	step := func(*nn.Ctx, models.Model, *data.Batch) (models.Output, float64, error) {
		return models.Output{}, 0, nil
	}
	for want, opts := range map[string][]trainer.Option{
		"want one of WithLoss and WithStep": {trainer.WithTrainData(source(points(8))), trainer.WithLoss(loss),
			trainer.WithStep(step)},
		"want one of WithTrainData, WithIterableTrainData and WithTrainDataloader": {
			trainer.WithTrainData(source(points(8))), trainer.WithTrainDataloader(load)},
		"want the sampler inside the function": {trainer.WithTrainDataloader(load),
			trainer.WithSampler(samplers.NewSequential(8))},
		"returned no windows": {trainer.WithTrainDataloader(load)},
	} {
		_, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), args.Default(out), opts...).Train()
		require.ErrorContains(t, err, want)
	}
}

// shower keeps the records that it is shown.
type shower struct {
	callbacks.Base
	shown *[]callbacks.Record
}

func (s *shower) OnLog(e *callbacks.Event) error {
	*s.shown = append(*s.shown, e.Record)
	return nil
}

// A log function changes what is kept and shown.
func TestLogFunction(t *testing.T) {
	var shown []callbacks.Record
	a := args.Default(out)
	a.LoggingSteps, a.MaxSteps, a.SaveStrategy = 1, 3, args.StrategyNo
	log := func(s *callbacks.State, r callbacks.Record) error {
		if _, ok := r["loss"]; ok {
			r["loss_twice"] = 2 * r["loss"].(float64)
			delete(r, "grad_norm")
		}
		if s.GlobalStep == 3 {
			return errors.New("enough")
		}
		return nil
	}
	tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithTrainData(source(points(64))),
		trainer.WithLog(log), trainer.WithCallbacks(&shower{shown: &shown}))
	_, err := tr.Train()
	require.ErrorContains(t, err, "trainer: the function passed to WithLog: enough")
	_, err = newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithTrainData(source(points(64))),
		trainer.WithLog(func(_ *callbacks.State, r callbacks.Record) error {
			r["histogram"] = []float64{math.NaN()}
			return nil
		})).Train()
	require.ErrorContains(t, err, "trainer: the function passed to WithLog: histogram is a []float64, which JSON "+
		"cannot hold: ")
	require.Len(t, shown, 2)
	require.Equal(t, shown, tr.State().LogHistory)
	for _, r := range shown {
		require.Equal(t, 2*r["loss"].(float64), r["loss_twice"])
		require.NotContains(t, r, "grad_norm")
	}
}
