// SPDX-License-Identifier: Apache-2.0

//go:build unix

package shm

import (
	"context"
	"fmt"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/internal/window"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

// Join brings the processes of a job together and returns the group of all of them. It is an error if they are not on
// one host.
func Join(ctx context.Context, c rendezvous.Config, opts comm.Options) (*comm.Group, error) {
	job, err := rendezvous.Join(ctx, c)
	if err != nil {
		return nil, err
	}
	g, err := New(job, opts)
	if e := job.Close(); err == nil && e != nil { // the group holds the job
		return nil, e
	}
	return g, err
}

// NewEngine returns the engine of some processes of a job that share a host, for comm/tcp, which uses it inside each
// host. It is a *window.Engine. All members call it.
func NewEngine(job *rendezvous.Job, group string, members []int) (comm.Engine, error) {
	f, err := newFabric(job, group, members, job.Timeout, preferred)
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
	if !job.OneHost() {
		a, b := job.Peers[0], job.Peers[0]
		for _, p := range job.Peers {
			if p.HostID != a.HostID {
				b = p
				break
			}
		}
		return nil, fmt.Errorf("comm/shm: rank %d runs on %s, rank %d on %s, and they share no memory: use tcp", a.Rank,
			a.Host, b.Rank, b.Host)
	}
	members := make([]int, job.World)
	for r := range members {
		members[r] = r
	}
	timeout := job.Timeout
	name := opts.Name
	if name == "" {
		name = "world"
	}
	f, err := newFabric(job, name, members, timeout, k)
	if err != nil {
		return nil, err
	}
	return comm.New(window.New(f), opts), nil
}
