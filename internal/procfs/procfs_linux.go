// SPDX-License-Identifier: Apache-2.0

// Package procfs reads the processes of a host from Linux's /proc.
package procfs

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Processes lists the processes that this one can see.
func Processes() (pids []int) {
	entries, _ := os.ReadDir("/proc") // without it there are none
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Stat reads a process's state, as ps prints it, its parent and its process group.
func Stat(pid int) (state byte, parent, group int, ok bool) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, 0, 0, false
	}
	// the name before them, in parentheses, may itself contain some
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 3 {
		return 0, 0, 0, false
	}
	parent, err1 := strconv.Atoi(fields[1])
	group, err2 := strconv.Atoi(fields[2])
	return fields[0][0], parent, group, err1 == nil && err2 == nil
}
