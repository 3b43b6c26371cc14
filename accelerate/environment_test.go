// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
)

func TestEnvironmentsThatDiffer(t *testing.T) {
	a := accelerate.Environment{Devices: []string{"A (driver 12)"}, Exchange: "NCCL 2.27.3"}
	for _, c := range []struct {
		other accelerate.Environment
		same  bool
	}{
		{a, true},
		{accelerate.Environment{}, true}, // of a checkpoint that says nothing
		{accelerate.Environment{Devices: a.Devices}, true},
		{accelerate.Environment{Devices: a.Devices, Exchange: "NCCL 2.30.7"}, false},
		{accelerate.Environment{Devices: []string{"A (driver 13)"}, Exchange: a.Exchange}, false},
		{accelerate.Environment{Devices: []string{"A (driver 12)", "B (driver 12)"}}, false},
	} {
		require.Equal(t, c.same, a.Same(c.other), c.other)
		require.Equal(t, c.same, c.other.Same(a), c.other)
	}
	require.Equal(t, "A and B; NCCL 2.30.7",
		accelerate.Environment{Devices: []string{"A", "B"}, Exchange: "NCCL 2.30.7"}.String())
}
