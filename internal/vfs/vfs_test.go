// SPDX-License-Identifier: Apache-2.0

package vfs_test

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/stretchr/testify/require"
)

// conform runs f on the real file system and on Mem, which must not be told apart.
func conform(t *testing.T, f func(t *testing.T, fsys vfs.FS, dir string)) {
	t.Run("os", func(t *testing.T) { f(t, vfs.OS, t.TempDir()) })
	t.Run("mem", func(t *testing.T) {
		fsys := vfs.NewMem()
		dir := filepath.FromSlash("/a/b")
		require.NoError(t, vfs.MkdirAll(fsys, dir))
		f(t, fsys, dir)
	})
}

func names(t *testing.T, fsys vfs.FS, dir string) []string {
	t.Helper()
	entries, err := fsys.ReadDir(dir)
	require.NoError(t, err)
	list := []string{}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func content(t *testing.T, fsys vfs.FS, name string) string {
	t.Helper()
	data, err := vfs.ReadFile(fsys, name, 1<<20)
	require.NoError(t, err)
	return string(data)
}

func TestFilesAreWrittenAndRead(t *testing.T) {
	conform(t, func(t *testing.T, fsys vfs.FS, dir string) {
		name := filepath.Join(dir, "x")
		require.NoError(t, vfs.WriteFile(fsys, name, []byte("hello")))
		require.ErrorIs(t, vfs.WriteFile(fsys, name, []byte("others")), fs.ErrExist,
			"an existing file is nobody's to write")
		require.Equal(t, "hello", content(t, fsys, name))

		info, err := fsys.Stat(name)
		require.NoError(t, err)
		require.False(t, info.IsDir())
		require.EqualValues(t, 5, info.Size())
		require.Equal(t, "x", info.Name())

		f, err := fsys.Open(name)
		require.NoError(t, err)
		p := make([]byte, 3)
		n, err := f.ReadAt(p, 1)
		require.NoError(t, err)
		require.Equal(t, "ell", string(p[:n]))
		n, err = f.ReadAt(p, 3)
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, "lo", string(p[:n]))
		_, err = f.ReadAt(p, 5)
		require.ErrorIs(t, err, io.EOF)
		_, err = f.ReadAt(p, -1)
		require.Error(t, err)
		all, err := io.ReadAll(f)
		require.NoError(t, err)
		require.Equal(t, "hello", string(all))
		_, err = f.Write([]byte("x"))
		require.Error(t, err)
		info, err = f.Stat()
		require.NoError(t, err)
		require.EqualValues(t, 5, info.Size())
		require.NoError(t, f.Close())
		require.ErrorIs(t, f.Close(), fs.ErrClosed)

		_, err = vfs.ReadFile(fsys, name, 4)
		require.ErrorContains(t, err, "too large")
		_, err = vfs.ReadFile(fsys, name, 5)
		require.NoError(t, err)
	})
}

func TestMissingAndExistingNames(t *testing.T) {
	conform(t, func(t *testing.T, fsys vfs.FS, dir string) {
		no, file, sub := filepath.Join(dir, "no"), filepath.Join(dir, "file"), filepath.Join(dir, "sub")
		require.NoError(t, vfs.WriteFile(fsys, file, nil))
		require.NoError(t, fsys.Mkdir(sub))

		_, err := fsys.Open(no)
		require.ErrorIs(t, err, fs.ErrNotExist)
		_, err = fsys.Stat(no)
		require.ErrorIs(t, err, fs.ErrNotExist)
		_, err = fsys.ReadDir(no)
		require.ErrorIs(t, err, fs.ErrNotExist)
		_, err = fsys.ReadDir(file)
		require.Error(t, err)
		require.ErrorIs(t, fsys.Remove(no), fs.ErrNotExist)
		require.ErrorIs(t, fsys.Rename(no, file), fs.ErrNotExist)
		require.ErrorIs(t, fsys.Mkdir(sub), fs.ErrExist)
		require.ErrorIs(t, fsys.Mkdir(filepath.Join(no, "x")), fs.ErrNotExist)
		_, err = fsys.Create(filepath.Join(no, "x"))
		require.ErrorIs(t, err, fs.ErrNotExist)
		_, err = fsys.Create(filepath.Join(file, "x"))
		require.Error(t, err)
		_, err = fsys.Create(sub)
		require.Error(t, err)
	})
}

