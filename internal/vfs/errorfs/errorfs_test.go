// SPDX-License-Identifier: Apache-2.0

package errorfs_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/internal/vfs/errorfs"
	"github.com/stretchr/testify/require"
)

// program uses every operation once and returns the first error.
func program(fsys vfs.FS) error {
	if err := fsys.Mkdir("d"); err != nil {
		return err
	}
	if err := vfs.WriteFile(fsys, "d/a", []byte("12345678")); err != nil {
		return err
	}
	if err := fsys.Rename("d/a", "d/b"); err != nil {
		return err
	}
	if err := fsys.SyncDir("d"); err != nil {
		return err
	}
	f, err := fsys.Open("d/b")
	if err != nil {
		return err
	}
	if _, err := f.ReadAt(make([]byte, 4), 0); err != nil {
		return err
	}
	if _, err := f.Read(make([]byte, 4)); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if _, err := fsys.Stat("d"); err != nil {
		return err
	}
	if _, err := fsys.ReadDir("d"); err != nil {
		return err
	}
	return fsys.Remove("d/b")
}

func TestEveryOperationIsSeen(t *testing.T) {
	var log []string
	fsys := errorfs.Wrap(vfs.NewMem(), func(op errorfs.Op) error {
		log = append(log, op.String())
		return nil
	})
	require.NoError(t, program(fsys))
	require.Equal(t, strings.Split(strings.TrimSpace(`
mkdir: d
create: d/a
write: d/a (8 bytes)
sync: d/a
close: d/a
rename: d/a -> d/b
sync-dir: d
open: d/b
read: d/b (4 bytes)
read: d/b (4 bytes)
close: d/b
stat: d
read-dir: d
remove: d/b`), "\n"), log)
}

func TestEachOperationFailsInTurn(t *testing.T) {
	n := 1
	for ; ; n++ {
		inject, reached := errorfs.Nth(n, nil, errorfs.ErrIO)
		err := program(errorfs.Wrap(vfs.NewMem(), inject))
		if !reached() {
			require.NoError(t, err)
			break
		}
		require.ErrorIs(t, err, syscall.EIO, "operation %d", n)
	}
	require.Equal(t, 15, n, "fourteen operations")
}

func TestShortWriteLeavesHalf(t *testing.T) {
	m := vfs.NewMem()
	inject, _ := errorfs.Nth(1, func(k errorfs.Kind) bool { return k == errorfs.Write }, errorfs.ErrShortWrite)
	err := vfs.WriteFile(errorfs.Wrap(m, inject), "a", []byte("12345678"))
	require.ErrorIs(t, err, syscall.ENOSPC)
	data, err := vfs.ReadFile(m, "a", 100)
	require.NoError(t, err)
	require.Equal(t, "1234", string(data))
}

func TestFromGoesOnFailing(t *testing.T) {
	inject, _ := errorfs.From(2, errorfs.Kind.Changes, errorfs.ErrCrashed)
	fsys := errorfs.Wrap(vfs.NewMem(), inject)
	require.NoError(t, fsys.Mkdir("a"))
	_, err := fsys.Stat("a")
	require.NoError(t, err)
	for range 3 {
		require.ErrorIs(t, fsys.Mkdir("b"), errorfs.ErrCrashed)
	}
	_, err = fsys.Stat("a")
	require.NoError(t, err, "reading changes nothing")
}
