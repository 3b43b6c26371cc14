// SPDX-License-Identifier: Apache-2.0

//go:build mpi && unix

package mpi

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/dist"
	"github.com/lockstep-ml/lockstep/dist/disttest"
)

func TestMain(m *testing.M) {
	if err := Init(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	code := m.Run()
	if err := Finalize(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(code)
}

// start makes ranks that live in the test's process, a job of one MPI process: it sends its messages to itself.
func start(t *testing.T, n int, opts dist.Options) []*dist.Group {
	groups, errs, done := make([]*dist.Group, n), make([]error, n), make(chan struct{})
	for r, job := range disttest.Jobs(t, n, nil) {
		go func() {
			defer func() { done <- struct{}{} }()
			groups[r], errs[r] = New(job, opts)
			_ = job.Close()
		}()
	}
	for range n {
		<-done
	}
	for r, err := range errs {
		require.NoError(t, err, "rank %d", r)
	}
	return groups
}

func TestConformance(t *testing.T) {
	disttest.Run(t, disttest.Engine{Name: "mpi", Path: world.lib.version, Ranks: []int{1, 2, 3, 4}, Start: start,
		Leftovers: disttest.Leftovers})
}
