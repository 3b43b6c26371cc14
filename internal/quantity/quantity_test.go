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
}
