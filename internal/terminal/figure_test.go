// SPDX-License-Identifier: Apache-2.0

package terminal_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/terminal"
)

func TestCount(t *testing.T) {
	require.Equal(t, "0 texts", terminal.Count(0, "text"))
	require.Equal(t, "1 class", terminal.Count(1, "class"))
	require.Equal(t, "1,200 classes", terminal.Count(1200, "class"))
	require.Equal(t, "1,234,567", terminal.Thousands(1234567))
	require.Equal(t, "-123", terminal.Thousands(-123))
}
