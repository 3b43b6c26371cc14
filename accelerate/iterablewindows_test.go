// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/feed"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// counted is an iterable of n numbers, epoch e from 1000·e on. It counts.
type counted struct {
	n     int
	seeks bool // cursors can be sought
	fault func(number int) error
	open  *int // cursors that are not closed
	read  *int // numbers
}

func newCounted(n int, seeks bool) counted { return counted{n, seeks, nil, new(int), new(int)} }

func (c counted) source() data.IterableSource {
	return data.NewIterableSource[number](c, data.Stack[number])
}

func (c counted) Open(ctx context.Context, epoch int64) (data.Cursor[number], error) {
	*c.open++
	cursor := &countedCursor{counted: c, epoch: epoch}
	if c.seeks {
		return &seekingCursor{cursor}, nil
	}
	return cursor, nil
}

type countedCursor struct {
	counted
	epoch int64
	next  int
}

func (c *countedCursor) Next() (number, error) {
	if c.next == c.n {
		return number{}, io.EOF
	}
	if c.fault != nil {
		if err := c.fault(c.next); err != nil {
			return number{}, err
		}
	}
	c.next++
	*c.read++
	return number{[1]float32{float32(1000*c.epoch) + float32(c.next-1)}}, nil
}

func (c *countedCursor) Close() error {
	*c.open--
	return nil
}

type seekingCursor struct{ *countedCursor }

func (c *seekingCursor) Place() (json.RawMessage, error) { return json.Marshal(c.next) }

func (c *seekingCursor) Seek(place json.RawMessage) error { return json.Unmarshal(place, &c.next) }

// iterableCase is a cut of an iterable dataset.
type iterableCase struct {
	n, ranks, batch, steps, workers int
	drop                            bool
	config                          map[string]any // of accelerate; nil under Lockstep's rule
}

func (c iterableCase) accelerators(t *testing.T) []*accelerate.Accelerator {
	return accelerators(t, c.ranks, func(_ int, a *args.TrainingArguments) {
		a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps, a.GlobalTrainBatchSize = c.batch, c.steps, 0
		a.PerDeviceEvalBatchSize, a.DataloaderDropLast, a.DataloaderNumWorkers = c.batch, c.drop, c.workers
		if c.config != nil {
			a.DataSharding, a.AcceleratorConfig = args.ShardingHuggingFace, c.config
		}
	})
}

// seen is what a rank sees of a window.
type seen struct {
	samplers.Window
	Values [][]float32
	Places []feed.Place // before the window
}

// take gives the next windows of a rank.
func take(t *testing.T, w *feed.Windows, windows int) (out []seen) {
	t.Helper()
	for range windows {
		place := w.Place()
		next, err := w.Next()
		require.NoError(t, err)
		require.Equal(t, len(next.Own), len(next.Batches))
		for i, b := range next.Batches {
			require.Equal(t, next.Own[i].Position, b.Position)
			require.Equal(t, next.Own[i].Number, b.MicroBatch)
			require.Equal(t, next.Own[i].Indices, b.Indices)
		}
		out = append(out, seen{next.Window, samplesOf(next), []feed.Place{place}})
		next.Free()
	}
	return out
}

func iterableWindows(t *testing.T, acc *accelerate.Accelerator, src data.IterableSource) *feed.Windows {
	w, err := acc.IterableWindows(t.Context(), src, 1000)
	require.NoError(t, err)
	t.Cleanup(w.Close)
	return w
}

// An iterable dataset is cut into the windows of a dataset with a length in its order, on any number of ranks.
func TestIterableWindowsAreThoseOfADataset(t *testing.T) {
	for _, n := range []int{1, 7, 8, 16, 17, 23} {
		for _, ranks := range []int{1, 2, 4} {
			for _, drop := range []bool{false, true} {
				for _, c := range []iterableCase{
					{n, ranks, 2, 1, 0, drop, nil}, {n, ranks, 2, 2, 3, drop, nil}, {n, ranks, 1, 1, 1, drop, nil},
					{n, ranks, 3, 4, 0, drop, nil},
				} {
					if drop && n < c.batch {
						continue
					}
					for _, acc := range c.accelerators(t) {
						sized, err := acc.Windows(t.Context(), numbers(n), samplers.NewSequential(int64(n)), 9)
						require.NoError(t, err)
						got := iterableWindows(t, acc, newCounted(n, true).source())
						for _, g := range take(t, got, 9) {
							want, err := sized.Next()
							require.NoError(t, err)
							require.Equal(t, want.Window, g.Window, "%+v", c)
							for i, values := range samplesOf(want) {
								for k, v := range values {
									require.Equal(t, v+float32(1000*g.Epoch), g.Values[i][k])
								}
							}
							want.Free()
						}
						sized.Close()
						require.NoError(t, acc.Close())
					}
				}
			}
		}
	}
}

// accelerateRow is a row of samplers/testdata/sharding.json.
type accelerateRow struct {
	Ranks, Samples int
	BatchSize      int  `json:"batch_size"`
	SplitBatches   bool `json:"split_batches"`
	DropLast       bool `json:"drop_last"`
	Iterable       bool
	Batches        [][][]int64
}

