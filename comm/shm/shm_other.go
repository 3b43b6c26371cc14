// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package shm

import (
	"context"
	"errors"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

var errMissing = errors.New("comm/shm: not available on this operating system: use tcp, or goroutine ranks")

// Join returns an error: there is no shared memory engine for this operating system.
func Join(context.Context, rendezvous.Config, comm.Options) (*comm.Group, error) {
	return nil, errMissing
}

// New returns an error: there is no shared memory engine for this operating system.
func New(*rendezvous.Job, comm.Options) (*comm.Group, error) { return nil, errMissing }

// NewEngine returns an error: there is no shared memory engine for this operating system.
func NewEngine(*rendezvous.Job, string, []int) (comm.Engine, error) { return nil, errMissing }
