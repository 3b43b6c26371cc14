// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"

	"github.com/lockstep-ml/lockstep/dist"
	"github.com/lockstep-ml/lockstep/dist/rendezvous"
)

// Join brings the processes of a job together and returns the group of all of them.
func Join(ctx context.Context, c rendezvous.Config, opts dist.Options) (*dist.Group, error) {
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

// New returns the group of all processes of a job, which it holds open until it is closed. All of them call it.
func New(job *rendezvous.Job, opts dist.Options) (*dist.Group, error) {
	members := make([]int, job.World)
	for r := range members {
		members[r] = r
	}
	if opts.Name == "" {
		opts.Name = "world"
	}
	e, err := newEngine(job, opts.Name, members)
	if err != nil {
		return nil, err
	}
	return dist.New(e, opts), nil
}
