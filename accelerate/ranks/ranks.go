// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/flight"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

// Options are how this rank is one of several.
type Options struct {
	World    *comm.Group  // the ranks, which are connected already; nil: those that a launcher started
	Replicas int          // ranks that are goroutines of this process; 0 and 1: it is one rank
	Replica  int          // number of this rank among Replicas; −1: it is none of them
	Engine   string       // between processes; "" is shared memory on one host, otherwise TCP
	Group    comm.Options // deadline, order of sums, log
	Mesh     comm.Mesh    // that the ranks form; the zero value leaves it to MeshFor, with
	Sizes    comm.Mesh    // those that are asked for,
	Sharded  bool         // if a model is spread over the ranks,
	Hybrid   bool         // a replica of it over those of each host
}

// Ranks is this rank among the others: who it is, what they tell each other, and what they decide together. Methods
// that take a context are collective.
type Ranks struct {
	Peers // all ranks: they decide, wait and fail together
	roles

	// DeviceEngine moves tensors of ranks from device to device; "" for none. It is set before Open.
	DeviceEngine string

	options   Options
	unwatch   func()           // ends giving out the group's flight records; nil for Options.World
	place     *env.Environment // what the launcher says; nil for Options.World
	processes *processes       // nil: the other ranks, if there are any, are goroutines
}

// New finds out which rank this is.
func New(o Options) (*Ranks, error) {
	r := &Ranks{Peers: Peers{size: 1}, options: o}
	if err := checkEngine(o.Engine); err != nil {
		return nil, err
	}
	if o.World != nil {
		r.Peers = PeersOf(o.World)
	} else if err := r.detect(); err != nil {
		return nil, err
	}
	return r, r.arrange()
}

// IsMain reports whether this rank logs and saves.
func (r *Ranks) IsMain() bool { return r.Rank() == 0 }

// IsLocalMain reports whether this rank is the first of those on its host.
func (r *Ranks) IsLocalMain() bool {
	return r.IsMain() || r.processes != nil && r.processes.env.LocalRank == 0
}

// OneHost reports whether all ranks are known to run on this host.
func (r *Ranks) OneHost() bool {
	return r.processes == nil || r.processes.env.LocalWorldSize == r.size
}

// LocalRank is this rank's number on its host.
func (r *Ranks) LocalRank() int {
	if r.processes != nil {
		return r.processes.env.LocalRank
	}
	return r.rank
}

// LocalWorldSize is the number of ranks on this host.
func (r *Ranks) LocalWorldSize() int {
	if r.place != nil && r.place.LocalWorldSize > 0 && r.options.Replicas <= 1 {
		return r.place.LocalWorldSize
	}
	return r.size
}

// Job names the job that a launcher started this process for, "" if there is none;
// restarted says that the launcher has started it again after a failure. On several hosts only an
// open accelerator knows: of torchrun's agents those count a failure that saw it first.
func (r *Ranks) Job() (id string, restarted bool) {
	if r.place == nil {
		return "", false
	}
	restarted = r.place.RestartCount > 0
	if r.processes != nil && r.processes.job != nil {
		job := r.processes.job
		restarted = restarted || job.Place.Restarted ||
			slices.ContainsFunc(job.Peers, func(p rendezvous.Peer) bool { return p.Restarted })
		if job.Place.Launch != "" {
			return job.Place.Launch, restarted
		}
	}
	// unlike a job's name, no other launch has its number
	return cmp.Or(os.Getenv(env.VarLaunchID), r.place.JobID), restarted
}

// Open joins the other processes of the job if a launcher started this process as one of several, and waits for all of
// them; it makes the groups of the mesh. Further calls, and calls in a single process, do nothing. Call it before
// collective work. A process is in its job until it ends, and each accelerator has its own group in it: all ranks open
// theirs in the same order.
func (r *Ranks) Open(ctx context.Context) error {
	if r.processes != nil && r.group == nil {
		if err := r.openGroup(ctx); err != nil {
			return err
		}
	}
	return r.split()
}

