// SPDX-License-Identifier: Apache-2.0

package parallel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/internal/parallel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var workerCounts = []int{1, 2, 3, 8}

// eachPool runs test on a nil pool and on pools of several sizes.
func eachPool(t *testing.T, test func(t *testing.T, p *parallel.Pool)) {
	t.Run("nil", func(t *testing.T) { test(t, nil) })
	for _, workers := range workerCounts {
		t.Run(fmt.Sprintf("workers=%d", workers), func(t *testing.T) {
			p := parallel.New(workers)
			defer p.Close()
			test(t, p)
		})
	}
}

func TestForVisitsEachIndexOnce(t *testing.T) {
	eachPool(t, func(t *testing.T, p *parallel.Pool) {
		for _, n := range []int{-1, 0, 1, 2, 3, 7, 100, 1000} {
			visits := make([]atomic.Int32, max(n, 0))
			p.For(n, func(i int) { visits[i].Add(1) })
			for i := range visits {
				require.Equal(t, int32(1), visits[i].Load(), "n=%d index %d", n, i)
			}
		}
	})
}

func TestChunksDoNotDependOnWorkers(t *testing.T) {
	pools := []*parallel.Pool{nil}
	for _, workers := range workerCounts {
		p := parallel.New(workers)
		defer p.Close()
		pools = append(pools, p)
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 300).Draw(t, "n")
		chunk := rapid.IntRange(1, 320).Draw(t, "chunk")
		want := map[[2]int]int{}
		for lo := 0; lo < n; lo += chunk {
			want[[2]int{lo, min(lo+chunk, n)}] = 1
		}
		for _, p := range pools {
			var mu sync.Mutex
			spans, indexed := map[[2]int]int{}, map[[2]int]int{}
			p.ForChunks(n, chunk, func(lo, hi int) {
				mu.Lock()
				defer mu.Unlock()
				spans[[2]int{lo, hi}]++
			})
			p.ForWorkers(n, chunk, func(_, lo, hi int) {
				mu.Lock()
				defer mu.Unlock()
				indexed[[2]int{lo, hi}]++
			})
			require.Equal(t, want, spans)
			require.Equal(t, want, indexed)
		}
	})
}

func TestWorkerIndexIsExclusive(t *testing.T) {
	eachPool(t, func(t *testing.T, p *parallel.Pool) {
		held := make([]atomic.Bool, p.Workers())
		var clashes atomic.Int32
		p.ForWorkers(500, 1, func(worker, _, _ int) {
			if !held[worker].CompareAndSwap(false, true) {
				clashes.Add(1)
			}
			runtime.Gosched()
			held[worker].Store(false)
		})
		require.Zero(t, clashes.Load())
	})
}

// TestWorkersShareTheLoop blocks all bodies until as many run as there are workers.
func TestWorkersShareTheLoop(t *testing.T) {
	for _, workers := range workerCounts {
		p := parallel.New(workers)
		for range 50 {
			var running atomic.Int32
			var alone atomic.Bool
			all := make(chan struct{})
			p.For(workers, func(int) {
				if running.Add(1) == int32(workers) {
					close(all)
				}
				select {
				case <-all:
				case <-time.After(10 * time.Second):
					alone.Store(true)
				}
			})
			require.False(t, alone.Load(), "a body waited for workers that did not come")
		}
		p.Close()
	}
}

func TestNestedCallsDoNotDeadlock(t *testing.T) {
	eachPool(t, func(t *testing.T, p *parallel.Pool) {
		var sum atomic.Int64
		p.For(20, func(i int) {
			p.ForChunks(10, 3, func(lo, hi int) {
				p.For(hi-lo, func(k int) { sum.Add(int64(100*i + lo + k)) })
			})
		})
		require.Equal(t, int64(10*100*190+20*45), sum.Load())
	})
}

func TestManyCallersShareAPool(t *testing.T) {
	eachPool(t, func(t *testing.T, p *parallel.Pool) {
		var callers sync.WaitGroup
		sums := make([]int64, 6)
		for c := range sums {
			callers.Go(func() {
				for range 200 {
					var sum atomic.Int64
					p.ForChunks(64, 5, func(lo, hi int) {
						for i := lo; i < hi; i++ {
							sum.Add(int64(i))
						}
					})
					sums[c] += sum.Load()
				}
			})
		}
		callers.Wait()
		for _, sum := range sums {
			require.Equal(t, int64(200*2016), sum)
		}
	})
}

func TestPanicReachesTheCallerWithItsValue(t *testing.T) {
	boom := errors.New("boom")
	eachPool(t, func(t *testing.T, p *parallel.Pool) {
		for at := range 40 {
			require.PanicsWithValue(t, boom, func() {
				p.For(40, func(i int) {
					if i == at {
						panic(boom)
					}
				})
			})
		}
		var count atomic.Int32
		p.For(100, func(int) { count.Add(1) })
		require.Equal(t, int32(100), count.Load(), "the pool works on after a panic")
	})
}

// goroutine is the number of the calling goroutine.
func goroutine() string {
	var text [64]byte
	return string(bytes.Fields(text[:runtime.Stack(text[:], false)])[1])
}

// TestPanicOnAWorker makes sure that a goroutine of the pool, not the caller, is the one that panics.
func TestPanicOnAWorker(t *testing.T) {
	p := parallel.New(2)
	defer p.Close()
	caller := goroutine()
	require.PanicsWithValue(t, "from a worker", func() {
		var both sync.WaitGroup
		both.Add(2)
		p.For(2, func(int) {
			both.Done()
			both.Wait()
			if goroutine() != caller {
				panic("from a worker")
			}
		})
	})
}

