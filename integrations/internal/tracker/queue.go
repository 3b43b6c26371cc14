// SPDX-License-Identifier: Apache-2.0

package tracker

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/lockstep-ml/lockstep/integrations/internal/sink"
)

const (
	every       = 5 * time.Second  // rows are sent
	alive       = 30 * time.Second // without rows the tracker is told that the run is alive
	exchange    = 10 * time.Second // that an exchange may take
	farewell    = 2 * time.Second  // that the last exchange may take if the one before failed
	longest     = time.Minute      // between two tries
	batch       = 100              // rows that do not wait for the next time
	mostWaiting = 10_000           // rows that wait for a tracker that does not answer; of more the oldest are dropped
)

// queue holds the rows of one run that a destination has not taken yet. Its methods run on the goroutine of its sink.
type queue struct {
	name   string
	to     Destination
	run    Run
	status Status // at the end
	sink   *sink.Sink
	ctx    context.Context

	began   bool
	refused bool // the run, so that nothing is sent any more
	rows    []Row
	lost    int
	warned  bool      // that records were refused
	last    time.Time // of the last exchange that succeeded
	err     error     // of the last exchange
	pause   time.Duration
	again   time.Time // when a failed exchange is repeated
}

// newQueue starts the goroutine, which begins the run.
func newQueue(name string, to Destination, run Run) *queue {
	ctx, cancel := context.WithCancel(context.Background())
	q := &queue{name: name, to: to, run: run, ctx: ctx, status: Failed}
	q.sink = sink.New(sink.Options{Name: name, Every: every, Flush: q.flush, Abandon: cancel, Close: func() error {
		defer cancel()
		q.end()
		return nil
	}})
	q.sink.Put(q.flush)
	return q
}

// put takes a row.
func (q *queue) put(r Row) error {
	if q.refused {
		q.lost++
		return nil
	}
	if len(q.rows) == mostWaiting {
		q.rows, q.lost = q.rows[1:], q.lost+1
	}
	if q.rows = append(q.rows, r); len(q.rows)%batch == 0 {
		return q.flush()
	}
	return nil
}

// flush sends what waits, unless an exchange has failed a moment ago.
func (q *queue) flush() error {
	if time.Now().After(q.again) {
		q.send(exchange)
	}
	return nil
}

// send begins the run if it has not begun, and sends the rows that wait.
func (q *queue) send(limit time.Duration) {
	ctx, cancel := context.WithTimeout(q.ctx, limit)
	defer cancel()
	if q.refused {
		return
	}
	if !q.began {
		if err := q.to.Begin(ctx, q.run); err != nil {
			q.refused = q.failed(err)
			return
		}
		q.began, q.last = true, time.Now()
	}
	if len(q.rows) == 0 && time.Since(q.last) < alive {
		return
	}
	for more := true; more; more = len(q.rows) > 0 {
		n := min(len(q.rows), batch)
		if err := q.to.Log(ctx, q.rows[:n]); err != nil {
			q.failed(err)
			return
		}
		if q.err != nil {
			slog.Info("a reporter can send again", "reporter", q.name, "records", len(q.rows))
		}
		q.rows, q.err, q.pause, q.last = q.rows[n:], nil, 0, time.Now()
	}
	q.rows = nil
}

// failed notes that an exchange failed, and reports whether it was refused: then the rows that wait are lost.
func (q *queue) failed(err error) (refused bool) {
	var r Refused
	if errors.As(err, &r) && r.Refused() {
		if !q.warned {
			slog.Warn("a reporter's records are refused; the run continues", "reporter", q.name, "error", err)
		}
		q.rows, q.lost, q.warned = nil, q.lost+len(q.rows), true
		return true
	}
	if q.err == nil {
		slog.Warn("a reporter cannot send; the run continues, and its records wait", "reporter", q.name, "error", err)
	}
	q.err, q.pause = err, min(max(2*q.pause, time.Second), longest)
	q.again = time.Now().Add(q.pause)
	return false
}

// end sends what waits, ends the run, and says in the log how many rows are lost.
func (q *queue) end() {
	limit := exchange
	if q.err != nil {
		limit = farewell
	}
	if len(q.rows) > 0 || !q.began {
		q.send(limit)
	}
	if q.began && len(q.rows) == 0 {
		ctx, cancel := context.WithTimeout(q.ctx, limit)
		defer cancel()
		if err := q.to.End(ctx, time.Now(), q.status); err != nil {
			slog.Warn("a reporter cannot end its run", "reporter", q.name, "error", err)
		}
	}
	if lost := q.lost + len(q.rows); lost > 0 {
		slog.Warn("a reporter lost records", "reporter", q.name, "records", lost)
	}
	if err := q.to.Close(); err != nil {
		slog.Warn("a reporter cannot close", "reporter", q.name, "error", err)
	}
}
