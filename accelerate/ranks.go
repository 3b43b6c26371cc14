// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/flight"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

// Ranks is this rank among the others: who it is, what they tell each other, and what they decide together. Methods
// that take a context are collective.
type Ranks struct {
	Peers // all ranks: they decide, wait and fail together
	roles

	plan plan
	log  *slog.Logger

	unwatch func() // ends giving out the group's flight records; nil with WithGroup

	place     *env.Environment // what the launcher says; nil with WithGroup
	processes *processes       // nil: the other ranks, if there are any, are goroutines
	kernels   string           // the variant, which ranks compare
	versions  []string         // see EnvironmentOf
	devices   string           // device engine of the group, "" for none
}

// Kernels is the variant of the CPU's kernels that the process runs, as "avx512".
func (r *Ranks) Kernels() string { return r.kernels }

// WorldSize is the number of ranks.
func (r *Ranks) WorldSize() int { return r.size }

// IsMain reports whether this rank logs and saves.
func (r *Ranks) IsMain() bool { return r.Rank() == 0 }

// IsLocalMain reports whether this rank is the first of those on its host.
func (r *Ranks) IsLocalMain() bool {
	return r.IsMain() || r.processes != nil && r.processes.env.LocalRank == 0
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
	id = os.Getenv(env.VarLaunchID) // unlike a job's name, no other launch has it
	if id == "" {
		id = r.place.JobID
	}
	return id, restarted
}

// Open joins the other processes of the job if a launcher started this process as one of
// several, and waits for all of them; with WithMesh it makes the groups of the mesh. Further calls, and calls
// in a single process, do nothing. Call it before collective work. A process is in its job until it ends, and each
// accelerator has a group of its own in it: all ranks open theirs in the same order.
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
	if err := p.join(ctx, r.plan.job.group.Timeout); err != nil {
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
	unwatch := flight.Watch(group, r.flightJob(), r.log)
	r.unwatch = unwatch
	if r.plan.job.engine != mpiEngine { // whose last group ends MPI, which the program says when
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
		r.log.Info("joined the job", "ranks", r.size, "launcher", string(p.env.Kind), "engine", info.Name,
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
	if r.group == nil {
		return f()
	}
	var own error
	failure := ""
	if r.IsMain() {
		if own = f(); own != nil {
			failure = own.Error()
		}
	}
	if err := comm.BroadcastObject(ctx, r.group, &failure, 0); err != nil {
		return err
	}
	switch {
	case r.IsMain():
		return own
	case failure != "":
		return fmt.Errorf("accelerate: rank 0, which runs first, failed: %s", failure)
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

// starting says whether the job is being set up, see comm.Group.Starting.
func (r *Ranks) starting(on bool) {
	if r.group != nil {
		r.group.Starting(on)
	}
}

// Starting calls f, which sets a run up on all ranks, such as by reading its settings and its checkpoint. An error that
// ends it is one of these, and leaves no flight record.
func Starting(a *Accelerator, f func() error) error {
	a.starting(true)
	err := f()
	if err == nil {
		a.starting(false)
	}
	return err
}

// reject aborts the group for an error of this rank, for which the others would wait, and
// returns it.
func (r *Ranks) reject(err error) error {
	r.Abort(err)
	return err
}
