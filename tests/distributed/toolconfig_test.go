// SPDX-License-Identifier: Apache-2.0

//go:build unix

package distributed

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestConfigurationFilesTrain trains on two processes with files of DeepSpeed and accelerate as they are, and requires
// the bits of one process that is told the same by flags. Files that ask for less must not have them.
func TestConfigurationFilesTrain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tools := func(name string) string {
		path, err := filepath.Abs(filepath.Join(root, "args", "testdata", "tools", name))
		require.NoError(t, err)
		return path
	}
	run := func(name string, line func(argv []string) []string, flags ...string) []byte {
		out := filepath.Join(dir, name)
		succeed(t, line(tiny(out, flags...)))
		return read(t, out, "model.safetensors")
	}
	two := func(argv []string) []string { return launched(2, argv) }

	deepSpeed := []string{"--lr_scheduler_type", "constant_with_warmup", "--fp16"}
	ours := []string{"--lr_scheduler_type", "WarmupLR", "--fp16", "--fp16_growth_interval", "1000",
		"--fp16_hysteresis", "2", "--fp16_loss_scaler", "deepspeed"}
	want := run("log", plain, ours...)
	for _, name := range []string{"ds_config_zero2.json", "ds_config_zero3.json"} {
		got := run(name, two, slices.Concat(deepSpeed, []string{"--deepspeed", tools(name)})...)
		require.True(t, bytes.Equal(want, got), name)
	}
	linear := run("linear", plain, append(ours, "--lr_scheduler_kwargs", `{"warmup_type": "linear"}`)...)
	require.False(t, bytes.Equal(want, linear), "the shape of the warm-up must matter")

	want = run("bf16", plain, "--bf16", "--global_train_batch_size", "16")
	require.False(t, bytes.Equal(want, run("float32", plain, "--global_train_batch_size", "16")), "bf16 must matter")
	for name, flags := range map[string][]string{
		"deepspeed.yaml": nil, // two processes on this host
		"fsdp.yaml":      {"--nproc_per_node", "2", "--nnodes", "1", "--standalone"},
	} {
		got := run(name, func(argv []string) []string {
			return slices.Concat([]string{lockstep, "launch", "--config_file", tools(name)}, flags, []string{"--", clm},
				argv)
		}, "--global_train_batch_size", "16")
		require.True(t, bytes.Equal(want, got), name)
	}
}
