// SPDX-License-Identifier: Apache-2.0

package hostmemory

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestMemTotal(t *testing.T) {
	require.Equal(t, uint64(16<<20), memTotal("Foo: 1 kB\nMemTotal:       16384 kB\nMemFree: 2 kB\n"))
	require.Zero(t, memTotal("MemFree: 2 kB\n"))
	require.Zero(t, memTotal("MemTotal: many\n"))
}

func TestCgroupLimit(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	for _, row := range []struct {
		name  string
		root  fstest.MapFS
		limit uint64
		at    string
	}{
		{"none", fstest.MapFS{}, 0, ""},
		{"version 2", fstest.MapFS{"proc/self/cgroup": file("0::/a/b\n"),
			"sys/fs/cgroup/a/b/memory.max": file("4096\n"), "sys/fs/cgroup/memory.max": file("max\n")},
			4096, "sys/fs/cgroup/a/b/memory.max"},
		{"version 2, no limit", fstest.MapFS{"proc/self/cgroup": file("0::/a\n"),
			"sys/fs/cgroup/a/memory.max": file("max\n")}, 0, ""},
		{"version 2, the path of the host", fstest.MapFS{"proc/self/cgroup": file("0::/docker/x\n"),
			"sys/fs/cgroup/memory.max": file("8192\n")},
			8192, "sys/fs/cgroup/memory.max"},
		{"version 1", fstest.MapFS{"proc/self/cgroup": file("5:cpu,cpuacct:/c\n4:memory:/m\n0::/\n"),
			"sys/fs/cgroup/memory/m/memory.limit_in_bytes": file("12288\n")},
			12288, "sys/fs/cgroup/memory/m/memory.limit_in_bytes"},
	} {
		limit, at := cgroupLimit(row.root)
		require.Equal(t, row.limit, limit, row.name)
		require.Equal(t, row.at, at, row.name)
	}
}
