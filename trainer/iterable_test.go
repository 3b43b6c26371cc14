// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"context"
	"encoding/json"
	"io"
	"iter"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/trainer"
)

// streamed reads a dataset in its order, every epoch alike.
type streamed[T any] struct {
	data.Slice[T]
	seeks bool
}

func (s streamed[T]) Open(context.Context, int64) (data.Cursor[T], error) {
	c := &streamedCursor[T]{list: s.Slice}
	if s.seeks {
		return &seekingCursor[T]{c}, nil
	}
	return c, nil
}

type streamedCursor[T any] struct {
	list data.Slice[T]
	next int
}

func (c *streamedCursor[T]) Next() (sample T, err error) {
	if c.next == len(c.list) {
		return sample, io.EOF
	}
	c.next++
	return c.list[c.next-1], nil
}

func (c *streamedCursor[T]) Close() error { return nil }

type seekingCursor[T any] struct{ *streamedCursor[T] }

func (c *seekingCursor[T]) Place() (json.RawMessage, error)  { return json.Marshal(c.next) }
func (c *seekingCursor[T]) Seek(place json.RawMessage) error { return json.Unmarshal(place, &c.next) }

func streamOf(n int, seeks bool) data.IterableSource {
	return data.NewIterableSource[[]int32](streamed[[]int32]{sequences(n), seeks}, data.CausalLM(0))
}

// streamArgs are 11 steps over epochs of 4 steps, of which the last is ragged.
func streamArgs(ranks int, set ...func(*args.TrainingArguments)) *args.TrainingArguments {
	a := rankArgs(ranks)
	a.MaxSteps, a.SaveSteps = 11, 1
	for _, f := range set {
		f(a)
	}
	return a
}

// trainOnStream trains on 51 samples without a length.
func trainOnStream(t *testing.T, disk *vfs.Mem, ranks int, seeks bool, set ...func(*args.TrainingArguments)) rankRun {
	t.Helper()
	m := newGPT2(t, 0.2)
	tr := newTrainer(disk, m, streamArgs(ranks, set...), trainer.WithIterableTrainData(streamOf(51, seeks)),
		trainer.WithIterableEvalData(streamOf(13, false)))
	res, err := tr.Train()
	require.NoError(t, err)
	require.EqualValues(t, 11, res.GlobalStep)
	return rankRun{weights(m), steady(untimed(tr.State().LogHistory)), disk}
}

// A stream gives the bits of a dataset with a length in the same order, on any number of ranks.
func TestIterableHasTheBitsOfADataset(t *testing.T) {
	m := newGPT2(t, 0.2)
	tr := newTrainer(vfs.NewMem(), m, streamArgs(1, func(a *args.TrainingArguments) {
		a.TrainSamplingStrategy = args.SamplingSequential
	}),
		trainer.WithTrainData(raggedTexts(51)), trainer.WithEvalData(raggedTexts(13)))
	_, err := tr.Train()
	require.NoError(t, err)
	want := steady(untimed(tr.State().LogHistory))
	for _, ranks := range []int{1, 2, 4} {
		got := trainOnStream(t, vfs.NewMem(), ranks, ranks == 2, func(a *args.TrainingArguments) {
			a.DataloaderNumWorkers = ranks - 1
		})
		require.Equal(t, weights(m), got.weights, "%d ranks", ranks)
		require.Len(t, got.history, len(want))
		evaluated := 0
		for i, rec := range got.history {
			for _, key := range []string{"loss", "grad_norm", "learning_rate", "eval_loss", "train_loss", "step"} {
				require.Equal(t, want[i][key], rec[key], "%d ranks, %s", ranks, key)
			}
			if rec["eval_loss"] != nil {
				evaluated++
			}
		}
		require.Equal(t, 6, evaluated)
	}
}

