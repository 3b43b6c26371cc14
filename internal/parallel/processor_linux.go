// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// processor is the number of the processor that the caller runs on, at this moment.
func processor() int32 {
	var cpu uint32
	if _, _, e := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); e != 0 {
		return nowhere
	}
	return int32(cpu)
}
