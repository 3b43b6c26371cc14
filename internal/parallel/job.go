package parallel

import (
	"context"
	"errors"
	"math"
	"runtime/pprof"
	"sync"
	"sync/atomic"
)

// errGoexit is the panic that a caller sees when a body ended a worker's goroutine by runtime.Goexit (t.FailNow does).
var errGoexit = errors.New("parallel: a loop body called runtime.Goexit on a worker")

// job is one loop. Exactly one of each, span and indexed is set: three fields instead of one adapter, since an adapter is a
// closure and closures are garbage.
type job struct {
	each    func(i int)
	span    func(lo, hi int)
	indexed func(worker, lo, hi int)
	n       int64
	chunk   int64
	labels  *context.Context // that workers carry; nil: none
	asked   []*worker        // the workers that were offered this job, known to the caller alone

	_       [64]byte     // next is written by all workers: a cache line of its own
	next    atomic.Int64 // the first index that has not been handed out
	_       [56]byte
	joined  atomic.Int32 // workers that took the offer up
	pending atomic.Int32 // the caller, and the offers that are open or taken up and not finished
	done    chan struct{}

	mu      sync.Mutex
	failure *failure
}

// failure is a panic caught on a worker.
type failure struct{ value any }

// work runs chunks until none is left.
func (j *job) work(worker int) {
	for {
		hi := j.next.Add(j.chunk)
		lo := hi - j.chunk
		if lo >= j.n {
			return
		}
		hi = min(hi, j.n)
		switch {
		case j.each != nil:
			j.each(int(lo))
		case j.span != nil:
			j.span(int(lo), int(hi))
		default:
			j.indexed(worker, int(lo), int(hi))
		}
	}
}

// stop lets no further chunk begin. The value leaves room for the additions of workers that have not noticed yet.
func (j *job) stop() { j.next.Store(math.MaxInt64 / 2) }

// assist is work on a pool's own goroutine: it catches a panic for the caller.
func (j *job) assist() {
	completed := false
	defer func() {
		if !completed {
			value := recover()
			if value == nil {
				value = errGoexit
			}
			j.mu.Lock()
			if j.failure == nil {
				j.failure = &failure{value}
			}
			j.mu.Unlock()
			j.stop()
		}
	}()
	if j.labels != nil {
		pprof.SetGoroutineLabels(*j.labels)
		defer pprof.SetGoroutineLabels(context.Background())
	}
	j.work(int(j.joined.Add(1)))
	completed = true
}

// release tells the caller that one worker has finished.
func (j *job) release() {
	if j.pending.Add(-1) == 0 {
		j.done <- struct{}{}
	}
}

// wait returns when the last worker has finished: it watches for a short while, since chunks end at about the same time, then sleeps.
func (j *job) wait() {
	for range spins {
		select {
		case <-j.done:
			return
		default:
		}
	}
	<-j.done
}
