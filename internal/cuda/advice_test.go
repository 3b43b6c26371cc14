// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// unset removes a variable until the test ends.
func unset(t *testing.T, name string) {
	t.Setenv(name, "")
	require.NoError(t, os.Unsetenv(name))
}

func TestContainerAdvice(t *testing.T) {
	unset(t, envCapabilities)
	require.Empty(t, ContainerAdvice(), "no container")
	for _, value := range []string{"all", "compute", "utility, compute", "graphics,compute,utility"} {
		t.Setenv(envCapabilities, value)
		require.Empty(t, ContainerAdvice(), value)
	}
	t.Setenv(envCapabilities, "utility,computer")
	require.Equal(t, `: NVIDIA_DRIVER_CAPABILITIES is "utility,computer" in this container: want compute among them, `+
		"as in NVIDIA_DRIVER_CAPABILITIES=compute,utility", ContainerAdvice())
}

func TestCompilerAdvice(t *testing.T) {
	unset(t, envCapabilities)
	unset(t, envDisableJIT)
	require.Empty(t, CompilerAdvice(errors.New("no")))
	require.Empty(t, CompilerAdvice(&Error{Code: OutOfMemory}))
	err := fmt.Errorf("loading: %w", &Error{Code: NoCompiler})
	const missing = ": want libnvidia-ptxjitcompiler.so.1, which comes with the driver and compiles the kernels"
	require.Equal(t, missing, CompilerAdvice(err))
	t.Setenv(envCapabilities, "utility")
	require.Equal(t, missing+ContainerAdvice(), CompilerAdvice(err))
	t.Setenv(envDisableJIT, "0")
	require.Contains(t, CompilerAdvice(err), "ptxjitcompiler")
	t.Setenv(envDisableJIT, "1")
	for _, code := range []int{NoCompiler, CompilerDisabled} {
		require.Equal(t, `: CUDA_DISABLE_PTX_JIT is "1": want it unset, since the driver compiles the kernels`,
			CompilerAdvice(&Error{Code: code}))
	}
}