// A run that resumes in the middle of a stream ends with the bits of one that was never interrupted, wherever it
// resumes, on other numbers of ranks too, and whether the stream seeks or is read again.
func TestIterableResumes(t *testing.T) {
	t.Parallel()
	for _, seeks := range []bool{true, false} {
		whole := trainOnStream(t, vfs.NewMem(), 2, seeks)
		for step := int64(1); step <= 11; step++ {
			if !seeks && step%4 != 3 {
				continue
			}
			ranks := []int{2, 1, 4}[step%3]
			again := trainOnStream(t, whole.disk.CrashClone(nil), ranks, seeks, resumeFrom(step))
			require.Equal(t, whole.weights, again.weights, "from step %d on %d ranks", step, ranks)
			require.Equal(t, whole.history, again.history, "from step %d on %d ranks", step, ranks)
		}
	}
}

// The epoch that records show is whole where the stream ends, and counts the steps within as parts of max_steps.
func TestIterableEpochs(t *testing.T) {
	var epochs []float64
	var begins int
	m := newMLP(t, 1, 1)
	a := lineArgs(func(a *args.TrainingArguments) { a.MaxSteps, a.LoggingSteps = 7, 1 })
	tr := newTrainer(vfs.NewMem(), m, a,
		trainer.WithIterableTrainData(data.NewIterableSource[point](streamed[point]{points(20), false},
			data.Stack[point])),
		on(callbacks.StepEnd, func(e *callbacks.Event) error {
			epochs = append(epochs, e.State.Epoch)
			return nil
		}), on(callbacks.EpochEnd, func(*callbacks.Event) error { begins++; return nil }))
	_, err := tr.Train()
	require.NoError(t, err)
	require.InDeltaSlice(t, []float64{1. / 7, 2. / 7, 1, 1 + 1./7, 1 + 2./7, 2, 2 + 1./7}, epochs, 1e-12)
	require.Equal(t, 3, begins)
}

// ignore_data_skip begins the epoch anew, of a stream and of a dataset with a length.
func TestIgnoreDataSkip(t *testing.T) {
	for name, opts := range map[string][]trainer.Option{
		"stream": {trainer.WithIterableTrainData(
			data.NewIterableSource[point](streamed[point]{points(40), false}, data.Stack[point]))},
		"dataset": {trainer.WithTrainData(source(points(40)))},
	} {
		var seen [][]int64
		run := func(disk *vfs.Mem, set ...func(*args.TrainingArguments)) {
			seen = nil
			a := lineArgs(append([]func(*args.TrainingArguments){func(a *args.TrainingArguments) {
				a.TrainSamplingStrategy, a.MaxSteps, a.SaveStrategy, a.SaveSteps = args.SamplingSequential, 9,
					args.StrategySteps, 1
			}}, set...)...)
			seer := trainer.WithLoss(watchBatches(func(b *data.Batch) { seen = append(seen, b.Indices[:1]) }))
			_, err := newTrainer(disk, newMLP(t, 1, 1), a, append(opts, seer)...).Train()
			require.NoError(t, err)
		}
		disk := vfs.NewMem()
		run(disk)
		require.Equal(t, [][]int64{{0}, {8}, {16}, {24}, {32}, {0}, {8}, {16}, {24}}, seen, name)
		for step, want := range map[int64][][]int64{
			3: {{0}, {8}, {16}, {24}, {32}, {0}},
			5: {{0}, {8}, {16}, {24}},
			7: {{0}, {8}},
		} {
			run(disk.CrashClone(nil), resumeFrom(step), func(a *args.TrainingArguments) { a.IgnoreDataSkip = true })
			require.Equal(t, want, seen, "%s from step %d", name, step)
		}
	}
}

func TestIterableEvaluation(t *testing.T) {
	var want *trainer.PredictionOutput
	for _, ranks := range []int{1, 2, 4} {
		{
			n := 11
			a := rankArgs(ranks)
			a.DataloaderNumWorkers = ranks / 2
			tr := newTrainer(vfs.NewMem(), newGPT2(t, 0), a,
				trainer.WithNamedIterableEvalData("stream",
					data.NewIterableSource[text](streamed[text]{equalTexts(n), false}, data.Stack[text])),
				trainer.WithNamedEvalData("list", data.NewSource(equalTexts(n), data.Stack[text])))
			metrics, err := tr.Evaluate()
			require.NoError(t, err)
			require.Equal(t, metrics["eval_list_loss"], metrics["eval_stream_loss"])
			got, err := tr.PredictIterableContext(ctx,
				data.NewIterableSource[text](streamed[text]{equalTexts(n), false}, data.Stack[text]))
			require.NoError(t, err)
			listed, err := tr.Predict(data.NewSource(equalTexts(n), data.Stack[text]))
			require.NoError(t, err)
			require.Equal(t, listed.Predictions, got.Predictions)
			require.Equal(t, listed.Metrics["test_loss"], got.Metrics["test_loss"])
			if want == nil {
				want = got
			}
			require.Equal(t, want.Predictions, got.Predictions)
		}
	}
	tr := newTrainer(vfs.NewMem(), newGPT2(t, 0), rankArgs(2), trainer.WithIterableEvalData(streamOf(0, false)))
	_, err := tr.Evaluate()
	requireOneError(t, err, `evaluation set "eval" is empty: want at least one sample`)
}

