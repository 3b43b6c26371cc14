// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

// Elastic says that hosts may join and leave the job while it runs. Each runs a launcher; the one at Endpoint serves
// the list of hosts and must stay until the end. When a host joins or leaves, the ranks are told to save and end, and
// are started again on the hosts that are there; when one is lost, they continue from the last checkpoint.
type Elastic struct {
	// MinNodes and MaxNodes are how few and how many hosts may train together. Of those that are there, as many do as
	// divide MaxNodes: a step that MaxNodes hosts share evenly can be shared by them, too. The others wait.
	MinNodes, MaxNodes int
	// Endpoint is HOST:PORT, an address of the host that serves.
	Endpoint string
	// LastCall is how long others may come once there are enough; 0 means 3 s.
	LastCall time.Duration
	// Patience is how long a launcher looks for the endpoint, and waits for enough hosts; 0 means 10 minutes.
	Patience time.Duration
	// Rejoin is how long a launcher that has lost the endpoint looks for it again, to take part in the next round; 0
	// means 30 minutes, ddp_timeout's default. An endpoint where nobody listens any more ends the search.
	Rejoin time.Duration
}

// Defaults of Elastic.
const (
	DefaultLastCall = 3 * time.Second
	DefaultPatience = 10 * time.Minute
	DefaultRejoin   = 30 * time.Minute
)

// farewell is how long the host that serves waits for the others to hear how the job ended.
const farewell = 2 * time.Second

// errRegroup is the cause of the interrupt by which a round ends.
var errRegroup = errors.New("hosts join or leave")

// elastic is this host's part in a job of hosts that come and go.
type elastic struct {
	*run
	roster   *rendezvous.Roster // nil on all hosts but one
	door     rendezvous.Door
	member   *rendezvous.Member
	listener net.Listener // where rank 0 is met if it comes to live here; nil once it was used
	round    int          // that runs
	over     *rendezvous.HostEvent
	gone     bool // the roster is
	failure  *FailureError
}

// rounds takes part in the job's rounds until it is over.
func (r *run) rounds() error {
	e := &elastic{run: r, round: -1}
	r.elastic = e
	if err := e.join(); err != nil {
		return errors.Join(err, e.close(err))
	}
	err := e.follow()
	return errors.Join(err, e.close(err))
}

// join serves the roster, if the endpoint is this host's and nobody does, and joins it.
func (e *elastic) join() error {
	c := &e.config
	token := []byte(c.Token)
	var given rendezvous.Config
	if err := given.ReadEnv(func(name string) (string, bool) { return lookup(c.Env, name), true }); err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	l, err := listen(c.Elastic.Endpoint)
	switch {
	case err == nil:
		e.roster, err = rendezvous.ServeRoster(l, token, given.TLS, rendezvous.RosterOptions{
			Min: c.Elastic.MinNodes, Max: c.Elastic.MaxNodes, LastCall: c.Elastic.LastCall, MaxRestarts: c.MaxRestarts,
			Pause: e.backoff.next, Job: c.RunID, Silence: given.Silence, Logger: c.Logger,
		})
		if err != nil {
			return fmt.Errorf("launch: %w", err)
		}
	case errors.Is(err, syscall.EADDRINUSE), errors.Is(err, syscall.EADDRNOTAVAIL): // it is served by another
	default:
		return fmt.Errorf("launch: rdzv_endpoint: %w", err)
	}
	e.door = rendezvous.Door{Address: c.Elastic.Endpoint, Token: token, TLS: given.TLS, Silence: given.Silence}
	return e.enter(c.Elastic.Patience)
}

// enter joins the roster, unless a signal ends the search.
func (e *elastic) enter(patience time.Duration) error {
	ctx, cancel := context.WithTimeout(e.signals.ctx, patience)
	defer cancel()
	type joined struct {
		member *rendezvous.Member
		err    error
	}
	done := make(chan joined, 1)
	go func() {
		m, err := rendezvous.JoinRoster(ctx, e.door)
		done <- joined{m, err}
	}()
	var interrupted error
	for {
		select {
		case j := <-done:
			if interrupted != nil {
				if j.member != nil {
					_ = j.member.Close() // nothing was said on it
				}
				return interrupted
			}
			if j.err != nil {
				return fmt.Errorf("launch: %w", j.err)
			}
			e.member = j.member
			return nil
		case s := <-e.signals.in:
			if sig, ok := s.(syscall.Signal); ok && interrupted == nil {
				interrupted = &InterruptedError{Signal: sig}
				cancel()
			}
		}
	}
}

