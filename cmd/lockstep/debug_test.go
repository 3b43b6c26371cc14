// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/flight"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
)

func TestDebugFlight(t *testing.T) {
	dir := t.TempDir()
	err := local.Run(2, comm.Options{Timeout: 5 * time.Second, FlightDir: dir}, func(g *comm.Group) error {
		n := 4 + g.Rank() // rank 1 has another count
		return g.AllReduce(comm.Of(make([]float32, n)), comm.Sum, comm.Label("bucket 0")).Wait(t.Context())
	})
	require.Error(t, err)
	code, stdout, stderr := output(nil, "debug", "flight", dir)
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stdout, "bucket 0")
	require.Contains(t, stdout, "rank 1")

	code, _, stderr = output(nil, "debug", "flight", t.TempDir())
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "lockstep debug:")
	code, _, stderr = output(nil, "debug", "landing")
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "want flight and a folder")
}

func TestDebugFlightOfARunningProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		code, _, stderr := output(nil, "debug", "flight", "--pid", "1")
		require.Equal(t, exitError, code)
		require.Contains(t, stderr, "needs Linux")
		return
	}
	t.Setenv(flight.EnvDir, t.TempDir())
	self := strconv.Itoa(os.Getpid())
	code, _, stderr := output(nil, "debug", "flight", "--pid", self)
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "neither it nor what it started is a rank of a job")

	groups := local.New(2, comm.Options{Timeout: time.Minute})
	for _, g := range groups {
		defer g.Close()
		defer flight.Watch(g, "job", slog.Default())()
	}
	groups[1].Barrier(comm.Label("end of step 7"))
	defer groups[1].Abort(nil)
	require.Eventually(t, func() bool {
		e := groups[1].Flight().Entries
		return len(e) == 1 && e[0].State == comm.Started
	}, 10*time.Second, time.Millisecond)
	code, stdout, stderr := output(nil, "debug", "flight", "--pid", self)
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stdout, `rank 0 did not come to barrier #1 "end of step 7"; rank 1 waited`)

	code, _, stderr = output(nil, "debug", "flight", t.TempDir(), "--pid", self)
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "want flight and a folder, or flight --pid PID")
}