// openGroup makes this rank's group with the other processes. The garbage collector closes the group of an accelerator
// that nothing refers to any more.
func (r *Ranks) openGroup(ctx context.Context) error {
	p := r.processes
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.join(ctx, r.options.Group.Timeout, r.options.Engine); err != nil {
		return err
	}
	first, name := p.groups == 0, ""
	if !first {
		name = fmt.Sprintf("world%d", p.groups+1)
	}
	group, err := r.engine(p.job, name)
	if err != nil {
		err = fmt.Errorf("accelerate: %w", err)
		if first {
			err = errors.Join(err, p.leave())
		}
		return err
	}
	p.groups++
	r.group = group
	unwatch := flight.Watch(group, r.flightJob(), r.options.Group.Log)
	r.unwatch = unwatch
	if r.options.Engine != mpiEngine { // whose last group ends MPI, which the program says when
		forgotten := runtime.AddCleanup(r, func(g *comm.Group) {
			go func() {
				unwatch()
				_ = g.Close() // who would read it is gone
			}()
		}, group)
		r.unwatch = func() {
			forgotten.Stop()
			unwatch()
		}
	}
	if first && r.IsMain() {
		info := r.group.Describe()
		r.options.Group.Log.Info("joined the job", "ranks", r.size, "launcher", string(p.env.Kind), "engine", info.Name,
			"path", info.Path)
	}
	return nil
}

// Join tells a loop whose ranks may have unequal numbers of batches whether to take another
// step: more is true on every rank as long as have is true on one. A rank without data
// continues with no batches, which Accumulate allows, until all ranks have finished. It is
// collective.
func (r *Ranks) Join(ctx context.Context, have bool) (more bool, err error) {
	more = have
	return more, r.Agree(ctx, &more)
}

// MainProcessFirst calls f on rank 0 and then on the others, so that rank 0 downloads or
// prepares what the others use. If f fails on rank 0, the others do not call it, and all
// return an error; if it fails on another rank, only that rank returns an error. It is
// collective, and f must end within ddp_timeout.
func (r *Ranks) MainProcessFirst(ctx context.Context, f func() error) error {
	return r.first(ctx, r.IsMain(), f)
}

// LocalMainProcessFirst is MainProcessFirst where the first rank of each host (IsLocalMain) calls f before the others,
// for files that hosts do not share. If it fails on one host, the others do not call it on any.
func (r *Ranks) LocalMainProcessFirst(ctx context.Context, f func() error) error {
	return r.first(ctx, r.IsLocalMain(), f)
}

func (r *Ranks) first(ctx context.Context, mine bool, f func() error) error {
	if r.group == nil {
		return f()
	}
	var own error
	failure := ""
	if mine {
		if own = f(); own != nil {
			failure = own.Error()
		}
	}
	all, err := r.GatherBytes(ctx, []byte(failure))
	if err != nil || mine {
		return cmp.Or(own, err)
	}
	for rank, failure := range all {
		if len(failure) > 0 {
			return fmt.Errorf("accelerate: rank %d, which runs first, failed: %s", rank, failure)
		}
	}
	return f()
}

// Print writes a line to w on rank 0 and does nothing on the others.
func (r *Ranks) Print(w io.Writer, v ...any) (n int, err error) {
	if !r.IsMain() {
		return 0, nil
	}
	return fmt.Fprintln(w, v...)
}

// Abort tells the other ranks that this one failed, and why, so that they get an error
// instead of waiting.
func (r *Ranks) Abort(err error) {
	if r.group != nil {
		r.group.Abort(err)
	}
	r.roles.abort(err)
}

// Starting calls f, which sets a run up on all ranks, such as by reading its settings and its checkpoint. An error that
// ends it is one of these, and leaves no flight record.
func (r *Ranks) Starting(f func() error) error {
	if r.group == nil {
		return f()
	}
	r.group.Starting(true)
	err := f()
	if err == nil {
		r.group.Starting(false)
	}
	return err
}

// Connect joins ranks that are goroutines of this process (Options.Replicas) into a group.
func Connect(ranks []*Ranks) {
	opts := ranks[0].groupOptions()
	opts.FlightDir = os.Getenv(flight.EnvDir) // what ranks of one process say of a failure is enough otherwise
	for i, g := range local.New(len(ranks), opts) {
		r := ranks[i]
		r.group, r.unwatch = g, flight.Watch(g, r.flightJob(), opts.Log)
	}
}

// Close leaves the group without waiting for the others. Open makes a new one. The process stays in its job until it
// ends.
func (r *Ranks) Close() error {
	if r.group == nil {
		return nil
	}
	if r.unwatch != nil { // a group of the program's own is its own to watch
		r.unwatch()
		r.unwatch = nil
	}
	err := errors.Join(r.roles.close(), r.group.Close())
	r.group = nil
	return err
}
