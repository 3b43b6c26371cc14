// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package nccl

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/lacking"
	"github.com/lockstep-ml/lockstep/internal/nccl"
)

// host is a device on a machine that has none.
type host struct{ cuda.Device }

func (host) Do(f func() error) error { return f() }

// The real library without a device: it opens, makes ids, reads the configuration of a communicator, and fails for want
// of a device, with its own words.
func TestLibrary(t *testing.T) {
	if os.Getenv(EnvLibrary) == "" {
		lacking.Skip(t, lacking.Tools, "nccl", EnvLibrary+" names no library")
	}
	lib, err := openLibrary()
	require.NoError(t, err)
	require.Regexp(t, `^2\.\d+\.\d+$`, lib.Version())
	a, err := lib.UniqueID()
	require.NoError(t, err)
	b, err := lib.UniqueID()
	require.NoError(t, err)
	require.NotEqual(t, nccl.ID{}, a)
	require.NotEqual(t, a, b)
	if _, err := os.Stat("/dev/nvidiactl"); err == nil {
		return // comm/nccl's tests with a device are in bench/gpu
	}
	_, err = lib.Init(host{}, 1, 0, a, func() error { return nil })
	var failed *cuda.Error
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "ncclCommInitRankConfig", failed.Call)
	require.Contains(t, []int{1, 2}, failed.Code, "%v", err) // unhandled CUDA error, or system error
	t.Log(err)
}

func TestLibraryThatIsMissing(t *testing.T) {
	none := filepath.Join(t.TempDir(), "libnccl.so.2")
	t.Setenv(EnvLibrary, none)
	_, err := openLibrary()
	require.ErrorContains(t, err, "NCCL is missing")
	require.ErrorContains(t, err, none)
}
