// SPDX-License-Identifier: Apache-2.0

package callbacks

import (
	"os"
	"strconv"
	"strings"
)

// residentMemory returns VmRSS and VmHWM of /proc/self/status in bytes, 0 where they are not available.
func residentMemory() (rss, peak int64) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, 0
	}
	return statusBytes(string(text), "VmRSS:"), statusBytes(string(text), "VmHWM:")
}

// statusBytes reads a line like "VmRSS:     1234 kB".
func statusBytes(status, key string) int64 {
	for line := range strings.Lines(status) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == key {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}
