// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux && !(nvml && cgo)

package nvml

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/clib"
	"github.com/lockstep-ml/lockstep/internal/lacking"
)

// build compiles testdata/libnvidia-ml.c and makes it the library.
func build(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		lacking.Skip(t, lacking.Tools, "cc", "no C compiler")
	}
	lib := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	out, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", lib, "testdata/libnvidia-ml.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Setenv(EnvLibrary, lib)
}

func TestLibrary(t *testing.T) {
	build(t)
	l, err := Open()
	require.NoError(t, err)
	require.Equal(t, "libnvidia-ml", l.Source())
	require.Equal(t, "570.86.15", l.Driver())
	require.Equal(t, []GPU{
		{0, "NVIDIA H100 80GB HBM3", "GPU-a", "00000000:00:1E.0", "9.0", 80 << 30},
		{1, "NVIDIA A10G", "GPU-b", "00000000:00:1F.0", "8.6", 24 << 30},
	}, l.GPUs())
	for range 100 { // memory that the library writes to must not move
		usage, err := l.Usage()
		require.NoError(t, err)
		require.Equal(t, Usage{97, 41, 79 << 30, 612.34, 58}, usage[0])
		require.Equal(t, 58.0, usage[1].Temperature)
		require.NotEqual(t, usage[1].Power, usage[1].Power, "NaN")
	}
	require.NoError(t, clib.Setenv("FAIL", "utilization", true))
	_, err = l.Usage()
	require.EqualError(t, err, "libnvidia-ml: device 0: GPU is lost (15)")
	require.NoError(t, clib.Setenv("FAIL", "", true))
	require.NoError(t, l.Close())
}

func TestLibraryThatFails(t *testing.T) {
	build(t)
	require.NoError(t, clib.Setenv("FAIL", "init", true))
	defer func() { require.NoError(t, clib.Setenv("FAIL", "", true)) }()
	t.Setenv("PATH", t.TempDir())
	_, err := Open()
	require.EqualError(t, err, "nvml: libnvidia-ml: nvmlInit_v2: Driver Not Loaded (9)")
}

func TestLibraryThatIsNone(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	none := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	t.Setenv(EnvLibrary, none)
	_, err := Open()
	require.ErrorContains(t, err, none)
	require.NotErrorIs(t, err, ErrNone, "it was asked for by name")
	require.NoError(t, os.Unsetenv(EnvLibrary))
	if _, err = Open(); err != nil {
		require.ErrorIs(t, err, ErrNone)
	}
}