// rejoin joins the roster again after the connection to it was lost. What this host did in the round that was lost
// with it counts no more.
func (e *elastic) rejoin() error {
	_ = e.member.Close()   // it is gone
	if e.listener != nil { // the host may have another address afterwards
		_ = e.listener.Close()
		e.listener = nil
	}
	if e.roster != nil { // it is here, and was closed
		return e.verdict()
	}
	e.config.Logger.Warn("the launcher that serves the list of hosts is out of reach; this host joins again when it "+
		"can", "endpoint", e.config.Elastic.Endpoint, "within", e.config.Elastic.Rejoin)
	e.door.Again = true
	if err := e.enter(e.config.Elastic.Rejoin); err != nil {
		return err
	}
	e.gone = false
	return nil
}

// close takes leave. The host that serves stays until the others know how the job ended.
func (e *elastic) close(cause error) error {
	var err error
	if e.listener != nil {
		err = e.listener.Close()
	}
	if e.roster != nil {
		if e.over != nil {
			e.roster.Drain(farewell)
		}
		why := "the launcher that serves the list of hosts has ended"
		if cause != nil {
			why += ": " + cause.Error()
		}
		err = errors.Join(err, e.roster.Close(why))
	}
	if e.member != nil {
		_ = e.member.Close() // the roster may have closed it
	}
	return err
}

// follow runs round after round.
func (e *elastic) follow() error {
	var report rendezvous.Report
	for {
		begin, err := e.await(report)
		if err != nil || begin == nil {
			return err
		}
		e.place(begin)
		err = e.attempt(begin.Round)
		if report, err = e.outcome(err); err != nil {
			return err
		}
	}
}

// await says that this host is ready, and returns the beginning of a round; nil if the job has ended well.
func (e *elastic) await(report rendezvous.Report) (*rendezvous.HostEvent, error) {
	timer := time.NewTimer(e.config.Elastic.Patience)
	defer timer.Stop()
	ready := false
	for e.over == nil {
		if e.gone {
			if err := e.rejoin(); err != nil {
				return nil, err
			}
			timer.Reset(e.config.Elastic.Patience)
			ready, report = false, rendezvous.Report{}
		}
		if !ready {
			if err := e.ready(report); err != nil {
				return nil, err
			}
			ready = true
		}
		select {
		case event, ok := <-e.member.Events():
			if ok && event.Kind == rendezvous.EventBegin {
				return &event, nil
			}
			e.hear(event, ok)
		case s := <-e.signals.in:
			if sig, ok := s.(syscall.Signal); ok {
				return nil, e.leave(&InterruptedError{Signal: sig})
			}
		case <-e.signals.done:
			return nil, e.leave(&InterruptedError{Signal: syscall.SIGTERM, Cause: context.Cause(e.signals.ctx)})
		case <-timer.C:
			return nil, e.leave(e.inVain())
		}
	}
	return nil, e.verdict()
}

// inVain is the error of having waited for other hosts for too long.
func (e *elastic) inVain() error {
	refused := ""
	if e.roster != nil && e.roster.Refusals() != "" {
		refused = " (" + e.roster.Refusals() + ")"
	}
	return fmt.Errorf("launch: no round began within %v: want at least %d hosts%s", e.config.Elastic.Patience,
		e.config.Elastic.MinNodes, refused)
}

// ready opens a port for rank 0 and says that a round can begin.
func (e *elastic) ready(report rendezvous.Report) (err error) {
	if e.listener == nil {
		if e.listener, err = listen(net.JoinHostPort(e.member.Address(), "0")); err != nil {
			return fmt.Errorf("launch: a port for rank 0: %w", err)
		}
	}
	report.Port, report.Ranks = e.listener.Addr().(*net.TCPAddr).Port, e.config.ProcsPerNode
	_ = e.member.Ready(report) // if the roster is gone, its events end
	return nil
}

// verdict is how the job ended for this host.
func (e *elastic) verdict() error {
	switch {
	case e.over == nil:
		return fmt.Errorf("launch: the launcher at %s, which serves the list of hosts, is gone",
			e.config.Elastic.Endpoint)
	case !e.over.Failed:
		return nil
	case e.failure != nil:
		return e.failure
	}
	return fmt.Errorf("launch: the job failed: %s", e.over.Why)
}

