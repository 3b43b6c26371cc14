// SPDX-License-Identifier: Apache-2.0

//go:build unix

package shm

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/internal/window"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

// Join brings the processes of a job together and returns the group of all of them. It is an error if they are not on
// one host.
func Join(ctx context.Context, c rendezvous.Config, opts comm.Options) (*comm.Group, error) {
	c.Engine = rendezvous.SharedMemory
	return rendezvous.NewEngine(New).Join(ctx, c, opts)
}

// NewEngine returns the engine of some processes of a job that share a host, for comm/tcp, which uses it inside each
// host. It is a *window.Engine. All members call it.
func NewEngine(job *rendezvous.Job, group string, members []int) (comm.Engine, error) {
	f, err := newFabric(job, group, members, preferred)
	if err != nil {
		return nil, err
	}
	return window.New(f), nil
}

// New returns the group of all processes of a job, which it holds open until it is closed. All of them call it.
func New(job *rendezvous.Job, opts comm.Options) (*comm.Group, error) {
	return newGroup(job, opts, preferred)
}

func newGroup(job *rendezvous.Job, opts comm.Options, k kind) (*comm.Group, error) {
	a := job.Peers[0]
	if i := slices.IndexFunc(job.Peers, func(p rendezvous.Peer) bool { return p.HostID != a.HostID }); i >= 0 {
		b := job.Peers[i]
		return nil, fmt.Errorf("comm/shm: rank %d runs on %s, rank %d on %s, and they share no memory: use tcp", a.Rank,
			a.Host, b.Rank, b.Host)
	}
	f, err := newFabric(job, cmp.Or(opts.Name, "world"), comm.AllRanks(job.World), k)
	if err != nil {
		return nil, err
	}
	return comm.New(window.New(f), opts), nil
}
