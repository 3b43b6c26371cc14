// SPDX-License-Identifier: Apache-2.0

package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// noLeaks fails the test if goroutines are left over that it started.
func noLeaks(t *testing.T) {
	tensor.CPU() // its worker pool stays
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

// epoch orders n samples in batches of size.
func epoch(t testing.TB, n int64, size int) Order {
	b, err := samplers.NewBatch(samplers.NewSequential(n), size, false)
	require.NoError(t, err)
	return EpochOrder(b, 0)
}

func newLoader(t testing.TB, ctx context.Context, c *tensor.Ctx, src Source, order Order, workers int) *Loader {
	l, err := NewLoader(ctx, c, src, order, LoaderOptions{Workers: workers})
	require.NoError(t, err)
	t.Cleanup(l.Close)
	return l
}

func TestLoaderOrder(t *testing.T) {
	for _, workers := range []int{0, 1, 2, 7} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			noLeaks(t)
			c := newCtx()
			src := NewSource(faulty{numbers(23), func(i int) error {
				for range (i * 37) % 11 { // so that workers overtake one another
					runtime.Gosched()
				}
				return nil
			}}, Stack[number])
			l := newLoader(t, context.Background(), c, src, epoch(t, 23, 4), workers)
			seen := 0
			for b, err := range l.All() {
				require.NoError(t, err)
				require.EqualValues(t, seen, b.Position)
				require.Equal(t, b.Size, len(b.Indices))
				for i, x := range tensor.ToSlice[float32](c, b.Tensors[Inputs]) {
					require.Equal(t, float32(seen+i), x)
				}
				seen += b.Size
				require.Equal(t, seen == 23, b.Last)
				b.Free()
			}
			require.Equal(t, 23, seen)
			_, err := l.Next()
			require.Equal(t, io.EOF, err)
			l.Close()
			_, err = l.Next()
			require.Equal(t, io.EOF, err, "it had ended before it was closed")
		})
	}
}

func TestLoaderFollowsStream(t *testing.T) {
	layout := samplers.WindowLayout{BatchSize: 3, AccumulationSteps: 2, WorldSize: 2, Rank: 1}
	newStream := func() *samplers.Stream {
		s, err := samplers.NewStream(samplers.NewRandom(100, 5), layout)
		require.NoError(t, err)
		return s
	}
	plan, c := newStream(), newCtx()
	const start, steps = 1000, 30
	require.NoError(t, plan.SeekStep(start))
	moved := newStream()
	require.NoError(t, moved.SeekStep(start))
	l := newLoader(t, context.Background(), c, NewSource(numbers(100), Stack[number]), StreamOrder(moved, steps), 2)
	for range steps {
		w, ok := plan.Next()
		require.True(t, ok)
		for _, m := range w.Own {
			b, err := l.Next()
			require.NoError(t, err)
			require.Equal(t, m, samplers.MicroBatch{Number: b.MicroBatch, Position: b.Position, Indices: b.Indices})
			b.Free()
		}
	}
	_, err := l.Next()
	require.Equal(t, io.EOF, err)
}

func TestStreamOrderEndsWithoutOwnData(t *testing.T) {
	s, err := samplers.NewStream(samplers.NewSequential(1),
		samplers.WindowLayout{BatchSize: 1, AccumulationSteps: 1, WorldSize: 2, Rank: 1})
	require.NoError(t, err)
	_, ok := StreamOrder(s, 1000).Next()
	require.False(t, ok)
	s, err = samplers.NewStream(samplers.NewSequential(0),
		samplers.WindowLayout{BatchSize: 1, AccumulationSteps: 1, WorldSize: 1})
	require.NoError(t, err)
	_, ok = StreamOrder(s, 1000).Next()
	require.False(t, ok)
}

func TestLoaderErrorsComeInOrder(t *testing.T) {
	for _, workers := range []int{0, 1, 3} {
		noLeaks(t)
		src := NewSource(faulty{numbers(100), func(i int) error {
			if i >= 17 {
				panic("bad sample")
			}
			return nil
		}}, Stack[number])
		l := newLoader(t, context.Background(), newCtx(), src, epoch(t, 100, 5), workers)
		for range 3 {
			b, err := l.Next()
			require.NoError(t, err)
			b.Free()
		}
		for range 2 {
			_, err := l.Next()
			require.EqualError(t, err, "data: sample 17: panic: bad sample")
		}
		l.Close()
		_, err := l.Next()
		require.ErrorContains(t, err, "sample 17", "the first error stays")
	}
}

// brokenOrder panics at its third call.
type brokenOrder struct{ calls int }

func (o *brokenOrder) Next() (samplers.MicroBatch, bool) {
	if o.calls++; o.calls == 3 {
		panic("no third batch")
	}
	return samplers.MicroBatch{Indices: []int64{int64(o.calls)}}, true
}

// brokenSource panics in place of a batch, or ends the goroutine.
type brokenSource struct{ exit bool }

func (brokenSource) Len() int { return 5 }

func (s brokenSource) Batch(*tensor.Ctx, []int64) (*Batch, error) {
	if s.exit {
		runtime.Goexit()
	}
	panic("no batch")
}