// With data_sharding huggingface a rank sees what accelerate's IterableDatasetShard gives it.
func TestIterableWindowsAreAccelerates(t *testing.T) {
	text, err := os.ReadFile("../samplers/testdata/sharding.json")
	require.NoError(t, err)
	var rows []accelerateRow
	require.NoError(t, json.Unmarshal(text, &rows))
	compared := 0
	for _, r := range rows {
		if !r.Iterable {
			continue
		}
		for _, steps := range []int{1, 3} {
			c := iterableCase{r.Samples, r.Ranks, r.BatchSize, steps, 0, r.DropLast,
				map[string]any{"split_batches": r.SplitBatches}}
			for rank, acc := range c.accelerators(t) {
				w := iterableWindows(t, acc, newCounted(c.n, true).source())
				got := [][]int64{}
				if len(r.Batches[rank]) == 0 {
					_, err := w.Next()
					require.ErrorContains(t, err, "fewer than one batch")
					continue
				}
				for {
					next := take(t, w, 1)[0]
					var own [][]int64
					for i, m := range next.Own {
						require.Equal(t, rank*steps+i, m.Number)
						for k, index := range m.Indices {
							require.EqualValues(t, index, next.Values[i][k])
						}
						own = append(own, m.Indices)
					}
					if got = append(got, own...); next.LastOfEpoch {
						break
					}
				}
				require.Equal(t, r.Batches[rank], got, "rank %d of %+v", rank, r)
				compared++
				require.NoError(t, acc.Close())
			}
		}
	}
	require.Greater(t, compared, 200)
}

// Any place can be restored: what follows is what followed, with cursors that seek and with those that do not, also
// through JSON.
func TestIterableWindowsResume(t *testing.T) {
	for _, c := range []iterableCase{
		{23, 1, 2, 2, 0, false, nil}, {23, 2, 2, 2, 2, false, nil}, {23, 2, 3, 1, 0, true, nil},
		{8, 1, 1, 1, 0, false, nil}, {12, 1, 4, 1, 0, true, nil},
		{23, 2, 2, 2, 0, false, map[string]any{}}, {23, 2, 4, 1, 1, false, map[string]any{"split_batches": true}},
		{3, 2, 4, 1, 0, false, map[string]any{}},
	} {
		for _, seeks := range []bool{true, false} {
			for _, acc := range c.accelerators(t) {
				src := newCounted(c.n, seeks)
				whole := take(t, iterableWindows(t, acc, src.source()), 14)
				for i, at := range whole {
					text, err := json.Marshal(at.Places[0])
					require.NoError(t, err)
					var place feed.Place
					require.NoError(t, json.Unmarshal(text, &place))
					src := newCounted(c.n, seeks)
					w := iterableWindows(t, acc, src.source())
					require.NoError(t, w.Restore(place))
					require.Equal(t, at.Places[0], w.Place())
					require.Equal(t, whole[i:], take(t, w, len(whole)-i), "%+v", c)
					if seeks && place.Iterable.Items > 0 && c.config == nil && c.workers == 0 && len(whole)-i == 1 {
						require.LessOrEqual(t, *src.read, c.batch*c.steps*c.ranks+c.batch,
							"what lies before is not read")
					}
					w.Close()
					require.Zero(t, *src.open, "all cursors are closed")
				}
				require.NoError(t, acc.Close())
			}
		}
	}
}

// A place goes over to another number of ranks: the samples that follow are the same.
func TestIterableWindowsResumeOnOtherRanks(t *testing.T) {
	four := iterableCase{n: 29, ranks: 4, batch: 2, steps: 1}.accelerators(t)
	w := iterableWindows(t, four[3], newCounted(29, true).source())
	take(t, w, 2)
	var want, got []float32
	for _, acc := range four {
		own := iterableWindows(t, acc, newCounted(29, true).source())
		require.NoError(t, own.Restore(w.Place()))
		for _, s := range take(t, own, 1) {
			want = append(want, slices.Concat(s.Values...)...)
		}
	}
	for _, acc := range (iterableCase{n: 29, ranks: 2, batch: 2, steps: 2}).accelerators(t) {
		own := iterableWindows(t, acc, newCounted(29, false).source())
		require.NoError(t, own.Restore(w.Place()))
		for _, s := range take(t, own, 1) {
			got = append(got, slices.Concat(s.Values...)...)
		}
	}
	require.Equal(t, []float32{16, 17, 18, 19, 20, 21, 22, 23}, want)
	require.Equal(t, want, got)
}

func TestIterableWindowsSeekEpochs(t *testing.T) {
	acc := iterableCase{n: 23, ranks: 1, batch: 4, steps: 1}.accelerators(t)[0]
	w := iterableWindows(t, acc, newCounted(23, true).source())
	take(t, w, 2)
	require.NoError(t, w.SeekEpoch(1))
	next := take(t, w, 1)[0]
	require.Equal(t, [][]float32{{1000, 1001, 1002, 1003}}, next.Values)
	require.EqualValues(t, 8, next.Position, "positions go on, so that no random number is used twice")
	require.EqualValues(t, 0, next.Number)
	require.NoError(t, w.SeekEpoch(1))
	require.Equal(t, next.Values, take(t, w, 1)[0].Values)
	require.NoError(t, w.Undo())
	require.Equal(t, next.Values, take(t, w, 1)[0].Values, "the last window comes again")
	w.Limit(0)
	_, err := w.Next()
	require.Equal(t, io.EOF, err)
}

