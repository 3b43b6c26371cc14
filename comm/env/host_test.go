// SPDX-License-Identifier: Apache-2.0

package env

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadHost(t *testing.T) {
	h := ReadHost(Map(nil))
	require.Equal(t, runtime.GOMAXPROCS(0), h.Cores)
	require.NotEmpty(t, h.CoresSource)
	require.Equal(t, h.Memory > 0, h.MemorySource != "")
	require.Equal(t, "GOMAXPROCS", ReadHost(Map(vars{"GOMAXPROCS": "2"})).CoresSource)
}
