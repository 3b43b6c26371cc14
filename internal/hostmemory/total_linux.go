// SPDX-License-Identifier: Apache-2.0

package hostmemory

import "os"

// machineMemory is the machine's memory in bytes; 0 if it cannot be read.
func machineMemory() uint64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	return memTotal(string(text))
}
