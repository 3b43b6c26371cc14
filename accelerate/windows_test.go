// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/feed"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/backend/deferred"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// number is a sample that is its own index.
type number struct{ Inputs [1]float32 }

// numbers is a source of n of them.
func numbers(n int) data.Source {
	var list data.Slice[number]
	for i := range n {
		list = append(list, number{[1]float32{float32(i)}})
	}
	return data.NewSource(list, data.Stack[number])
}

// windowsOf cuts numbers into windows of two micro-batches of two.
func windowsOf(t *testing.T, n int, workers int, steps int64) *feed.Windows {
	a := args.Default("")
	a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps, a.DataloaderNumWorkers = 2, 2, workers
	acc, err := accelerate.New(a)
	require.NoError(t, err)
	w, err := acc.Windows(t.Context(), numbers(n), samplers.NewSequential(int64(n)), steps)
	require.NoError(t, err)
	t.Cleanup(w.Close)
	return w
}

// samplesOf are the samples of a window's batches.
func samplesOf(w *feed.Window) (list [][]float32) {
	for _, b := range w.Batches {
		list = append(list, tensor.ToSlice[float32](tensor.NewCtx(tensor.CPU()), b.Tensors[data.Inputs]))
	}
	return list
}

func TestWindowsGiveTheSamplesOfEachStep(t *testing.T) {
	for _, workers := range []int{0, 2} {
		var got [][][]float32
		var last []bool
		for w, err := range windowsOf(t, 7, workers, 3).All() {
			require.NoError(t, err)
			got, last = append(got, samplesOf(w)), append(last, w.LastOfEpoch)
		}
		require.Equal(t, [][][]float32{{{0, 1}, {2, 3}}, {{4, 5}, {6}}, {{0, 1}, {2, 3}}}, got)
		require.Equal(t, []bool{false, true, false}, last)
	}
}

// The loader follows the stream wherever it is moved.
func TestWindowsMayBeMoved(t *testing.T) {
	for _, workers := range []int{0, 2} {
		windows := windowsOf(t, 8, workers, 1)
		next := func() [][]float32 {
			w, err := windows.Next()
			require.NoError(t, err)
			defer w.Free()
			return samplesOf(w)
		}
		require.Equal(t, [][]float32{{0, 1}, {2, 3}}, next())
		_, err := windows.Next()
		require.Equal(t, io.EOF, err)
		windows.Limit(3)
		require.NoError(t, windows.Restore(feed.Place{Sized: samplers.Place{Epoch: 1, Position: 12, Samples: 8}}))
		require.Equal(t, [][]float32{{4, 5}, {6, 7}}, next())
		require.ErrorContains(t, windows.Restore(feed.Place{Iterable: &feed.IterablePlace{}}), "an iterable dataset")
		require.NoError(t, windows.Undo())
		require.EqualValues(t, 12, windows.Position())
		require.NoError(t, windows.Restore(feed.Place{Sized: samplers.Place{Position: 2, Samples: 8}}))
		require.Equal(t, [][]float32{{2, 3}, {4, 5}}, next())
		windows.Close()
		require.Equal(t, [][]float32{{6, 7}}, next())
		_, err = windows.Next()
		require.Equal(t, io.EOF, err)
	}
}

// unreadable is a source that cannot be read.
type unreadable struct{ data.Source }

var errUnreadable = errors.New("the disk is gone")

func (unreadable) Batch(*tensor.Ctx, []int64) (*data.Batch, error) { return nil, errUnreadable }

func TestWindowsEndAtAnError(t *testing.T) {
	acc, err := accelerate.New(args.Default(""))
	require.NoError(t, err)
	windows, err := acc.Windows(t.Context(), unreadable{numbers(30)}, samplers.NewSequential(30), 2)
	require.NoError(t, err)
	rounds := 0
	for w, err := range windows.All() {
		require.ErrorIs(t, err, errUnreadable)
		require.Nil(t, w)
		rounds++
	}
	require.Equal(t, 1, rounds)
}

// Between the passes of a window the host does not wait for the device: the losses are read behind the last one, all at
// once.
func TestAWindowWaitsForTheDeviceOnce(t *testing.T) {
	backend := deferred.New(1)
	dev := joint.Device[*tensor.Device](backend)
	defer dev.Close()
	a := args.Default("")
	a.GradientAccumulationSteps = 4
	acc, err := accelerate.New(a, accelerate.WithDevice(dev))
	require.NoError(t, err)
	defer acc.Close()
	m := newNet(dev, 1)
	require.NoError(t, acc.Prepare(t.Context(), m, adamW))
	var batches []*data.Batch
	for i := range 4 {
		batches = append(batches, batch(acc.Ctx(), i, i == 2))
	}
	var before []int64
	start := backend.HostWaits()
	_, err = acc.Accumulate(t.Context(), batches, func(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
		before = append(before, backend.HostWaits()-start)
		return m.loss(c, b)
	})
	require.NoError(t, err)
	require.Equal(t, []int64{0, 0, 0, 0}, before)
	require.EqualValues(t, 1, backend.HostWaits()-start)
}

// The batches of an evaluation are dealt in turn, each sample once, and end with the epoch.
func TestBatches(t *testing.T) {
	for _, ranks := range []int{1, 2, 4} {
		var all []float32
		for _, acc := range accelerators(t, ranks, func(_ int, a *args.TrainingArguments) {
			a.PerDeviceEvalBatchSize, a.DataloaderNumWorkers = 2, 2
		}) {
			w, err := acc.Batches(t.Context(), numbers(11))
			require.NoError(t, err)
			require.EqualValues(t, 6, w.MicroBatches())
			for window, err := range w.All() {
				require.NoError(t, err)
				require.Zero(t, window.Epoch)
				for i, b := range samplesOf(window) {
					require.Equal(t, float32(2*(window.Own[i].Number+ranks*int(window.Number))), b[0])
					all = append(all, b...)
				}
			}
		}
		slices.Sort(all)
		require.Equal(t, []float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, all, "%d ranks", ranks)
	}
}
