// SPDX-License-Identifier: Apache-2.0

// Package hostmemory reports how much memory this process may use: the machine's, or a cgroup's limit. It also asks the
// system for large pages.
package hostmemory

import (
	"bufio"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
)

// HugePage is the size of a large page of most machines, which the system gives to who asks.
const HugePage = 2 << 20

// Limit is the memory in bytes and where the number comes from, "the machine" or the path of a cgroup's file. It is 0
// where it is not known. The system is asked once.
func Limit() (bytes uint64, source string) {
	l := limit()
	return l.bytes, l.source
}

type known struct {
	bytes  uint64
	source string
}

var limit = sync.OnceValue(func() known {
	l := known{bytes: machineMemory()}
	if l.bytes > 0 {
		l.source = "the machine"
	}
	if n, file := cgroupLimit(os.DirFS("/")); n > 0 && (l.bytes == 0 || n < l.bytes) {
		l = known{n, "/" + file}
	}
	return l
})

// CgroupFile opens a file of this process's cgroup, of version 2 or else of version 1's
// memory controller; root is the file system's root. In a container the cgroup's path may
// lie outside of what is mounted; the mount's root is then the process's own.
func CgroupFile(root fs.FS, v2, v1 string) (text []byte, name string) {
	groups := cgroups(root)
	var candidates []string
	for _, mount := range []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"} {
		candidates = append(candidates, path.Join(mount, groups[""], v2), path.Join(mount, v2))
	}
	const memory = "sys/fs/cgroup/memory"
	candidates = append(candidates, path.Join(memory, groups["memory"], v1), path.Join(memory, v1))
	for _, c := range candidates {
		if text, err := fs.ReadFile(root, c); err == nil {
			return text, c
		}
	}
	return nil, ""
}

// cgroups maps controllers to this process's paths; "" is version 2's.
func cgroups(root fs.FS) map[string]string {
	m := map[string]string{}
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return m
	}
	for s := bufio.NewScanner(strings.NewReader(string(text))); s.Scan(); {
		if parts := strings.SplitN(s.Text(), ":", 3); len(parts) == 3 { // hierarchy:controllers:path
			for controller := range strings.SplitSeq(parts[1], ",") {
				m[controller] = parts[2]
			}
		}
	}
	return m
}

// cgroupLimit is the memory limit in bytes and the file that sets it; 0 for none.
func cgroupLimit(root fs.FS) (uint64, string) {
	text, name := CgroupFile(root, "memory.max", "memory.limit_in_bytes")
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil { // "max", or no file
		return 0, ""
	}
	return n, name
}

// memTotal finds the machine's memory in the text of /proc/meminfo, in bytes; 0 if it is
// not there.
func memTotal(meminfo string) uint64 {
	for line := range strings.Lines(meminfo) {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err == nil {
				return kib << 10
			}
		}
	}
	return 0
}
