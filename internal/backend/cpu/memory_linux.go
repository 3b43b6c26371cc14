// SPDX-License-Identifier: Apache-2.0

package cpu

import "golang.org/x/sys/unix"

// discardMemory gives whole pages back to the system, which puts zeroed ones there when they are touched again. It
// reports whether it did.
func discardMemory(mem []byte) bool { return unix.Madvise(mem, unix.MADV_DONTNEED) == nil }
