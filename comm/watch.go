// SPDX-License-Identifier: Apache-2.0

package comm

import (
	"context"
	"log/slog"
	"slices"
	"time"
)

// Prober is an [Engine] that can ask the other ranks for signs of life during calls. Without it, a process that hangs
// is noticed only at a call's deadline.
type Prober interface {
	// Probe asks the other ranks how far they are and returns, for those that answer before ctx ends, the number of the
	// last collective call that they have begun. A process answers while it computes, unless it is stopped or has no
	// processor time.
	Probe(ctx context.Context) (answers map[int]uint64)

	// Process says where a rank runs. Number 0 says that the ranks are goroutines of one process: there is nobody to
	// ask.
	Process(rank int) (host string, pid int)
}

// patience is when a rank that waits in a collective call asks for the others, and what it says of them. The first
// question comes early: a connection on which something was sent is lost to a cut link only its time for silence after
// that.
var patience = struct {
	tick   time.Duration // between looks at the call
	late   time.Duration // of waiting, after which the others are asked
	answer time.Duration // in which a living process answers
	busy   time.Duration // of waiting for ranks that do answer, after which the log says so; then after twice the time
}{tick: 250 * time.Millisecond, late: 500 * time.Millisecond, answer: 5 * time.Second, busy: time.Minute}

// watch names, in this rank's log, the ranks that keep its collective calls waiting, long before the calls' deadline:
// who does not answer stands still, who does computes. It ends with the group.
func (g *Group) watch(ctx context.Context, p Prober) {
	w := watchdog{group: g, log: g.opts.Log.With("group", g.opts.Name), prober: p, silent: map[int]time.Time{}}
	ticker := time.NewTicker(patience.tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		w.look(ctx)
	}
}

// watchdog is what one rank has said of the others.
type watchdog struct {
	group  *Group
	log    *slog.Logger
	prober Prober
	silent map[int]time.Time // ranks that did not answer, and when that was said
	call   uint64            // that busy ranks are told of
	next   time.Duration     // when they are told of again
}

// look asks the other ranks if a call waits.
func (w *watchdog) look(ctx context.Context) {
	h := w.group.running.Load()
	if w.group.Err() != nil {
		return
	}
	if h == nil || h.waited() < patience.late {
		w.answered(nil)
		return
	}
	patient, cancel := context.WithTimeout(ctx, patience.answer)
	defer cancel()
	answers := w.prober.Probe(patient)
	if w.group.Err() != nil {
		return
	}
	if w.group.running.Load() != h { // whoever was late has come
		w.answered(nil)
		return
	}
	var busy []int
	for r := range w.group.Size() {
		at, ok := answers[r]
		switch {
		case r == w.group.Rank():
		case !ok && w.silent[r].IsZero():
			w.silent[r] = time.Now()
			host, pid := w.prober.Process(r)
			w.log.Warn("a rank does not answer: its process is stopped, or its host cannot be reached", "rank",
				w.group.JobRank(r), "process", pid, "host", host, "waiting_in", h.call.Signature.String(),
				"since", h.waited().Round(time.Second), "timeout", h.call.Timeout)
		case ok && at < h.call.Seq:
			busy = append(busy, r)
		}
	}
	w.answered(answers)
	w.sayBusy(h, busy)
}

// answered says which of the silent ranks have answered; nil means all, since a call in which all take part has ended.
func (w *watchdog) answered(answers map[int]uint64) {
	for r, since := range w.silent {
		if _, ok := answers[r]; ok || answers == nil {
			delete(w.silent, r)
			w.log.Warn("the rank answers again", "rank", w.group.JobRank(r), "after",
				time.Since(since).Round(time.Second))
		}
	}
}

// sayBusy says now and then for which living ranks a call waits.
func (w *watchdog) sayBusy(h *Handle, ranks []int) {
	if h.call.Seq != w.call {
		w.call, w.next = h.call.Seq, patience.busy
	}
	if len(ranks) == 0 || len(w.silent) > 0 || h.waited() < w.next {
		return
	}
	w.next *= 2
	ranks = JobRanks(w.group.members, ranks)
	slices.Sort(ranks)
	w.log.Info("waiting for ranks that are alive but have not reached the call", "ranks", ranks, "call",
		h.call.Signature.String(), "since", h.waited().Round(time.Second), "timeout", h.call.Timeout)
}

// waited is how long the engine has had a collective call.
func (h *Handle) waited() time.Duration { return h.call.Timeout - time.Until(h.call.Deadline) }
