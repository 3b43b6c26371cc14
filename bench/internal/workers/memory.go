// SPDX-License-Identifier: Apache-2.0

//go:build unix

package workers

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// Memory reads what this process holds now, with shared pages divided among those who share them, and the most that it
// held; 0 where Linux does not tell.
func Memory() (pss, peak int64) {
	debug.FreeOSMemory()
	return field("/proc/self/smaps_rollup", "Pss:"), field("/proc/self/status", "VmHWM:")
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
