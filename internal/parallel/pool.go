// SPDX-License-Identifier: Apache-2.0

// Package parallel is the engine's worker pool: it runs loops with independent iterations on goroutines.
//
// The number of workers decides which worker does a piece of work, never how work is cut into pieces. Chunks have the
// size that the caller gives, so a body that writes only to its own chunk yields the same bits with 1, 2 or 64 workers.
//
// The calling goroutine always takes part, and workers are only ever asked, never waited for: a call takes the workers
// that are idle at that moment, and once the chunks have run out it withdraws the requests that no worker has accepted.
// A call from inside a body therefore cannot deadlock (with no idle worker it runs serially on its caller), and any
// number of goroutines may share one pool.
//
// It is NOT a scheduler of tasks that depend on each other, block, or do input and output, and it keeps no order
// between chunks: nothing may be reduced across chunks inside a body. Reduce per chunk and combine the partial results
// in index order afterwards.
package parallel

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// Pool is a fixed number of persistent workers, the calling goroutine among them. Its goroutines start with the first
// call that can use them and end with [Pool.Close]. All methods may be called from several goroutines at once, and on a
// nil *Pool, which is a pool of one worker: the caller.
type Pool struct {
	size    int       // workers including the caller
	workers []*worker // the size-1 persistent goroutines
	homes   homes

	labels  atomic.Pointer[context.Context] // of loops that begin; nil: none
	started atomic.Bool
	closed  atomic.Bool
	mu      sync.Mutex // guards free, and starting against closing
	free    []*job
	live    sync.WaitGroup
}

// New returns a pool in which at most workers goroutines, the caller included, run the bodies of one call. workers
// below 1 means runtime.GOMAXPROCS(0). No goroutine is started yet.
func New(workers int) *Pool {
	if workers < 1 {
		workers = runtime.GOMAXPROCS(0)
	}
	p := &Pool{size: workers, workers: make([]*worker, workers-1), homes: make(homes, workers)}
	for i := range p.homes {
		p.homes[i].Store(nowhere)
	}
	for i := range p.workers {
		p.workers[i] = &worker{number: i + 1, wake: make(chan struct{}, 1)}
	}
	return p
}

// Workers returns the largest number of goroutines that run bodies of one call at once, the caller included; it is at
// least 1.
func (p *Pool) Workers() int {
	if p == nil {
		return 1
	}
	return p.size
}

// For calls body(i) once for each i in [0, n), in no order, and returns when all calls have returned. Each iteration is
// handed out on its own (tens of nanoseconds), so a body should be worth microseconds; use [Pool.ForChunks] for finer
// loops. A panic in a body stops the loop early and is raised again, with its own value, on the caller. Nothing is
// allocated.
func (p *Pool) For(n int, body func(i int)) {
	if p.serial(n, 1) {
		for i := range n {
			body(i)
		}
		return
	}
	j := p.job()
	j.each = body
	p.run(j, n, 1)
}

// ForChunks calls body(lo, hi) once for each chunk [lo, hi) of [0, n): [0, chunk), [chunk, 2·chunk) and so on, the last
// one cut at n. The chunks depend only on n and chunk, never on the number of workers. Order, panics and allocation are
// as for [Pool.For]. It panics if chunk is below 1.
func (p *Pool) ForChunks(n, chunk int, body func(lo, hi int)) {
	if p.serial(n, chunk) {
		for lo := 0; lo < n; lo += chunk {
			body(lo, min(lo+chunk, n))
		}
		return
	}
	j := p.job()
	j.span = body
	p.run(j, n, chunk)
}

// ForWorkers is [Pool.ForChunks] for bodies that need scratch memory: worker is in [0, Workers()), and no two bodies of
// this call that run at the same time are given the same one. The index says nothing beyond this call: scratch indexed
// by it must belong to the call, and what a body computes must not depend on it.
func (p *Pool) ForWorkers(n, chunk int, body func(worker, lo, hi int)) {
	if p.serial(n, chunk) {
		for lo := 0; lo < n; lo += chunk {
			body(0, lo, min(lo+chunk, n))
		}
		return
	}
	j := p.job()
	j.indexed = body
	p.run(j, n, chunk)
}

