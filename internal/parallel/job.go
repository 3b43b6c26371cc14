// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"runtime"
	"runtime/pprof"
	"sync"
	"sync/atomic"
)

// errGoexit is the panic that a caller sees when a body ended a worker's goroutine by runtime.Goexit (t.FailNow does).
var errGoexit = errors.New("parallel: a loop body called runtime.Goexit on a worker")

// job is one loop. Exactly one of each, span and indexed is set: three fields instead of one adapter, since an adapter
// is a closure and closures are garbage.
type job struct {
	each    func(i int)
	span    func(lo, hi int)
	indexed func(worker, lo, hi int)
	n       int64
	chunk   int64
	parts   []part           // by worker
	homes   homes            // of the parts; the pool's
	labels  *context.Context // that workers carry; nil: none
	asked   []*worker        // the workers that were offered this job, known to the caller alone

	stopped atomic.Bool
	pending atomic.Int32 // the caller, and the offers that are open or taken up and not finished
	done    chan struct{}

	mu      sync.Mutex
	failure *failure
}

// part is a range of neighbouring chunks. It is one worker's own, the same processor's in every loop over as many
// chunks: so what a loop wrote is in the cache of the worker that reads it in the next, and what the hardware fetches
// ahead is for itself. Who has finished takes from the others.
type part struct {
	next  atomic.Int64 // the first chunk that has not been handed out
	end   int64
	taken atomic.Bool // by a worker as its own
	_     [40]byte    // fills the cache line
}

// homes says which processor last had each part as its own. Goroutines move between threads and threads between
// processors, often more than once in a training step; the data of a part do not move with them.
type homes []atomic.Int32

// claim takes a part for a goroutine with the given number: the one that was at home on its processor, else that of its
// number, else any. There are as many parts as goroutines that can take one.
func (j *job) claim(number int) int {
	here := processor()
	for i := range j.parts {
		if here >= 0 && j.homes[i].Load() == here && j.parts[i].taken.CompareAndSwap(false, true) {
			return i
		}
	}
	for i := range j.parts {
		if i = (number + i) % len(j.parts); j.parts[i].taken.CompareAndSwap(false, true) {
			j.homes[i].Store(here)
			return i
		}
	}
	panic("parallel: more goroutines than parts") // not reached
}

// failure is a panic caught on a worker.
type failure struct{ value any }

// work runs chunks until none is left: first those of its own part, whose number is that of the worker from here on,
// then what others have not begun.
func (j *job) work(number int) {
	worker := j.claim(number)
	for i := range j.parts {
		part := &j.parts[(worker+i)%len(j.parts)]
		for !j.stopped.Load() {
			chunk := part.next.Add(1) - 1
			if chunk >= part.end {
				break
			}
			lo := chunk * j.chunk
			hi := min(lo+j.chunk, j.n)
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
}

// divide gives each worker a part of the chunks.
func (j *job) divide() {
	chunks, workers := (j.n+j.chunk-1)/j.chunk, int64(len(j.parts))
	for w := range j.parts {
		part := &j.parts[w]
		part.next.Store(int64(w) * chunks / workers)
		part.end = int64(w+1) * chunks / workers
		part.taken.Store(false)
	}
}

// stop lets no further chunk begin.
func (j *job) stop() { j.stopped.Store(true) }

// assist is work on a pool's own goroutine: it catches a panic for the caller.
func (j *job) assist(number int) {
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
	j.work(number)
	completed = true
}

// release tells the caller that one worker has finished.
func (j *job) release() {
	if j.pending.Add(-1) == 0 {
		j.done <- struct{}{}
	}
}

// wait returns when the last worker has finished: it watches for a short while, since chunks end at about the same
// time, then sleeps.
func (j *job) wait() {
	for i := range rounds * spins {
		select {
		case <-j.done:
			return
		default:
		}
		if (i+1)%spins == 0 {
			runtime.Gosched()
		}
	}
	<-j.done
}
