// SPDX-License-Identifier: Apache-2.0

// Package sink writes reports outside the training goroutine: jobs are queued without waiting, and one goroutine runs
// them in order. Failures are counted and logged, never returned to the run. It is not a general worker pool.
package sink

import (
	"log/slog"
	"time"
)

// Options are the parts of a Sink.
type Options struct {
	Name     string        // of the reporter, for log messages
	Capacity int           // jobs that may wait; 0 means 4096. More are dropped
	Flush    func() error  // called every Every, and before Close; may be nil
	Every    time.Duration // 0 means 10 s
	Close    func() error  // called once, last; may be nil
	Patience time.Duration // how long Close waits for the jobs that wait; 0 means 10 s
	Abandon  func()        // called when Close waits no longer, to end what the goroutine waits for; may be nil
}

// Sink does jobs on its own goroutine. Put and Close are for one goroutine.
type Sink struct {
	options Options
	jobs    chan func() error
	done    chan struct{}
	closed  bool
	dropped int
	failed  int // of the goroutine until done is closed
	err     error
}

// New starts the goroutine. Close ends it.
func New(o Options) *Sink {
	if o.Capacity == 0 {
		o.Capacity = 4096
	}
	if o.Every == 0 {
		o.Every = 10 * time.Second
	}
	if o.Patience == 0 {
		o.Patience = 10 * time.Second
	}
	s := &Sink{options: o, jobs: make(chan func() error, o.Capacity), done: make(chan struct{})}
	go s.work()
	return s
}

// Put queues a job and returns at once. If too many wait, the job is dropped and counted.
func (s *Sink) Put(job func() error) {
	if s.closed {
		return
	}
	select {
	case s.jobs <- job:
	default:
		if s.dropped++; s.dropped == 1 {
			slog.Warn("a reporter is too slow; records are dropped", "reporter", s.options.Name)
		}
	}
}

// Close does what still waits, flushes and closes, and says in the log how many records failed or were dropped. It
// waits no longer than Patience. Later calls do nothing.
func (s *Sink) Close() {
	if s.closed {
		return
	}
	s.closed = true
	close(s.jobs)
	select {
	case <-s.done:
	case <-time.After(s.options.Patience):
		if s.options.Abandon != nil {
			s.options.Abandon()
		}
		slog.Warn("a reporter does not finish; its last records may be lost", "reporter", s.options.Name, "waiting",
			len(s.jobs))
		return
	}
	if s.failed > 0 || s.dropped > 0 {
		slog.Warn("a reporter lost records", "reporter", s.options.Name, "failed", s.failed, "dropped", s.dropped,
			"first_error", s.err)
	}
}

func (s *Sink) work() {
	defer close(s.done)
	tick := time.NewTicker(s.options.Every)
	defer tick.Stop()
	for {
		select {
		case job, ok := <-s.jobs:
			if !ok {
				s.do(s.options.Flush)
				s.do(s.options.Close)
				return
			}
			s.do(job)
		case <-tick.C:
			s.do(s.options.Flush)
		}
	}
}

func (s *Sink) do(job func() error) {
	if job == nil {
		return
	}
	if err := job(); err != nil {
		if s.failed++; s.failed == 1 {
			s.err = err
			slog.Warn("a reporter cannot write; the run continues", "reporter", s.options.Name, "error", err)
		}
	}
}
