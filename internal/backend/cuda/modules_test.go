// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/backend/backendtest"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// TestDriverWithoutACompiler holds that the error of a driver that cannot compile kernels says what it lacks.
func TestDriverWithoutACompiler(t *testing.T) {
	t.Setenv("NVIDIA_DRIVER_CAPABILITIES", "utility")
	launch := func(code int) string {
		d := simulated(t, fake.Options{NoCompiler: code})
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
