// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"
)

// nowhere is the number of a processor that is not known.
const nowhere = -1

// A goroutine looks for news spins times in a row, some twenty microseconds, and then lets others that wait for its
// thread go first. After so many rounds of that it sleeps. Waking a thread up takes longer than most operations of a
// training step, and its work is then done by another, which has not got the data; consecutive loops come closer
// together than this, except for the longest stretches of a step that are not divided.
const rounds = 4

// busy and gone are what a worker's mailbox holds while it works and after it has ended; nobody can be asked then.
var busy, gone = new(job), new(job)

// worker is a goroutine with a mailbox for one job. nil in the mailbox means idle. A caller moves it from nil to its
// job, and back to nil if the worker has not reacted by the time it is no longer needed; the worker moves it from the
// job to busy, and to nil when done.
type worker struct {
	number int // from 1; the caller of a loop is 0
	mail   atomic.Pointer[job]
	parked atomic.Bool
	wake   chan struct{}
	_      [64]byte
}

// rouse wakes the worker up; on a worker that is awake it costs one superfluous look into the mailbox.
func (w *worker) rouse() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// loop serves jobs until the pool closes.
func (w *worker) loop(p *Pool) {
	ended := false
	defer func() {
		if !ended { // a body ended this goroutine by runtime.Goexit: another one takes its place
			go w.loop(p)
			return
		}
		p.live.Done()
	}()
	debug.SetPanicOnFault(true) // for the caller to judge, see package mapped
	for {
		j := w.receive(p)
		if j == nil {
			ended = true
			return
		}
		w.serve(j)
	}
}

// serve runs one job and becomes idle again, also when the goroutine is being ended by a body.
func (w *worker) serve(j *job) {
	defer func() {
		w.mail.Store(nil)
		j.release()
	}()
	j.assist(w.number)
}

// receive takes the next offer up: it returns a job that the worker has joined, or nil when the pool has closed.
func (w *worker) receive(p *Pool) *job {
	for {
		for i := range rounds * spins {
			if j := w.mail.Load(); j != nil && w.mail.CompareAndSwap(j, busy) {
				return j
			}
			if p.closed.Load() && w.mail.CompareAndSwap(nil, gone) {
				return nil
			}
			if (i+1)%spins == 0 {
				runtime.Gosched()
			}
		}
		w.parked.Store(true)
		if w.mail.Load() == nil && !p.closed.Load() {
			<-w.wake
		}
		w.parked.Store(false)
	}
}
