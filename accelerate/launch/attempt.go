// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/internal/loopback"
)

// secondSignal is when another signal counts as a second one: wrappers that forward Ctrl-C
// to a child that the terminal has already told must not count twice.
const secondSignal = 300 * time.Millisecond

// attempt is one start of the whole group.
type attempt struct {
	run    *run
	number int
	began  time.Time
	oom    oomKills

	workers []*worker
	ended   chan *worker
	alive   int

	settle, grace stopwatch
	failed        bool
	leaving       bool // a job whose hosts come and go
	interrupted   *InterruptedError
	told          time.Time // when the first signal was forwarded
}

// attempt starts the group once and waits for its end.
func (r *run) attempt(number int) error {
	a := &attempt{run: r, number: number, began: time.Now(), ended: make(chan *worker, r.config.ProcsPerNode),
		oom: readOOMKills(os.DirFS("/"))}
	defer a.settle.stop()
	defer a.grace.stop()
	if err := a.start(); err != nil {
		a.signal(syscall.SIGKILL)
		a.drain()
		return err
	}
	a.watch()
	if n := sweep(r.id); n > 0 {
		r.config.Logger.Warn("killed processes that ranks had started in other sessions", "count", n)
	}
	switch {
	case a.interrupted == nil && a.heeded() != 0:
		return &InterruptedError{Signal: a.heeded(), Elsewhere: true}
	case a.interrupted == nil:
		return a.verdict()
	case a.failed && !a.onlyInterrupted():
		return errors.Join(a.verdict(), a.interruption())
	}
	return a.interruption()
}

// onlyInterrupted reports whether what failed was ended by the interrupting signal itself: a terminal sends it to
// ranks, too, that are not in their own process groups yet.
func (a *attempt) onlyInterrupted() bool {
	return !slices.ContainsFunc(a.workers, func(w *worker) bool {
		return w.failed() && w.unprompted && (!w.status.Signaled() || w.status.Signal() != a.interrupted.Signal)
	})
}

// heeded is the signal that the ranks were told of by others than this launcher, one on
// another host say, and ended upon together; 0 if they ended otherwise.
func (a *attempt) heeded() syscall.Signal {
	var heeded syscall.Signal
	for _, w := range a.workers {
		sig := interruptOf(w.status.ExitStatus()) // 0 of a process that a signal ended
		if !w.unprompted || sig == 0 {
			return 0
		}
		if heeded == 0 || heeded == syscall.SIGINT { // with its code end those, too, that heard of it from others
			heeded = sig
		}
	}
	return heeded
}

// interruptOf is the signal that an exit code stands for by which a rank says, as shells do, that it was interrupted;
// 0 for other codes.
func interruptOf(code int) syscall.Signal {
	for _, sig := range interrupts {
		if code == 128+int(sig) {
			return sig
		}
	}
	return 0
}

// interruption is the interrupt, with who had to be killed.
func (a *attempt) interruption() error {
	for _, w := range a.workers {
		if w.killed {
			a.interrupted.Killed = append(a.interrupted.Killed, w.rank)
		}
	}
	return a.interrupted
}

// start starts all ranks of this host.
func (a *attempt) start() error {
	port, listener, err := a.port()
	if err != nil {
		return err
	}
	if listener != nil {
		defer listener.Close() // rank 0 has its own descriptor
	}
	for local := range a.run.config.ProcsPerNode {
		w, err := a.run.newWorker(a.number, local, port)
		if err != nil {
			return err
		}
		inherit := []*os.File{a.run.token}
		if local == 0 && listener != nil {
			inherit = append(inherit, listener)
		}
		if err := w.start(inherit, a.ended); err != nil {
			return err
		}
		a.workers = append(a.workers, w)
		a.alive++
	}
	return nil
}