// hear takes in what the roster says, and reports whether the ranks have to end.
func (e *elastic) hear(event rendezvous.HostEvent, ok bool) bool {
	switch {
	case !ok:
		e.gone = true
	case event.Kind == rendezvous.EventOver:
		e.over = &event
	case event.Kind == rendezvous.EventStop && event.Round == e.round:
		e.config.Logger.Info("the ranks save and end", "round", event.Round, "why", event.Why)
	default:
		return false // of an earlier round
	}
	return true
}

// leave tells the others that this host goes, and returns why.
func (e *elastic) leave(why error) error {
	_ = e.member.Leave() // who is gone need not know
	return why
}

// place makes the launch that of a round.
func (e *elastic) place(begin *rendezvous.HostEvent) {
	c := &e.config
	e.round = begin.Round
	c.Nodes, c.NodeRank, c.RunID = begin.Nodes, begin.Node, begin.Job
	c.MasterAddr, c.MasterPort = begin.Address, begin.Port
	if begin.Node == 0 {
		c.MasterPort = 0 // rank 0 gets the listener
	}
	c.Logger.Info("a round begins", "round", begin.Round, "nodes", begin.Nodes, "node_rank", begin.Node, "master",
		net.JoinHostPort(begin.Address, fmt.Sprint(begin.Port)))
}

// outcome is what the end of a round means: a report for the next one, or the end of this launch.
func (e *elastic) outcome(err error) (rendezvous.Report, error) {
	failure, _ := errors.AsType[*FailureError](err)
	interrupted, _ := errors.AsType[*InterruptedError](err)
	switch {
	case err == nil:
		return rendezvous.Report{Outcome: rendezvous.OutcomeDone}, nil
	case interrupted != nil && interrupted.Cause != errRegroup && !interrupted.Elsewhere:
		return rendezvous.Report{}, err // this host's own; the roster knows
	case failure == nil && interrupted != nil, failure != nil && failure.heeded():
		return rendezvous.Report{Outcome: rendezvous.OutcomeStopped}, nil
	case failure != nil:
		e.failure = failure
		e.config.Logger.Warn("a rank failed", "round", e.round, "rank", failure.Root.Rank, "cause", failure.Root.how(),
			"message", failure.Root.Message)
		return rendezvous.Report{Outcome: rendezvous.OutcomeFailed, Permanent: failure.Root.Permanent,
			Why: fmt.Sprintf("rank %d: %s: %s", failure.Root.Rank, failure.Root.how(), failure.Root.Message)}, nil
	}
	return rendezvous.Report{}, e.leave(err)
}

// heeded reports whether the ranks ended as an interrupt makes them: one on another host tells those of this one.
func (e *FailureError) heeded() bool {
	return !slices.ContainsFunc(append(slices.Clone(e.Others), e.Root), func(f Failure) bool {
		return interruptOf(f.ExitCode) == 0
	})
}

// validate reports what is wrong with the number of hosts and the endpoint.
func (e *Elastic) validate(c *Config, want func(ok bool, format string, a ...any)) {
	want(e.MinNodes >= 1 && e.MaxNodes >= e.MinNodes, "nnodes is %d:%d: want MIN:MAX with 1 ≤ MIN ≤ MAX", e.MinNodes,
		e.MaxNodes)
	_, _, err := net.SplitHostPort(e.Endpoint)
	want(err == nil, "rdzv_endpoint is %q: want HOST:PORT, the same on all hosts, if they come and go", e.Endpoint)
	want(c.Token != "", "nnodes is %d:%d, and there is no job token: want the same random text on all hosts, in "+
		"LOCKSTEP_JOB_TOKEN or in a file that LOCKSTEP_JOB_TOKEN_FILE names", e.MinNodes, e.MaxNodes)
	want(e.LastCall >= 0 && e.Patience >= 0 && e.Rejoin >= 0, "last call %v, patience %v, rejoin %v: want at least 0",
		e.LastCall, e.Patience, e.Rejoin)
	want(c.RestartDelay < e.Patience, "restart_delay is %v: want less than the %v that hosts wait for a round",
		c.RestartDelay, e.Patience)
}

// withDefaults fills in what is zero.
func (e Elastic) withDefaults() *Elastic {
	e.LastCall, e.Patience = cmp.Or(e.LastCall, DefaultLastCall), cmp.Or(e.Patience, DefaultPatience)
	e.Rejoin = cmp.Or(e.Rejoin, DefaultRejoin)
	return &e
}
