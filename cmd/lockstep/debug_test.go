// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/dist"
	"github.com/lockstep-ml/lockstep/dist/local"
)

func TestDebugFlight(t *testing.T) {
	dir := t.TempDir()
	err := local.Run(2, dist.Options{Timeout: 5 * time.Second, FlightDir: dir}, func(g *dist.Group) error {
		n := 4 + g.Rank() // rank 1 has another count
		return g.AllReduce(dist.Of(make([]float32, n)), dist.Sum, dist.Label("bucket 0")).Wait(t.Context())
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
