// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/internal/algorithms"
	"github.com/lockstep-ml/lockstep/comm/internal/window"
	"github.com/lockstep-ml/lockstep/comm/shm"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// hierarchical is the second level of a hierarchical operation: every rank does its share of it inside its host, in
// shared memory, and with the ranks of the same number on the other hosts (its rail). No byte goes twice from one host
// to another: for h hosts each sends 2(h-1)/h of an all-reduce's buffer, however many ranks it has.
//
// The tree over ranks is kept because hosts hold aligned blocks of 2ᵏ consecutive ranks: a block is a subtree, and the
// tree over hosts is the rest.
type hierarchical struct {
	e       *engine
	local   *window.Engine
	rail    *engine
	members []int // ranks in the group of this host's ranks
	across  []int // ranks in the group of this rail's ranks
}

// placement returns the number of ranks on each host if hosts hold consecutive blocks of one power of two, at least 2,
// and there are at least two hosts; else 0.
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
func (e *engine) descend(group string) error {
	hosts := make([]string, len(e.members))
	for r, inJob := range e.members {
		hosts[r] = e.job.Peers[inJob].HostID
	}
	size := placement(hosts)
	if size == 0 {
		return nil
	}
	in := &hierarchical{e: e}
	var local, rail []int // ranks in the job
	for r, inJob := range e.members {
		if r/size == e.rank/size {
			in.members, local = append(in.members, r), append(local, inJob)
		}
		if r%size == e.rank%size {
			in.across, rail = append(in.across, r), append(rail, inJob)
		}
	}
	host, err := shm.NewEngine(e.job, fmt.Sprintf("%s/host%d", group, e.rank/size), local)
	if err == nil {
		in.local = host.(*window.Engine)
		in.local.SetBridge(in.cross, e.rank/size, len(e.members)/size)
	}
	theirs, err := e.job.Agree(e.group+"/hierarchical", e.members, err)
	if theirs != nil {
		slog.Warn("comm/"+e.over.Name+": no shared memory inside hosts", "error", theirs)
	}
	if err != nil || theirs != nil {
		return errors.Join(err, in.close())
	}
	if in.rail, err = newFlat(e.job, e.over, fmt.Sprintf("%s/rail%d", group, e.rank%size), rail); err != nil {
		return errors.Join(err, in.close())
	}
	e.mu.Lock()
	e.hierarchy = in
	e.mu.Unlock()
	if err := e.Err(); err != nil {
		in.die(err)
	}
	return nil
}

// hasLevels reports whether an operation has a form for two levels. The others go from rank to rank.
func hasLevels(op comm.Op) bool {
	return op == comm.AllReduce || op == comm.ReduceScatter || op == comm.AllGather || op == comm.Broadcast
}

// run is a call whose signatures have been compared.
func (in *hierarchical) run(c *comm.Call) error {
	in.rail.limit(c.Deadline)
	if err := in.e.Err(); err != nil {
		return err
	}
	if c.Op == comm.AllGather {
		return in.allGather(c)
	}
	in.local.SetSeen(!slices.ContainsFunc(in.e.heads, func(h []byte) bool { return h[shown] == 0 }))
	return in.inside(c, c)
}

// inside carries out sub, which is c or a part of it, among the ranks of this host.
func (in *hierarchical) inside(c, sub *comm.Call) error {
	return in.renumber(in.local.Run(sub), c, in.members)
}

// cross is the bridge between hosts.
func (in *hierarchical) cross(c *comm.Call, give, take []byte, d dtype.DType) error {
	sub := *c
	sub.DType, sub.Count, sub.Root = d, len(give)/d.Size(), c.Root/in.local.Size()
	if c.Op == comm.ReduceScatter {
		sub.Count /= in.rail.Size()
	}
	sub.In, sub.Out = give, take
	return in.outside(&sub, c, in.rail.runner.Run(links{in.rail, &sub}, &sub, c.DType))
}

// outside ends an exchange over the rail, sub, that is a part of c: it waits for what is to be sent, and says what an
// error means.
func (in *hierarchical) outside(sub, c *comm.Call, err error) error {
	if err == nil {
		err = in.rail.flush(sub)
	}
	if err = in.renumber(err, c, in.across); err != nil {
		in.e.Abort(err) // before the ranks of this host, which wait for this one, give it another name
	}
	return err
}

// allGather sends this rank's block over its rail. What comes from another host, one block for each rank of this one,
// they show each other; meanwhile the next is on its way.
func (in *hierarchical) allGather(c *comm.Call) error {
	size := c.Count * c.DType.Size()
	block := func(rank int) []byte { return c.Out[rank*size : (rank+1)*size] }
	own := block(in.e.rank)
	if &own[0] != &c.In[0] {
		copy(own, c.In)
	}
	hosts, perHost := in.rail.Size(), in.local.Size()
	rounds := make([]algorithms.Round, hosts)
	for i := 1; i < hosts; i++ {
		from, to := (in.rail.rank+i)%hosts, (in.rail.rank+hosts-i)%hosts
		rounds[i] = links{in.rail, c}.Begin([]algorithms.Part{{Rank: to, Bytes: own}},
			[]algorithms.Part{{Rank: from, Bytes: block(in.across[from])}})
	}
	for i := range hosts {
		host := (in.rail.rank + i) % hosts
		theirs := block(in.across[host])
		if i > 0 {
			if err := rounds[i].Received(); err != nil {
				return in.outside(c, c, err)
			}
		}
		sub := *c
		sub.In, sub.Out = theirs, c.Out[host*perHost*size:(host+1)*perHost*size]
		if err := in.inside(c, &sub); err != nil {
			return err
		}
	}
	return in.outside(c, c, nil)
}

// renumber gives an error of a part of the group the ranks and the name of the whole, unless that has failed.
func (in *hierarchical) renumber(err error, c *comm.Call, members []int) error {
	var timeout *comm.TimeoutError
	var lost *comm.RankLostError
	switch first := in.e.Err(); {
	case err != nil && first != nil:
		return first
	case errors.As(err, &timeout):
		return in.e.timeout(c, comm.JobRanks(members, timeout.GroupMissing))
	case errors.As(err, &lost):
		whole := *lost
		whole.Group, whole.GroupRank, whole.Call = c.Group, members[lost.GroupRank], c.String()
		return &whole
	}
	return err
}

// die makes calls of both levels return.
func (in *hierarchical) die(err error) {
	in.local.Fail(err)
	in.rail.die(err)
}

func (in *hierarchical) close() error {
	var errs []error
	if in.local != nil {
		errs = append(errs, in.local.Close())
	}
	if in.rail != nil {
		errs = append(errs, in.rail.Close())
	}
	return errors.Join(errs...)
}
