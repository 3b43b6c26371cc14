// SPDX-License-Identifier: Apache-2.0

package env

import (
	"bufio"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
)

// Host is what this process may use of the machine.
type Host struct {
	// Cores is the number of processors that the process may run on at once: affinity and
	// the cgroup's limit count, and GOMAXPROCS if it is set.
	Cores int `json:"cores"`
	// CoresSource says which of them decided.
	CoresSource string `json:"cores_source"`
	// Memory is the limit in bytes; 0 where it is not known.
	Memory uint64 `json:"memory"`
	// MemorySource says whether that is the machine's memory or the cgroup's limit.
	MemorySource string `json:"memory_source"`
}

// ReadHost looks at the machine.
func ReadHost(lookup Lookup) Host {
	h := Host{Cores: runtime.GOMAXPROCS(0), CoresSource: "processors that this process may use"}
	switch {
	case get(lookup, "GOMAXPROCS") != "":
		h.CoresSource = "GOMAXPROCS"
	case h.Cores < runtime.NumCPU():
		h.CoresSource = "the cgroup's limit of " + strconv.Itoa(runtime.NumCPU()) + " processors"
	}
	if h.Memory = machineMemory(); h.Memory > 0 {
		h.MemorySource = "the machine"
	}
	if limit, file := cgroupLimit(os.DirFS("/")); limit > 0 && (h.Memory == 0 || limit < h.Memory) {
		h.Memory, h.MemorySource = limit, "/"+file
	}
	return h
}

// CgroupFile opens a file of this process's cgroup, of version 2 or else of version 1's
// memory controller; root is the file system's root. In a container the cgroup's path may
// lie outside of what is mounted; the mount's root is then the process's own. It is for package launch.
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
