// SPDX-License-Identifier: Apache-2.0

package cpu

import "golang.org/x/sys/unix"

// wantHugePages asks for large pages. A system that has none, or keeps them for others, says no: the memory is as good
// with small ones.
func wantHugePages(mem []byte) { _ = unix.Madvise(mem, unix.MADV_HUGEPAGE) }

// discardMemory gives whole pages back to the system, which puts zeroed ones there when they are touched again. It
// reports whether it did.
func discardMemory(mem []byte) bool { return unix.Madvise(mem, unix.MADV_DONTNEED) == nil }
