// SPDX-License-Identifier: Apache-2.0

package vfs_test

import (
	"math/rand/v2"
	"testing"

	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/stretchr/testify/require"
)

func write(t *testing.T, fsys vfs.FS, name, data string, sync bool) {
	t.Helper()
	f, err := fsys.Create(name)
	require.NoError(t, err)
	_, err = f.Write([]byte(data))
	require.NoError(t, err)
	if sync {
		require.NoError(t, f.Sync())
	}
	require.NoError(t, f.Close())
}

func TestCrashLosesWhatWasNotSynced(t *testing.T) {
	m := vfs.NewMem()
	require.NoError(t, vfs.MkdirAll(m, "d"))
	write(t, m, "d/synced", "1", true)
	write(t, m, "d/unsynced", "2", false)
	require.Empty(t, names(t, m.CrashClone(nil), "d"), "names need SyncDir")

	require.NoError(t, m.SyncDir("d"))
	c := m.CrashClone(nil)
	require.Equal(t, []string{"synced", "unsynced"}, names(t, c, "d"))
	require.Equal(t, "1", content(t, c, "d/synced"))
	require.Equal(t, "", content(t, c, "d/unsynced"), "contents need Sync")

	require.NoError(t, m.Rename("d/synced", "d/renamed"))
	require.NoError(t, m.Remove("d/unsynced"))
	require.Equal(t, []string{"synced", "unsynced"}, names(t, m.CrashClone(nil), "d"))
	require.NoError(t, m.SyncDir("d"))
	require.Equal(t, []string{"renamed"}, names(t, m.CrashClone(nil), "d"))

	write(t, m, "d/new", "2", true)
	require.NoError(t, m.Rename("d/new", "d/renamed"))
	require.Equal(t, "1", content(t, m.CrashClone(nil), "d/renamed"))
	require.Equal(t, "2", content(t, m, "d/renamed"), "the original goes on")
}

func TestCrashKeepsRenamesAtomic(t *testing.T) {
	m := vfs.NewMem()
	require.NoError(t, vfs.MkdirAll(m, "d"))
	write(t, m, "d/a", "new", true)
	write(t, m, "d/b", "old", true)
	require.NoError(t, m.SyncDir("d"))
	require.NoError(t, m.Rename("d/a", "d/b"))
	outcomes := map[string]int{}
	for seed := range uint64(50) {
		c := m.CrashClone(rand.New(rand.NewPCG(seed, 0)))
		got := content(t, c, "d/b")
		if got == "new" {
			require.Equal(t, []string{"b"}, names(t, c, "d"))
		} else {
			require.Equal(t, []string{"a", "b"}, names(t, c, "d"))
		}
		outcomes[got]++
	}
	require.Len(t, outcomes, 2, "both outcomes occur: %v", outcomes)
}

func TestCrashKeepsAnyPartOfTheUnsynced(t *testing.T) {
	m := vfs.NewMem()
	write(t, m, "f", "12", true)
	require.NoError(t, m.SyncDir("."))
	f, err := m.Open("f")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	write(t, m, "g", "abc", false)
	outcomes := map[string]int{}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := m.CrashClone(r)
		require.Equal(t, "12", content(t, c, "f"))
		got := "absent"
		if len(names(t, c, ".")) == 2 {
			got = content(t, c, "g")
		}
		outcomes[got]++
	}
	require.Len(t, outcomes, 5, "absent, and each prefix of abc: %v", outcomes)
}
