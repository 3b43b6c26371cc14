// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tests/internal/clmtest"
)

// Without the tag cuda nothing of CUDA is in the program. With it the program starts where there is no driver, says
// so if it is asked for a device, and computes on the CPU if it may choose.
func TestCUDA(t *testing.T) {
	plain, err := program()
	require.NoError(t, err)
	text, err := os.ReadFile(plain)
	require.NoError(t, err)
	for _, name := range []string{"libcuda.so", "cublasLt", "cuLaunchKernel", ".visible .entry", "nvmlDeviceGet",
		"go-nvml"} {
		require.NotContains(t, string(text), name)
	}

	dir := t.TempDir()
	tagged, err := clmtest.Build(root, "examples/clm", dir, "-tags", "cuda")
	require.NoError(t, err)
	require.Less(t, bytesOf(t, tagged)-bytesOf(t, plain), int64(8e6), "what the tag adds to a program")
	f, err := elf.Open(tagged)
	require.NoError(t, err)
	libs, err := f.ImportedLibraries()
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NotContains(t, libs, "libcuda.so.1", "it is opened at run time")

	run := func(device string) result {
		cmd := command(t, tiny(t, filepath.Join(dir, device), "--device", device, "--max_steps", "2",
			"--eval_strategy", "no", "--save_strategy", "no")...)
		cmd.Path, cmd.Args[0] = tagged, tagged
		return finish(t, cmd)
	}
	r := run("auto")
	require.Equal(t, 0, r.code, "%s", r.stderr)
	if exec.Command("nvidia-smi", "-L").Run() == nil {
		return // the machine has devices
	}
	require.Contains(t, r.stdout+r.stderr, "no NVIDIA driver")
	requireOneError(t, run("cuda"), 1, "CUDA cannot be used: no NVIDIA driver: libcuda.so.1 cannot be opened")
}

func bytesOf(t *testing.T, file string) int64 {
	t.Helper()
	info, err := os.Stat(file)
	require.NoError(t, err)
	return info.Size()
}
