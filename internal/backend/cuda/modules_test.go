// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/backend/backendtest"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/cuda/kernels"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// noCubin is a compute capability that the program has no cubins for: kernels are loaded as PTX.
var noCubin = [2]int{13, 0}

// TestDriverWithoutACompiler holds that the error of a driver that cannot compile kernels says what it lacks.
func TestDriverWithoutACompiler(t *testing.T) {
	t.Setenv("NVIDIA_DRIVER_CAPABILITIES", "utility")
	launch := func(code int) string {
		d := simulated(t, fake.Options{NoCompiler: code, Capability: noCubin})
		fault := backendtest.Launch(d, d.NewStream(), backend.OpSoftmax, dtype.Float32)
		require.NotNil(t, fault)
		return fault.Error()
	}
	message := launch(cuda.NoCompiler)
	require.Contains(t, message, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND (221)")
	require.Contains(t, message, "want libnvidia-ptxjitcompiler.so.1")
	require.Contains(t, message, `NVIDIA_DRIVER_CAPABILITIES is "utility"`)
	t.Setenv("CUDA_DISABLE_PTX_JIT", "1")
	message = launch(cuda.CompilerDisabled)
	require.Contains(t, message, "CUDA_ERROR_JIT_COMPILATION_DISABLED (223)")
	require.Contains(t, message, `CUDA_DISABLE_PTX_JIT is "1": want it unset`)
	require.NotContains(t, message, "ptxjitcompiler")
}

// TestCubins holds that a device gets the cubin of its architecture, which needs no compiler, and the PTX where the
// driver refuses the cubin.
func TestCubins(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	launch := func(o fake.Options) error {
		d := simulated(t, o)
		for _, op := range []backend.Op{backend.OpSoftmax, backend.OpNeg} {
			if fault := backendtest.Launch(d, d.NewStream(), op, dtype.Float32); fault != nil {
				return fault
			}
		}
		return nil
	}
	for _, capability := range [][2]int{{8, 0}, {8, 6}, {8, 7}, {9, 0}, {10, 3}, {12, 0}} {
		require.NoError(t, launch(fake.Options{NoCompiler: cuda.NoCompiler, Capability: capability}), "%v", capability)
	}
	require.Empty(t, log.String())
	require.NoError(t, launch(fake.Options{NoCubins: true}))
	require.Equal(t, 1, strings.Count(log.String(), "the driver refuses compiled kernels"))
	require.Contains(t, log.String(), "device=cuda:0 kernels=softmax")
	require.Contains(t, log.String(), "CUDA_ERROR_NO_BINARY_FOR_GPU (209)")
	require.ErrorContains(t, launch(fake.Options{NoCubins: true, NoCompiler: cuda.NoCompiler}),
		"CUDA_ERROR_JIT_COMPILER_NOT_FOUND (221)")
}

// TestPrepare holds that a prepared device loads nothing for a kernel or a product of training, and that no driver is
// asked to compile all kernels.
func TestPrepare(t *testing.T) {
	driver := fake.New(fake.Options{NoCompiler: cuda.NoCompiler})
	d, err := Open(driver, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	require.Zero(t, driver.Loaded(0))
	require.NoError(t, Prepare(d))
	want := 1 // the library of products
	for _, f := range kernels.Families() {
		if kernels.Assembled(f.Name) {
			want += 1 + len(f.Kernels)
		}
	}
	require.Equal(t, want, driver.Loaded(0))
	require.NoError(t, Prepare(d))
	for _, op := range []backend.Op{backend.OpSoftmax, backend.OpMatMul} {
		require.Nil(t, backendtest.Launch(d, d.NewStream(), op, dtype.Float32))
	}
	require.Equal(t, want, driver.Loaded(0))

	require.NoError(t, Prepare(simulated(t, fake.Options{NoCompiler: cuda.NoCompiler, Capability: noCubin})))
	require.NoError(t, Prepare(simulated(t, fake.Options{NoCubins: true})))
	require.ErrorContains(t, Prepare(simulated(t, fake.Options{NoCubins: true, NoCompiler: cuda.NoCompiler})),
		"CUDA_ERROR_JIT_COMPILER_NOT_FOUND (221)")
}
