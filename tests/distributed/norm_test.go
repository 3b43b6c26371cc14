// SPDX-License-Identifier: Apache-2.0

//go:build unix

package distributed

import (
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSameBitsBatchNorm requires weights, running statistics, optimizer and logged figures of one
// process from every number of ranks and every engine, for a model with batch norm.
func TestSameBitsBatchNorm(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one := filepath.Join(dir, "one")
	line := func(out string, more ...string) []string {
		return append([]string{vision}, tinyImages(filepath.Join(dir, out), more...)...)
	}
	ranks := func(n, out, engine string) []string {
		return append([]string{lockstep, "launch", "--nproc_per_node", n, "--"},
			line(out, "--log_level", "info", "--ddp_backend", engine)...)
	}
	succeed(t, line("one"))
	require.Contains(t, string(read(t, one, "model.safetensors")),
		`"resnet.embedder.embedder.normalization.running_var"`)
	for name, argv := range map[string][]string{
		"4 goroutines":    line("4 goroutines", "--num_replicas", "4"),
		"8 goroutines":    line("8 goroutines", "--num_replicas", "8", "--gradient_checkpointing"),
		"2 processes shm": ranks("2", "2 processes shm", "shm"),
		"4 processes tcp": ranks("4", "4 processes tcp", "tcp"),
	} {
		t.Run(name, func(t *testing.T) {
			p := succeed(t, argv)
			if m := regexp.MustCompile(`processes (\w+)$`).FindStringSubmatch(name); m != nil {
				require.Contains(t, p.stderr.String(), "engine "+m[1])
			}
			requireSameEnd(t, one, filepath.Join(dir, name), 20)
		})
	}
	apart := "apart"
	succeed(t, line(apart, "--num_replicas", "2", "--ddp_broadcast_buffers=false"))
	require.NotEqual(t, read(t, one, "model.safetensors"), read(t, dir, apart, "model.safetensors"),
		"the statistics of all ranks must matter")
}

// TestResumeBatchNorm resumes on another number of ranks and requires the bits of a run that was
// never stopped, running statistics and all.
func TestResumeBatchNorm(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	line := func(out string, more ...string) []string {
		return append([]string{vision}, tinyImages(filepath.Join(dir, out), more...)...)
	}
	succeed(t, line("whole"))
	succeed(t, line("parts", "--num_replicas", "4", "--max_steps", "8"))
	succeed(t, line("parts", "--num_replicas", "2", "--resume_from_checkpoint", "last"))
	requireSameWeights(t, filepath.Join(dir, "whole"), filepath.Join(dir, "parts"), 20)
}

// tinyImages are the flags of a run of vision: eight micro-batches of two a step, which no
// epoch's number of samples is a multiple of.
func tinyImages(out string, more ...string) []string {
	return append([]string{
		"--data_dir", pictures, "--output_dir", out, "--width", "4", "--stages", "2", "--per_device_train_batch_size",
		"2", "--global_train_batch_size", "16",
		"--max_steps", "20", "--warmup_steps", "2", "--logging_steps", "1", "--save_strategy", "steps", "--save_steps",
		"4", "--save_total_limit", "none",
		"--lr_scheduler_type", "constant_with_warmup", "--learning_rate", "1e-2", "--report_to", "jsonl",
	}, more...)
}