func TestPanicWaitsForRunningBodies(t *testing.T) {
	p := parallel.New(3)
	defer p.Close()
	var running atomic.Int32
	require.Panics(t, func() {
		p.For(3, func(i int) {
			running.Add(1)
			defer running.Add(-1)
			if i == 0 {
				panic("early")
			}
			for range 1000 {
				runtime.Gosched()
			}
		})
	})
	require.Zero(t, running.Load(), "no body runs once the call has ended")
}

func TestGoexitOnAWorker(t *testing.T) {
	p := parallel.New(2)
	defer p.Close()
	caller := goroutine()
	require.PanicsWithError(t, "parallel: a loop body called runtime.Goexit on a worker", func() {
		var both sync.WaitGroup
		both.Add(2)
		p.For(2, func(int) {
			both.Done()
			both.Wait()
			if goroutine() != caller {
				runtime.Goexit()
			}
		})
	})
	var both sync.WaitGroup // the lost worker has been replaced
	both.Add(2)
	p.For(2, func(int) {
		both.Done()
		both.Wait()
	})
}

func TestCloseWhileInUse(t *testing.T) {
	for range 50 {
		p := parallel.New(3)
		var count atomic.Int32
		var caller sync.WaitGroup
		caller.Go(func() {
			for range 20 {
				p.For(10, func(int) { count.Add(1) })
			}
		})
		p.Close()
		p.Close()
		caller.Wait()
		require.Equal(t, int32(200), count.Load())
	}
}

func TestNoGarbagePerCall(t *testing.T) {
	p := parallel.New(3)
	defer p.Close()
	var sink [512]int64
	each := func(i int) { sink[i] = int64(i) }
	span := func(lo, hi int) { sink[lo] = int64(hi) }
	indexed := func(worker, lo, _ int) { sink[lo] = int64(worker) }
	require.Zero(t, testing.AllocsPerRun(100, func() { p.For(len(sink), each) }))
	require.Zero(t, testing.AllocsPerRun(100, func() { p.ForChunks(len(sink), 7, span) }))
	require.Zero(t, testing.AllocsPerRun(100, func() { p.ForWorkers(len(sink), 7, indexed) }))
}

func TestArguments(t *testing.T) {
	require.Equal(t, runtime.GOMAXPROCS(0), parallel.New(0).Workers())
	require.Equal(t, 5, parallel.New(5).Workers())
	require.Equal(t, 1, (*parallel.Pool)(nil).Workers())
	(*parallel.Pool)(nil).Close()
	eachPool(t, func(t *testing.T, p *parallel.Pool) {
		require.PanicsWithValue(t, "parallel: chunk is 0: want at least 1", func() {
			p.ForChunks(3, 0, func(int, int) {})
		})
	})
}

func BenchmarkFor(b *testing.B) {
	for _, workers := range []int{1, 2} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			p := parallel.New(workers)
			defer p.Close()
			body := func(int) {}
			b.ReportAllocs()
			for b.Loop() {
				p.For(4, body)
			}
		})
	}
}

// Workers carry the labels of a loop while they work on it.
func TestLabels(t *testing.T) {
	p := parallel.New(4)
	defer p.Close()
	labels := func() string {
		var text bytes.Buffer
		var once sync.Once
		var all sync.WaitGroup
		all.Add(4)
		p.For(4, func(int) {
			all.Done()
			all.Wait() // all four are at work
			once.Do(func() { require.NoError(t, pprof.Lookup("goroutine").WriteTo(&text, 1)) })
		})
		return text.String()
	}
	require.NotContains(t, labels(), `"op":"matmul"`)
	p.SetLabels(pprof.WithLabels(context.Background(), pprof.Labels("op", "matmul")))
	require.Contains(t, labels(), `"op":"matmul"`)
	p.ClearLabels()
	require.NotContains(t, labels(), `"op":"matmul"`)
	(*parallel.Pool)(nil).SetLabels(context.Background())
	(*parallel.Pool)(nil).ClearLabels()
}

// Goroutines that hold each other up take different parts, whatever processors they run on, and numbers are not given
// out twice.
func TestPartsAreClaimedOnce(t *testing.T) {
	for _, workers := range workerCounts {
		p := parallel.New(workers)
		for range 50 {
			var barrier sync.WaitGroup
			barrier.Add(workers)
			begun := make([]atomic.Int32, workers)
			p.ForWorkers(workers, 1, func(worker, lo, _ int) {
				begun[worker].Add(1)
				barrier.Done()
				barrier.Wait()
			})
			for w := range begun {
				require.Equal(t, int32(1), begun[w].Load(), "worker %d of %d", w, workers)
			}
		}
		p.Close()
	}
}

// A worker begins with its own part of the chunks, and takes the rest when it has finished.
func TestEachWorkerHasItsPart(t *testing.T) {
	p := parallel.New(2)
	defer p.Close()
	var mu sync.Mutex
	var order [2][]int
	begun, joined := make(chan struct{}), make(chan struct{}) // neither does all before the other has its first
	p.ForWorkers(8, 1, func(worker, lo, _ int) {
		mu.Lock()
		order[worker] = append(order[worker], lo)
		mu.Unlock()
		switch {
		case worker == 1 && lo == 4:
			close(joined)
			<-begun
		case worker == 0 && lo == 0:
			close(begun)
			<-joined
		}
	})
	require.Equal(t, 0, order[0][0])
	require.Equal(t, 4, order[1][0])
	all := append(slices.Clone(order[0]), order[1]...)
	slices.Sort(all)
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7}, all)
}
