// SPDX-License-Identifier: Apache-2.0

package hostmemory

import "golang.org/x/sys/unix"

// machineMemory is the machine's memory in bytes; 0 if it cannot be read.
func machineMemory() uint64 {
	n, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return 0
	}
	return n
}
