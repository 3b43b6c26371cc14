// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	flags "flag"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/backend/backendtest"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/cuda/kernels"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConformance runs the suite, with cuDNN and without. Each kernel runs, and so do all ops in all dtypes.
func TestConformance(t *testing.T) {
	var mu sync.Mutex
	ran := map[string]bool{}
	o := fake.Options{Seed: 1, Delay: 100 * time.Microsecond, Ran: func(kernel string, _ int64) {
		mu.Lock()
		defer mu.Unlock()
		ran[kernel] = true
	}}
	backendtest.Run(t, func(t *testing.T) backend.Backend {
		d, err := Open(TestDriver(o), 0)
		require.NoError(t, err)
		return d
	})
	t.Run("without cuDNN", func(t *testing.T) { // convolutions are products of unfolded windows
		d := withoutDnn(t, o)
		backendtest.RunOps(t, d, convolutionOps...)
		require.Zero(t, d.Stats().InUse)
	})
	if testing.Short() || t.Failed() || partial() || os.Getenv(EnvDevice) != "" {
		return
	}
	var missing []string
	for _, f := range kernels.Families() {
		for _, k := range f.Kernels {
			if !ran[k] {
				missing = append(missing, k)
			}
		}
	}
	require.Empty(t, missing, "kernels that the suite does not run: add samples to backendtest, or remove the kernels")
}

// partial reports whether flags leave out a part of a test.
func partial() bool {
	for _, name := range []string{"test.run", "test.skip"} {
		if strings.Contains(flags.Lookup(name).Value.String(), "/") {
			return true
		}
	}
	return false
}
