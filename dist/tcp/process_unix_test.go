// SPDX-License-Identifier: Apache-2.0

//go:build unix

package tcp

import (
	"testing"

	"github.com/lockstep-ml/lockstep/dist/disttest"
)

func TestMain(m *testing.M) { disttest.Main(m, Join) }

func TestConformanceOfProcesses(t *testing.T) {
	t.Parallel()
	disttest.RunProcesses(t, "flat", nil)
}