// port is where rank 0 is met. With port 0 the socket that listens there is opened here, so
// that it is nobody else's when rank 0 gets to use it.
func (a *attempt) port() (int, *os.File, error) {
	c := &a.run.config
	if c.MasterPort != 0 || c.NodeRank != 0 {
		return c.MasterPort, nil, nil
	}
	l, err := a.run.listen()
	if err != nil {
		return 0, nil, fmt.Errorf("launch: master_addr %s: %w", c.MasterAddr, err)
	}
	tcp := l.(*net.TCPListener) // net.Listen("tcp") gives no other
	f, err := tcp.File()
	if err = errors.Join(err, tcp.Close()); err != nil {
		return 0, nil, fmt.Errorf("launch: master port: %w", err)
	}
	return tcp.Addr().(*net.TCPAddr).Port, f, nil
}

// listen opens the port where rank 0 is met. Hosts that come and go have told it to the others before.
func (r *run) listen() (l net.Listener, err error) {
	if e := r.elastic; e != nil {
		l, e.listener = e.listener, nil
		return l, nil
	}
	return listen(net.JoinHostPort(r.config.MasterAddr, "0"))
}

// listen is net.Listen, unless the loopback interface is down: then listening works, and connecting does not.
func listen(address string) (net.Listener, error) {
	if err := loopback.Down(address); err != nil {
		return nil, err
	}
	return net.Listen("tcp", address)
}

// watch waits until every rank has ended, and sees to it that they do once one has failed
// or a signal has come.
func (a *attempt) watch() {
	in := &a.run.signals
	var events <-chan rendezvous.HostEvent
	if e := a.run.elastic; e != nil {
		events = e.member.Events()
	}
	for a.alive > 0 {
		select {
		case event, ok := <-events:
			if !ok {
				events = nil
			}
			if a.run.elastic.hear(event, ok) && a.interrupted == nil {
				a.interrupt(syscall.SIGTERM, errRegroup)
			}
		case w := <-a.ended:
			a.note(w)
		case <-a.settle.c:
			a.settle.c = nil
			a.signal(syscall.SIGTERM)
			a.grace.start(a.run.config.Grace)
		case <-a.grace.c:
			a.grace.c = nil
			a.kill()
		case s := <-in.in:
			a.interrupt(s, nil)
		case <-in.done:
			in.done = nil
			a.interrupt(syscall.SIGTERM, context.Cause(in.ctx))
		}
	}
}

// note takes down a rank's end.
func (a *attempt) note(w *worker) {
	a.alive--
	if w.failed() && !a.failed && a.interrupted == nil {
		a.failed = true
		a.settle.start(a.run.config.Settle)
	}
}

// interrupt forwards a signal; a second one ends the patience.
func (a *attempt) interrupt(s os.Signal, cause error) {
	sig, ok := s.(syscall.Signal)
	if !ok {
		return
	}
	if e := a.run.elastic; e != nil && cause != errRegroup && !a.leaving {
		a.leaving = true
		_ = e.leave(nil)
		if a.interrupted != nil { // the ranks save already
			a.interrupted, a.told = &InterruptedError{Signal: sig, Cause: cause}, time.Now()
			return
		}
	}
	if a.interrupted != nil {
		if time.Since(a.told) >= secondSignal && sig != syscall.SIGHUP { // the terminal is gone: nobody is impatient
			a.kill()
		}
		return
	}
	a.interrupted, a.told = &InterruptedError{Signal: sig, Cause: cause}, time.Now()
	a.settle.c = nil
	a.signal(sig)
	a.grace.start(a.run.config.Grace)
}

// signal sends to the group of every rank that lives.
func (a *attempt) signal(sig syscall.Signal) {
	for _, w := range a.workers {
		w.signal(sig)
	}
}

// kill ends every rank that lives.
func (a *attempt) kill() {
	for _, w := range a.workers {
		if w.signal(syscall.SIGKILL) {
			w.killed = true
			a.run.config.Logger.Warn("a rank did not end in time and was killed", "rank", w.rank, "pid", w.pid())
		}
	}
}

// drain waits for ranks that have been killed.
func (a *attempt) drain() {
	for ; a.alive > 0; a.alive-- {
		<-a.ended
	}
}
