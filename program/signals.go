// SPDX-License-Identifier: Apache-2.0

package program

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"time"
)

// repeat is how long after the first signal another one is taken for the same: terminals and wrappers deliver one
// twice.
const repeat = 300 * time.Millisecond

// signals are those that the process has got.
type signals struct {
	stderr io.Writer
	cancel context.CancelCauseFunc
	in     chan os.Signal
	out    chan os.Signal // of failed writes; nobody reads it
	done   chan struct{}

	mu    sync.Mutex
	got   os.Signal // the first
	since time.Time
	takes func() bool // of OnInterrupt; nil: nobody
}

// OnInterrupt calls f upon each SIGINT, as Ctrl-C sends, until release is called. If f returns true, the signal ends
// nothing: a program that talks to a person may stop its answer alone.
func (p *Process) OnInterrupt(f func() bool) (release func()) {
	set := func(f func() bool) {
		if p.signals != nil {
			p.signals.mu.Lock()
			defer p.signals.mu.Unlock()
			p.signals.takes = f
		}
	}
	set(f)
	return func() { set(nil) }
}

// listen makes the signals of interrupts() end a context.
func listen(stderr io.Writer) (context.Context, *signals) {
	ctx, cancel := context.WithCancelCause(context.Background())
	s := &signals{stderr: stderr, cancel: cancel, in: make(chan os.Signal, 4), out: make(chan os.Signal, 1),
		done: make(chan struct{})}
	// Notify and not Ignore: what this process starts would inherit that they are ignored.
	if failed := failedWrites(); len(failed) > 0 {
		signal.Notify(s.out, failed...)
	}
	signal.Notify(s.in, interrupts()...)
	go func() {
		for {
			select {
			case sig := <-s.in:
				s.take(sig)
			case <-s.done:
				return
			}
		}
	}()
	return ctx, s
}

func (s *signals) stop() {
	signal.Stop(s.in)
	close(s.done)
	s.cancel(nil)
}

// first is the first signal, nil if none came.
func (s *signals) first() os.Signal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got
}

// take handles a signal.
func (s *signals) take(sig os.Signal) {
	s.mu.Lock()
	takes := s.takes
	s.mu.Unlock()
	if sig == os.Interrupt && takes != nil && takes() {
		return
	}
	s.mu.Lock()
	first := s.got == nil
	if first {
		s.got, s.since = sig, time.Now()
	}
	late := time.Since(s.since) >= repeat
	s.mu.Unlock()
	switch {
	case first:
		if dumps(sig) {
			_, _ = s.stderr.Write(stacks(sig))
		}
		fmt.Fprintf(s.stderr, "%s: stopping after what is under way; interrupt again to stop at once\n",
			signalName(sig))
		s.cancel(&SignalError{sig})
	case late && !hangup(sig):
		die(sig)
	}
}

// stacks are the stacks of all goroutines, behind the line with which Go begins its own dump: launchers and people
// find it by that.
func stacks(sig os.Signal) []byte {
	const most = 64 << 20
	text := make([]byte, 1<<20)
	for {
		n := runtime.Stack(text, true)
		if n < len(text) || len(text) >= most {
			return fmt.Appendf(nil, "%s: %v\n\n%s\n", signalName(sig), sig, text[:n])
		}
		text = make([]byte, 2*len(text))
	}
}
