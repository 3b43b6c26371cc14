// SPDX-License-Identifier: Apache-2.0

package hostmemory

import "golang.org/x/sys/unix"

// WantHugePages asks for large pages for memory that begins at one. A system that has none, or keeps them for others,
// says no: the memory is as good with small ones.
func WantHugePages(mem []byte) { _ = unix.Madvise(mem, unix.MADV_HUGEPAGE) }
