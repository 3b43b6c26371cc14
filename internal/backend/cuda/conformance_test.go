// SPDX-License-Identifier: Apache-2.0

package cuda_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/backend/backendtest"
	"github.com/lockstep-ml/lockstep/internal/backend/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens the first device of a fake machine.
func open(t *testing.T, o fake.Options) *cuda.Device {
	t.Helper()
	if o.Delay == 0 {
		o.Delay = 100 * time.Microsecond
	}
	d, err := cuda.Open(cuda.TestDriver(o), 0)
	require.NoError(t, err)
	return d
}

func TestConformance(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) backend.Backend { return open(t, fake.Options{Seed: 1}) })
}
