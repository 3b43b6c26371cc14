// SPDX-License-Identifier: Apache-2.0

//go:build unix

package workers

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
)

// Memory reads what this process holds now, with shared pages divided among those who share them, and the most that it
// held; 0 where Linux does not tell.
func Memory() (pss, peak int64) {
	debug.FreeOSMemory()
	return field("/proc/self/smaps_rollup", "Pss:"), field("/proc/self/status", "VmHWM:")
}

// Shares are what a process's memory is made of: its proportional set (PSS) in bytes.
type Shares struct {
	PSS    int64
	Files  int64 // the program, divided among the processes that run it
	Shared int64 // memory that ranks share
	Go     int64 // of Go's runtime: heap, stacks and tables
}

// MemoryShares is Memory by use; the rest is what devices have from the system.
func MemoryShares() (s Shares) {
	debug.FreeOSMemory()
	const rollup = "/proc/self/smaps_rollup"
	s.PSS, s.Files, s.Shared = field(rollup, "Pss:"), field(rollup, "Pss_File:"), field(rollup, "Pss_Shmem:")
	list := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(list)
	s.Go = int64(list[0].Value.Uint64() - list[1].Value.Uint64())
	return s
}

// field reads a line in kB of a file of /proc.
func field(path, name string) int64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(text), "\n"+name)
	line, _, _ := strings.Cut(after, "kB")
	n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		return 0
	}
	return n << 10
}
