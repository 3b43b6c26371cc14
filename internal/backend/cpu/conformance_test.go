// SPDX-License-Identifier: Apache-2.0

package cpu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/backend/backendtest"
	"github.com/lockstep-ml/lockstep/internal/backend/cpu"
	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
)

func TestConformance(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, v kernels.Variant) {
		if testing.Short() && v != kernels.Generic {
			return // a short run is the race detector's, which sees the generic variant alone
		}
		backendtest.Run(t, func(*testing.T) backend.Backend { return cpu.New(2) })
	})
}

func TestBitsDoNotDependOnWorkers(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, v kernels.Variant) {
		if testing.Short() && v != kernels.Generic {
			return
		}
		alone := cpu.New(1)
		defer alone.Close()
		want := backendtest.Digest(t, alone)
		counts := []int{2, 3, 8}
		if testing.Short() {
			counts = []int{3}
		}
		for _, workers := range counts {
			d := cpu.New(workers)
			require.Equal(t, want, backendtest.Digest(t, d), "%d workers", workers)
			require.NoError(t, d.Close())
		}
	})
}
