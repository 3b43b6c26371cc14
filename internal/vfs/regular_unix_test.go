// SPDX-License-Identifier: Apache-2.0

//go:build unix

package vfs_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

func TestOpenTakesFilesAlone(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "config.json")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(pipe, link))
	for _, name := range []string{pipe, link, os.DevNull} {
		_, err := vfs.ReadFile(vfs.OS, name, 100)
		require.ErrorContains(t, err, "want a file", name)
	}
	_, err := vfs.ReadFile(vfs.OS, dir, 100)
	require.Error(t, err)

	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("{}"), 0o600))
	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink(file, link))
	text, err := vfs.ReadFile(vfs.OS, link, 100)
	require.NoError(t, err)
	require.Equal(t, "{}", string(text))
}
