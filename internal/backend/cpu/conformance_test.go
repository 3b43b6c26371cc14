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
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		backendtest.Run(t, func(*testing.T) backend.Backend { return cpu.New(2) })
	})
}

func TestBitsDoNotDependOnWorkers(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		alone := cpu.New(1)
		defer alone.Close()
		want := backendtest.Digest(t, alone)
		for _, workers := range []int{2, 3, 8} {
			d := cpu.New(workers)
			require.Equal(t, want, backendtest.Digest(t, d), "%d workers", workers)
			require.NoError(t, d.Close())
		}
	})
}