// SetLabels gives workers the pprof labels of ctx while they work on loops that begin from now on. The caller of a loop
// keeps its own.
func (p *Pool) SetLabels(ctx context.Context) {
	if p != nil {
		p.labels.Store(&ctx)
	}
}

// ClearLabels ends SetLabels.
func (p *Pool) ClearLabels() {
	if p != nil {
		p.labels.Store(nil)
	}
}

// Close ends the pool's goroutines and returns when they have ended; bodies that are running finish first. Later calls
// run serially on their caller. Close may be called twice, but not from inside a body.
func (p *Pool) Close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.closed.Store(true)
	p.mu.Unlock()
	for _, w := range p.workers {
		w.rouse()
	}
	p.live.Wait()
}

// serial reports whether the caller shall run the loop alone, and checks chunk.
func (p *Pool) serial(n, chunk int) bool {
	if chunk < 1 {
		panic(fmt.Sprintf("parallel: chunk is %d: want at least 1", chunk))
	}
	return p == nil || p.size == 1 || n <= chunk || p.closed.Load()
}

// start launches the workers once, unless the pool has been closed.
func (p *Pool) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.started.Load() || p.closed.Load() {
		return
	}
	p.live.Add(len(p.workers))
	for _, w := range p.workers {
		go w.loop(p)
	}
	p.started.Store(true)
}

// job takes a job from the free list.
func (p *Pool) job() *job {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := len(p.free) - 1; last >= 0 {
		j := p.free[last]
		p.free = p.free[:last]
		return j
	}
	return &job{done: make(chan struct{}, 1), asked: make([]*worker, 0, len(p.workers)), parts: make([]part, p.size),
		homes: p.homes}
}

// recycle puts a job back that no worker can reach any more.
func (p *Pool) recycle(j *job) {
	j.each, j.span, j.indexed, j.failure, j.labels = nil, nil, nil, nil, nil
	j.asked = j.asked[:0]
	p.mu.Lock()
	p.free = append(p.free, j)
	p.mu.Unlock()
}

// run carries the loop of j through: it asks idle workers to join, works itself, and waits for those that joined.
func (p *Pool) run(j *job, n, chunk int) {
	if !p.started.Load() {
		p.start()
	}
	j.n, j.chunk, j.labels = int64(n), int64(chunk), p.labels.Load()
	j.stopped.Store(false)
	j.divide()
	j.pending.Store(1)
	p.ask(j, (n-1)/chunk)

	completed := false
	defer func() { p.finish(j, completed) }()
	j.work(0)
	completed = true
}

// ask offers j to at most helpers idle workers.
func (p *Pool) ask(j *job, helpers int) {
	for _, w := range p.workers {
		if len(j.asked) == helpers {
			return
		}
		if w.mail.Load() != nil {
			continue
		}
		j.pending.Add(1)
		if !w.mail.CompareAndSwap(nil, j) {
			j.pending.Add(-1)
			continue
		}
		j.asked = append(j.asked, w)
		if w.parked.Load() {
			w.rouse()
		}
	}
}

// finish withdraws the offers that nobody took up, waits for the workers that joined, and raises the panic of one of
// them. completed is false when the caller's own body panicked or ended its goroutine; that continues unwinding by
// itself.
func (p *Pool) finish(j *job, completed bool) {
	if !completed {
		j.stop()
	}
	for _, w := range j.asked {
		if w.mail.CompareAndSwap(j, nil) {
			j.pending.Add(-1)
		}
	}
	if j.pending.Add(-1) != 0 {
		j.wait()
	}
	failure := j.failure
	p.recycle(j)
	if completed && failure != nil {
		panic(failure.value)
	}
}