// The batches of an evaluation are dealt in turn; every rank knows how many there are.
func TestIterableBatches(t *testing.T) {
	for _, ranks := range []int{1, 2, 4} {
		for _, workers := range []int{0, 2} {
			values := map[int64][]float32{}
			for _, acc := range (iterableCase{n: 11, ranks: ranks, batch: 2, steps: 3, workers: workers,
				drop: true}).accelerators(t) {
				w, err := acc.IterableBatches(t.Context(), newCounted(11, false).source())
				require.NoError(t, err)
				batches := 0
				for last := false; !last; {
					s := take(t, w, 1)[0]
					for i, m := range s.Own {
						require.EqualValues(t, acc.Rank(), m.Position/2%int64(ranks))
						values[m.Position/2] = s.Values[i]
					}
					batches, last = batches+s.MicroBatches, s.LastOfEpoch
				}
				require.Equal(t, 6, batches)
				w.Close()
				require.NoError(t, acc.Close())
			}
			require.Equal(t, map[int64][]float32{0: {0, 1}, 1: {2, 3}, 2: {4, 5}, 3: {6, 7}, 4: {8, 9}, 5: {10}},
				values)
		}
	}
}

// Errors come at their place in the order, and end reading.
func TestIterableWindowsErrors(t *testing.T) {
	broken := errors.New("disk on fire")
	for _, workers := range []int{0, 2} {
		acc := iterableCase{n: 30, ranks: 1, batch: 2, steps: 2, workers: workers}.accelerators(t)[0]
		src := newCounted(30, true)
		src.fault = func(i int) error {
			if i == 10 {
				return broken
			}
			return nil
		}
		w := iterableWindows(t, acc, src.source())
		take(t, w, 2)
		_, err := w.Next()
		require.EqualError(t, err, "data: sample 10: disk on fire")
		require.EqualValues(t, 8, w.Position())

		collate := func(c *tensor.Ctx, samples []number) (*data.Batch, error) {
			if samples[0].Inputs[0] == 6 {
				return nil, broken
			}
			return data.Stack(c, samples)
		}
		w = iterableWindows(t, acc, data.NewIterableSource[number](newCounted(30, true), collate))
		take(t, w, 1)
		_, err = w.Next()
		require.EqualError(t, err, "data: collating samples [6 7]: disk on fire")

		w = iterableWindows(t, acc, newCounted(0, true).source())
		_, err = w.Next()
		require.EqualError(t, err, "feed: epoch 0 of the iterable dataset has no samples")

		ctx, cancel := context.WithCancelCause(t.Context())
		w, err = acc.IterableWindows(ctx, newCounted(30, true).source(), 9)
		require.NoError(t, err)
		take(t, w, 1)
		cancel(broken)
		_, err = w.Next()
		require.Equal(t, broken, err)
		w.Close()
	}
}

func TestIterableWindowsRefusePlaces(t *testing.T) {
	acc := iterableCase{n: 23, ranks: 1, batch: 4, steps: 1}.accelerators(t)[0]
	w := iterableWindows(t, acc, newCounted(23, false).source())
	take(t, w, 2)
	good := *w.Place().Iterable
	for want, spoil := range map[string]func(p *feed.IterablePlace){
		"saved with a dataset that has a length": func(p *feed.IterablePlace) { p.Iterable = false },
		"epoch is -1":                            func(p *feed.IterablePlace) { p.Epoch = -1 },
		"items is ":                              func(p *feed.IterablePlace) { p.Items = 1 << 60 },
		"do not go together":                     func(p *feed.IterablePlace) { p.Windows = 9 },
		"these do not":                           func(p *feed.IterablePlace) { p.Position = 7 },
	} {
		bad := good
		spoil(&bad)
		require.ErrorContains(t, w.Restore(feed.Place{Iterable: &bad}), want)
	}
	require.ErrorContains(t, w.Restore(feed.Place{Sized: samplers.Place{}}), "with a dataset that has a length")
	good.Items, good.Position = 24, 24
	require.NoError(t, w.Restore(feed.Place{Iterable: &good}))
	_, err := w.Next()
	require.EqualError(t, err, "data: the epoch ended after 23 samples, before sample 24: the data changed")
	good.Items, good.Position = 23, 23
	require.NoError(t, w.Restore(feed.Place{Iterable: &good}))
	_, err = w.Next()
	require.ErrorContains(t, err, "ends after 23 samples, but was longer when the place was saved")

	config := iterableCase{n: 23, ranks: 2, batch: 3, steps: 1, config: map[string]any{"split_batches": true}}
	_, err = config.accelerators(t)[0].IterableWindows(t.Context(), newCounted(23, false).source(), 1)
	require.ErrorContains(t, err, "split_batches with a batch size of 3: want a multiple of the world size 2")
}
