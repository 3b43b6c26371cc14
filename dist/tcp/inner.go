package tcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/lockstep-ml/lockstep/dist"
	"github.com/lockstep-ml/lockstep/dist/internal/window"
	"github.com/lockstep-ml/lockstep/dist/shm"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// inner is the second level of a hierarchical all-reduce: every rank combines its share of the buffer inside its host, then with the ranks of the same
// number on the other hosts (its rail), and writes the result into all buffers of its host. Each host sends 2(h-1)/h of the buffer, for h hosts,
// however many ranks it has.
//
// The tree over ranks is kept because hosts hold aligned blocks of 2ᵏ consecutive ranks: a block is a subtree, and the tree over hosts is the rest.
type inner struct {
	e       *Engine
	local   *window.Engine
	rail    *Engine
	members []int // ranks in the group of this host's ranks
	across  []int // ranks in the group of this rail's ranks
}

// placement returns the number of ranks on each host if hosts hold consecutive blocks of one power of two, at least 2, and there are at least two hosts; else 0.
func placement(hosts []string) int {
	size := 1
	for size < len(hosts) && hosts[size] == hosts[0] {
		size++
	}
	if size < 2 || size&(size-1) != 0 || len(hosts)%size != 0 || len(hosts) == size {
		return 0
	}
	seen := map[string]bool{}
	for lo := 0; lo < len(hosts); lo += size {
		block := hosts[lo : lo+size]
		if seen[block[0]] || slices.ContainsFunc(block, func(h string) bool { return h != block[0] }) {
			return 0
		}
		seen[block[0]] = true
	}
	return size
}

// descend sets up the second level if the placement allows it and all hosts can share memory; all members call it.
func (e *Engine) descend(group string) error {
	hosts := make([]string, len(e.members))
	for r, inJob := range e.members {
		hosts[r] = e.job.Peers[inJob].HostID
	}
	size := placement(hosts)
	if size == 0 {
		return nil
	}
	in := &inner{e: e}
	var local, rail []int // ranks in the job
	for r, inJob := range e.members {
		if r/size == e.rank/size {
			in.members, local = append(in.members, r), append(local, inJob)
		}
		if r%size == e.rank%size {
			in.across, rail = append(in.across, r), append(rail, inJob)
		}
	}
	var err error
	if in.local, err = shm.NewEngine(e.job, fmt.Sprintf("%s/host%d", group, e.rank/size), local); err == nil {
		in.local.SetBridge(in.cross)
	}
	all, err := e.agree(err)
	if err != nil {
		return errors.Join(err, in.close())
	}
	if !all {
		return in.close()
	}
	if in.rail, err = newFlat(e.job, fmt.Sprintf("%s/rail%d", group, e.rank%size), rail); err != nil {
		return errors.Join(err, in.close())
	}
	e.mu.Lock()
	e.inner = in
	e.mu.Unlock()
	if err := e.failure.Load(); err != nil {
		in.die(*err)
	}
	return nil
}

// agree reports whether no rank of the group has an error.
func (e *Engine) agree(mine error) (bool, error) {
	var text []byte
	if mine != nil {
		text = []byte(mine.Error())
	}
	ctx, cancel := context.WithTimeout(context.Background(), e.job.Timeout)
	defer cancel()
	all, err := e.job.Exchange(ctx, e.group+"/inner", e.members, text)
	if err != nil {
		return false, err
	}
	for r, text := range all {
		if len(text) > 0 {
			slog.Warn("dist/tcp: no shared memory inside hosts", "rank", r, "error", string(text))
			return false, nil
		}
	}
	return true, nil
}

// run is an all-reduce whose signatures have been compared.
func (in *inner) run(c *dist.Call) error {
	in.rail.limit(c.Deadline)
	if err := in.e.failure.Load(); err != nil {
		return *err
	}
	err := in.local.Run(c)
	if failure := in.e.failure.Load(); err != nil && failure != nil {
		return *failure
	}
	return in.renumber(err, c, in.members)
}

// cross is the bridge between hosts.
func (in *inner) cross(c *dist.Call, partial []byte, d dtype.DType) error {
	sub := *c
	sub.DType, sub.Count = d, len(partial)/d.Size()
	sub.In, sub.Out = partial, partial
	x := &exchange{e: in.rail, c: &sub, size: d.Size()}
	err := x.reduce()
	for r, p := range in.rail.peers {
		if p != nil && err == nil {
			if e := p.out.flush(); e != nil {
				err = in.rail.explain(&sub, r, e, []int{r})
			}
		}
	}
	if failure := in.e.failure.Load(); err != nil && failure != nil {
		return *failure
	}
	if err = in.renumber(err, c, in.across); err != nil {
		in.e.Abort(err) // before the ranks of this host, which wait for this one, give it another name
	}
	return err
}

// renumber gives an error of a part of the group the ranks and the name of the whole.
func (in *inner) renumber(err error, c *dist.Call, members []int) error {
	var timeout *dist.TimeoutError
	var lost *dist.RankLostError
	switch {
	case errors.As(err, &timeout):
		missing := make([]int, len(timeout.Missing))
		for i, r := range timeout.Missing {
			missing[i] = members[r]
		}
		return in.e.timeout(c, missing)
	case errors.As(err, &lost):
		whole := *lost
		whole.Group, whole.Rank, whole.Call = c.Group, members[lost.Rank], c.String()
		return &whole
	}
	return err
}

// die makes calls of both levels return.
func (in *inner) die(err error) {
	in.local.Fail(err)
	in.rail.die(err)
}

func (in *inner) close() error {
	var errs []error
	if in.local != nil {
		errs = append(errs, in.local.Close())
	}
	if in.rail != nil {
		errs = append(errs, in.rail.Close())
	}
	return errors.Join(errs...)
}