func TestIterableFaults(t *testing.T) {
	stream := func(n int) trainer.Option {
		return trainer.WithIterableTrainData(
			data.NewIterableSource[point](streamed[point]{points(n), false}, data.Stack[point]))
	}
	for _, c := range []struct {
		want string
		set  func(a *args.TrainingArguments)
		opts []trainer.Option
	}{
		{"max_steps is -1: want at least 1, since an iterable training set has no length", nil,
			[]trainer.Option{stream(20)}},
		{"group_by_length sorts samples by length", func(a *args.TrainingArguments) {
			a.MaxSteps, a.TrainSamplingStrategy = 5, args.SamplingGroupByLength
		}, []trainer.Option{stream(20)}},
		{"WithSampler has no effect on an iterable training set", func(a *args.TrainingArguments) {
			a.MaxSteps = 5
		}, []trainer.Option{stream(20), trainer.WithSampler(picked{1})}},
		{"two training sets are given", func(a *args.TrainingArguments) {
			a.MaxSteps = 5
		}, []trainer.Option{stream(20), trainer.WithTrainData(source(points(3)))}},
		{"epoch 0 of the iterable dataset has no samples", func(a *args.TrainingArguments) {
			a.MaxSteps = 5
		}, []trainer.Option{stream(0)}},
		{"has 5 samples, fewer than one batch of 8", func(a *args.TrainingArguments) {
			a.MaxSteps, a.DataloaderDropLast = 5, true
		}, []trainer.Option{stream(5)}},
	} {
		_, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), lineArgs(func(a *args.TrainingArguments) {
			if c.set != nil {
				c.set(a)
			}
		}), c.opts...).Train()
		requireOneError(t, err, c.want)
	}

	// A checkpoint of a stream is not one of a dataset with a length, nor the other way round.
	save := func(a *args.TrainingArguments) {
		a.MaxSteps, a.SaveStrategy, a.SaveSteps = 3, args.StrategySteps, 2
	}
	for _, pair := range [][2]trainer.Option{{stream(20), trainer.WithTrainData(source(points(20)))},
		{trainer.WithTrainData(source(points(20))), stream(20)}} {
		disk := vfs.NewMem()
		_, err := newTrainer(disk, newMLP(t, 1, 1), lineArgs(save), pair[0]).Train()
		require.NoError(t, err)
		_, err = newTrainer(disk, newMLP(t, 1, 1), lineArgs(save, resumeFrom(2)), pair[1]).Train()
		requireOneError(t, err, "the training set or its order has changed")
	}
}

// Ranks whose streams have different lengths are told, instead of waiting for each other.
func TestIterableStreamsThatDiffer(t *testing.T) {
	var opened atomic.Int64
	list := points(40)
	differing := data.Seq[point](func(int64) iter.Seq2[point, error] {
		n := 32 - 4*int(opened.Add(1)-1)
		return func(yield func(point, error) bool) {
			for _, p := range list[:n] {
				if !yield(p, nil) {
					return
				}
			}
		}
	})
	a := lineArgs(func(a *args.TrainingArguments) { a.MaxSteps, a.NumReplicas, a.DDPTimeout = 8, 2, 20 })
	_, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a,
		trainer.WithIterableTrainData(data.NewIterableSource[point](differing, data.Stack[point]))).Train()
	require.ErrorContains(t, err, "the ranks read different numbers of samples in epoch 0 of the training data")
}
