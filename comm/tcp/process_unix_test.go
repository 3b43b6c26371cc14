// SPDX-License-Identifier: Apache-2.0

//go:build unix

package tcp

import (
	"testing"

	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

func TestMain(m *testing.M) { commtest.Main(m, Join) }

func TestConformanceOfProcesses(t *testing.T) {
	t.Parallel()
	commtest.RunProcesses(t, "flat", nil)
}

// Killed and stopped processes are noticed as soon over encrypted connections.
func TestConformanceOfProcessesOverTLS(t *testing.T) {
	t.Parallel()
	commtest.RunProcesses(t, "flat", func(int) []string {
		return []string{rendezvous.EnvTLS + "=" + string(rendezvous.TLSAlways)}
	})
}
