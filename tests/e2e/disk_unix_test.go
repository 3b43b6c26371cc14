// SPDX-License-Identifier: Apache-2.0

//go:build unix

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFileSizeLimit runs into ulimit -f in the middle of a checkpoint, as into a full disk,
// but without needing one.
func TestFileSizeLimit(t *testing.T) {
	sh, err := exec.LookPath("sh")
	require.NoError(t, err)
	requireFailedSave(t, "file too large", func(t testing.TB, _ string, argv []string) result {
		cmd := command(t, argv...)
		// blocks of 512 bytes; the optimizer's file has 190 KB
		cmd.Args = append([]string{"sh", "-c", `ulimit -f 300 && exec "$@"`, "sh", cmd.Path}, argv...)
		cmd.Path = sh
		return finish(t, cmd)
	})
}

// requireFailedSave starts a run whose saves fail once there are checkpoints of steps 4 and
// 8, and requires one error, those checkpoints as they were, and a resume that ends as a run
// that was never disturbed. full runs the program with argv, which name the output folder
// out, and takes care that it runs out of room.
func requireFailedSave(t *testing.T, message string, full func(t testing.TB, out string, argv []string) result) {
	t.Helper()
	dir := t.TempDir()
	whole, out := filepath.Join(dir, "whole"), filepath.Join(dir, "out")
	flags := []string{"--save_steps", "4", "--save_total_limit", "none", "--max_new_tokens", "0"}
	succeed(t, tiny(t, whole, flags...)...)
	for _, c := range []string{"checkpoint-4", "checkpoint-8"} {
		require.NoError(t, os.CopyFS(filepath.Join(out, c), os.DirFS(filepath.Join(whole, c))))
	}
	r := full(t, out, tiny(t, out, append(flags, "--resume_from_checkpoint", "last")...))
	requireOneError(t, r, 1, "saving "+filepath.Join(out, "checkpoint-"), message)
	saved := latest(t, out)
	require.NotNil(t, saved)
	require.GreaterOrEqual(t, saved.Step, int64(8))
	require.Less(t, saved.Step, int64(20))
	left, err := filepath.Glob(filepath.Join(out, ".tmp-*"))
	require.NoError(t, err)
	require.Empty(t, left, "what was written of the checkpoint takes no more room")

	succeed(t, tiny(t, out, append(flags, "--resume_from_checkpoint", "last")...)...)
	requireSameEnd(t, whole, out, 20)
}
