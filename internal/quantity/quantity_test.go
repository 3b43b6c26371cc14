// SPDX-License-Identifier: Apache-2.0

package quantity

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	for n, want := range map[int]string{0: "0 steps", 1: "1 step", 2: "2 steps", -1: "-1 steps"} {
		require.Equal(t, want, Of(n, "step"))
		require.Equal(t, want, Of(int64(n), "step"))
	}
	require.Equal(t, "1 class", Of(1, "class"))
	require.Equal(t, "1,200 classes", Of(1200, "class"))
	require.Equal(t, "1,234,567", Thousands(1234567))
	require.Equal(t, "-123", Thousands(-123))
}