func TestRename(t *testing.T) {
	conform(t, func(t *testing.T, fsys vfs.FS, dir string) {
		path := func(s string) string { return filepath.Join(dir, filepath.FromSlash(s)) }
		require.NoError(t, vfs.WriteFile(fsys, path("a"), []byte("a")))
		require.NoError(t, vfs.WriteFile(fsys, path("b"), []byte("b")))
		require.NoError(t, fsys.Rename(path("a"), path("b")), "a file replaces a file")
		require.Equal(t, "a", content(t, fsys, path("b")))

		require.NoError(t, fsys.Mkdir(path("d")))
		require.NoError(t, fsys.Rename(path("b"), path("d/b")), "from one folder to another")
		require.NoError(t, fsys.Rename(path("d"), path("e")), "a folder takes its files along")
		require.Equal(t, []string{"e"}, names(t, fsys, dir))
		require.Equal(t, "a", content(t, fsys, path("e/b")))

		require.NoError(t, fsys.Mkdir(path("f")))
		require.Error(t, fsys.Rename(path("e"), path("f")), "an existing folder is never replaced")
		require.NoError(t, vfs.WriteFile(fsys, path("g"), nil))
		require.Error(t, fsys.Rename(path("e"), path("g")))
		require.Error(t, fsys.Rename(path("g"), path("e")))
		require.Equal(t, []string{"e", "f", "g"}, names(t, fsys, dir))
	})
}

func TestRemoveAndRemoveAll(t *testing.T) {
	conform(t, func(t *testing.T, fsys vfs.FS, dir string) {
		path := func(s string) string { return filepath.Join(dir, filepath.FromSlash(s)) }
		require.NoError(t, vfs.MkdirAll(fsys, path("d/e/f")))
		require.NoError(t, vfs.MkdirAll(fsys, path("d/e/f")))
		require.NoError(t, vfs.WriteFile(fsys, path("d/e/x"), nil))
		require.NoError(t, vfs.WriteFile(fsys, path("d/y"), nil))
		require.Error(t, vfs.MkdirAll(fsys, path("d/y")), "a file is in the way")
		require.Error(t, fsys.Remove(path("d")), "not empty")
		require.NoError(t, vfs.RemoveAll(fsys, path("d")))
		require.NoError(t, vfs.RemoveAll(fsys, path("d")), "gone already")
		require.Empty(t, names(t, fsys, dir))
		require.NoError(t, fsys.SyncDir(dir))
	})
}

func TestCreateDoesNotFollowLinks(t *testing.T) {
	dir := t.TempDir()
	victim, link := filepath.Join(dir, "victim"), filepath.Join(dir, "link")
	require.NoError(t, os.WriteFile(victim, []byte("precious"), 0o644))
	require.NoError(t, os.Symlink(victim, link))
	require.ErrorIs(t, vfs.WriteFile(vfs.OS, link, []byte("x")), fs.ErrExist)
	require.NoError(t, os.Remove(victim))
	require.ErrorIs(t, vfs.WriteFile(vfs.OS, link, []byte("x")), fs.ErrExist, "nor those that lead nowhere")
	require.NoFileExists(t, victim)
}

func TestLocks(t *testing.T) {
	conform(t, func(t *testing.T, fsys vfs.FS, dir string) {
		name := filepath.Join(dir, ".lock")
		first, err := fsys.Lock(name)
		require.NoError(t, err)
		require.True(t, first.Exclusive())
		require.NoError(t, first.Write([]byte("the first holder")))
		require.NoError(t, first.Write([]byte("the first")))

		second, err := fsys.Lock(name)
		require.ErrorIs(t, err, vfs.ErrLocked)
		text, err := second.Read()
		require.NoError(t, err)
		require.Equal(t, "the first", string(text))
		require.ErrorIs(t, second.Write([]byte("x")), vfs.ErrLocked)
		require.NoError(t, second.Close(), "which does not give up the other's")
		_, err = fsys.Lock(name)
		require.ErrorIs(t, err, vfs.ErrLocked)

		require.NoError(t, first.Close())
		require.Empty(t, names(t, fsys, dir), "nothing is left")
		third, err := fsys.Lock(name)
		require.NoError(t, err)
		text, err = third.Read()
		require.NoError(t, err)
		require.Empty(t, text)
		require.NoError(t, third.Close())
	})
}

// Many that lock, write and remove one file at the same time never hold it together.
func TestLocksUnderContention(t *testing.T) {
	name := filepath.Join(t.TempDir(), ".lock")
	var held, taken atomic.Int64
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 200 {
				l, err := vfs.OS.Lock(name)
				if err == nil {
					if held.Add(1) != 1 {
						t.Error("two hold the lock")
					}
					taken.Add(1)
					held.Add(-1)
				}
				if l != nil {
					_ = l.Close()
				}
			}
		})
	}
	group.Wait()
	require.Positive(t, taken.Load())
}

// Replace gives a name new contents in one step, does not write through a link, and leaves no other file behind.
func TestReplace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	require.NoError(t, os.Mkdir(dir, 0o700))
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	require.NoError(t, vfs.Replace(target, []byte("old")))
	require.NoError(t, os.Symlink(target, link))
	require.NoError(t, vfs.Replace(link, []byte("new")))
	require.Equal(t, "old", content(t, vfs.OS, target))
	require.Equal(t, "new", content(t, vfs.OS, link))
	require.Error(t, vfs.Replace(dir, []byte("a folder is not replaced")))
	require.Equal(t, []string{"link", "target"}, names(t, vfs.OS, dir))
	require.Equal(t, []string{"dir"}, names(t, vfs.OS, filepath.Dir(dir)))
}
