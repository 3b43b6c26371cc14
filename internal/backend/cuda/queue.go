// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
)

const (
	firstTasks = 8  // of the sequence after a host wait, so that the device has work soon
	mostTasks  = 64 // of others: each may have twice the tasks of the one before
)

// queue is a stream of the driver that keeps the calls it is asked for until there is a sequence of them, and then
// makes all: by one graph if it has made the same before (graphs.go), else one by one. A sequence ends when it is long
// enough, when something must be in order with the host or with other streams, or when nothing has been added for a
// while. Any goroutine may call a queue.
type queue struct {
	d  *Device
	q  cuda.Stream
	op backend.Op // that is being launched, for messages; it belongs to the stream's goroutine

	mu       sync.Mutex
	direct   bool // calls are made at once, for good
	now      sequence
	limit    int // of tasks of the present sequence
	ended    int // sequences so far
	graphs   graphs
	patience time.Duration
	timer    *time.Timer
	armed    bool
	since    int   // ended, when the timer was armed
	failed   error // of a sequence that nobody waited for
}

// opError is an error of a call that was made for an op.
type opError struct {
	op  backend.Op
	err error
}

func (e *opError) Error() string { return e.err.Error() }
func (e *opError) Unwrap() error { return e.err }

func newQueue(d *Device, q cuda.Stream, g Graphs) *queue {
	w := &queue{d: d, q: q, limit: firstTasks, direct: g.Off, patience: g.patience()}
	w.graphs.limit = g.limit()
	return w
}

// launch queues a kernel.
func (q *queue) launch(f cuda.Function, grid, block [3]uint32, shared int, a *args) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := &q.now
	t := task{kind: launches, f: f, grid: grid, block: block, shared: shared, from: len(s.params), kernel: s.kernels}
	s.kernels++
	s.params = append(s.params, a.b[:a.n]...)
	t.to = len(s.params)
	for _, at := range a.numbers[:a.count] {
		s.hide(len(s.tasks), t.from+int(at))
	}
	return q.add(t, nil)
}

// library queues a call of a library. What has an equal key is the same call; run makes it.
func (q *queue) library(key any, run func(cuda.Stream) error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.add(task{kind: calls, key: key}, run)
}

// Fill queues setting bytes.
func (q *queue) Fill(dst cuda.Ptr, value byte, n int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.add(task{kind: fills, dst: dst, value: value, n: n}, nil)
}

// CopyOnDevice queues a copy.
func (q *queue) CopyOnDevice(dst, src cuda.Ptr, n int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.add(task{kind: copies, dst: dst, src: src, n: n}, nil)
}

// forgetter is a stream of a driver that finds uses of undefined memory.
type forgetter interface {
	// Forget makes the contents of memory undefined, in the order of the stream.
	Forget(p cuda.Ptr, n int) error
}

// Forget makes the contents of memory undefined, where the driver can.
func (q *queue) Forget(p cuda.Ptr, n int) error {
	if _, ok := q.q.(forgetter); !ok {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.add(task{kind: forgets, dst: p, n: n}, nil)
}

// add makes a task part of the sequence. q.mu is held.
func (q *queue) add(t task, run func(cuda.Stream) error) error {
	s := &q.now
	s.tasks, s.ops, s.runs = append(s.tasks, t), append(s.ops, q.op), append(s.runs, run)
	if t.kind != forgets {
		s.calls++
	}
	switch {
	case q.direct || q.graphs.pause > 0:
		return q.end()
	case s.calls >= q.limit:
		q.limit = min(2*q.limit, mostTasks)
		return q.end()
	case !q.armed && q.patience > 0:
		q.arm()
	}
	err := q.failed
	q.failed = nil
	return err
}

// end makes the calls of the sequence. q.mu is held.
func (q *queue) end() error {
	err := q.failed
	q.failed = nil
	if err == nil && len(q.now.tasks) > 0 {
		err = q.graphs.perform(q, &q.now)
	}
	q.now.reset()
	q.ended++
	return err
}

// arm has the sequence ended if it stands still: the host may be busy with something else while the device has nothing
// to do.
func (q *queue) arm() {
	q.armed, q.since = true, q.ended
	if q.timer == nil {
		q.timer = time.AfterFunc(q.patience, q.late)
		return
	}
	q.timer.Reset(q.patience)
}

func (q *queue) late() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.armed = false
	switch {
	case len(q.now.tasks) == 0:
	case q.since == q.ended:
		q.failed = q.end()
		q.limit = firstTasks
	default:
		q.arm()
	}
}

// flush makes what calls are left, and begins with short sequences again.
func (q *queue) flush() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.limit = firstTasks
	return q.end()
}

// then makes a call that no sequence can have, behind the others.
func (q *queue) then(call func() error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.end(); err != nil {
		return err
	}
	return call()
}

// CopyToDevice copies from pinned memory.
func (q *queue) CopyToDevice(dst cuda.Ptr, src []byte) error {
	return q.then(func() error { return q.q.CopyToDevice(dst, src) })
}

// CopyToHost copies to pinned memory.
func (q *queue) CopyToHost(dst []byte, src cuda.Ptr) error {
	return q.then(func() error { return q.q.CopyToHost(dst, src) })
}

// Record marks the point that the stream has reached.
func (q *queue) Record(e cuda.Event) error {
	return q.then(func() error { return q.q.Record(e) })
}

// Wait holds later work back until the event.
func (q *queue) Wait(e cuda.Event) error {
	return q.then(func() error { return q.q.Wait(e) })
}

// Sync waits for the work so far.
func (q *queue) Sync() error {
	if err := q.flush(); err != nil {
		return err
	}
	q.mu.Lock()
	done := q.graphs.takeOld()
	q.mu.Unlock()
	err := q.q.Sync()
	for _, g := range done {
		if e := g.Close(); err == nil {
			err = e
		}
	}
	return err
}

// native gives the driver's stream to others, who make calls at once. So does the queue from then on.
func (q *queue) native() (cuda.Stream, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.direct = true
	return q.q, q.end()
}

// drop forgets all graphs.
func (q *queue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.graphs.drop()
}

// close waits for all work and ends the stream.
func (q *queue) close() error {
	q.mu.Lock()
	q.direct = true
	if q.timer != nil {
		q.timer.Stop()
	}
	q.graphs.drop()
	q.mu.Unlock()
	err := q.Sync()
	if e := q.q.Close(); err == nil {
		err = e
	}
	return err
}