func TestLoaderSurvivesUserCode(t *testing.T) {
	noLeaks(t)
	for _, workers := range []int{0, 2} {
		l := newLoader(t, context.Background(), newCtx(), NewSource(numbers(9), Stack[number]), &brokenOrder{}, workers)
		for range 2 {
			b, err := l.Next()
			require.NoError(t, err)
			require.False(t, b.Last)
			b.Free()
		}
		_, err := l.Next()
		require.ErrorContains(t, err, "the order of samples: panic: no third batch")

		l = newLoader(t, context.Background(), newCtx(), brokenSource{}, epoch(t, 5, 2), workers)
		_, err = l.Next()
		require.ErrorContains(t, err, "collating samples [0 1]: panic: no batch")
	}
	l := newLoader(t, context.Background(), newCtx(), brokenSource{exit: true}, epoch(t, 5, 2), 2)
	_, err := l.Next()
	require.ErrorContains(t, err, "runtime.Goexit")
	l.Close()
}

// TestLoaderBounded: no more batches are begun than may wait, plus those taken.
func TestLoaderBounded(t *testing.T) {
	noLeaks(t)
	const workers, factor = 3, 2
	var begun atomic.Int64
	src := NewSource(faulty{numbers(1000), func(int) error { begun.Add(1); return nil }}, Stack[number])
	l, err := NewLoader(context.Background(), newCtx(), src, epoch(t, 1000, 1),
		LoaderOptions{Workers: workers, PrefetchFactor: factor})
	require.NoError(t, err)
	for taken := range int64(50) {
		for begun.Load() < taken+workers*factor { // it does use its room
			runtime.Gosched()
		}
		for range 100 {
			runtime.Gosched()
		}
		require.LessOrEqual(t, begun.Load(), taken+workers*factor)
		b, err := l.Next()
		require.NoError(t, err)
		b.Free()
	}
	l.Close()
}

func TestLoaderCancel(t *testing.T) {
	stop := errors.New("stop now")
	for _, workers := range []int{0, 1, 3} {
		noLeaks(t)
		ctx, cancel := context.WithCancelCause(context.Background())
		l := newLoader(t, ctx, newCtx(), NewSource(numbers(100), Stack[number]), epoch(t, 100, 5), workers)
		b, err := l.Next()
		require.NoError(t, err)
		b.Free()
		cancel(stop)
		_, err = l.Next()
		require.ErrorIs(t, err, stop)
		l.Close()
		_, err = l.Next()
		require.ErrorIs(t, err, stop)
	}
}

// TestLoaderCancelWhileWaiting: Next returns although the sample never comes, and Close
// frees the batch once it has come.
func TestLoaderCancelWhileWaiting(t *testing.T) {
	noLeaks(t)
	ctx, cancel := context.WithCancel(context.Background())
	entered, release := make(chan struct{}), make(chan struct{})
	src := NewSource(faulty{numbers(100), func(i int) error {
		if i == 0 {
			close(entered)
			<-release
		}
		return nil
	}}, Stack[number])
	l := newLoader(t, ctx, newCtx(), src, epoch(t, 100, 5), 2)
	go func() {
		<-entered
		cancel()
	}()
	_, err := l.Next()
	require.ErrorIs(t, err, context.Canceled)
	close(release)
	l.Close()
}

func TestLoaderCloseFreesBatches(t *testing.T) {
	noLeaks(t)
	dev := tensor.NewCPU(1)
	c := tensor.NewCtx(dev)
	for range 20 {
		l := newLoader(t, context.Background(), c, NewSource(numbers(100), Stack[number]), epoch(t, 100, 5), 3)
		b, err := l.Next()
		require.NoError(t, err)
		b.Free()
		l.Close()
		l.Close()
		_, err = l.Next()
		require.ErrorContains(t, err, "the loader is closed")
		require.Zero(t, dev.MemStats().InUse)
	}
	require.NoError(t, dev.Close())
}

func TestLoaderWithoutData(t *testing.T) {
	for _, workers := range []int{0, 2} {
		l := newLoader(t, context.Background(), newCtx(), NewSource(numbers(0), Stack[number]), epoch(t, 0, 5), workers)
		_, err := l.Next()
		require.Equal(t, io.EOF, err)
	}
	for _, o := range []LoaderOptions{{Workers: -1}, {PrefetchFactor: -2}} {
		_, err := NewLoader(context.Background(), newCtx(), NewSource(numbers(0), Stack[number]), epoch(t, 0, 5), o)
		require.ErrorContains(t, err, "want 0 or more")
	}
}

// TestLoaderBlocks goes from a stream of tokens to padded batches.
func TestLoaderBlocks(t *testing.T) {
	c := newCtx()
	stream := JoinDocuments([][]int32{{1, 2, 3, 4}, {5, 6}}, 0)
	blocks, err := EvalBlocks(stream, 4)
	require.NoError(t, err)
	l := newLoader(t, context.Background(), c, NewSource(blocks, CausalLM(0)), epoch(t, int64(blocks.Len()), 2), 1)
	var count float64
	for b, err := range l.All() {
		require.NoError(t, err)
		count += b.Count
		b.Free()
	}
	require.EqualValues(t, len(stream)-1, count)
}
