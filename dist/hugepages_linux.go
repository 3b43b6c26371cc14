// SPDX-License-Identifier: Apache-2.0

package dist

import "golang.org/x/sys/unix"

// wantHugePages asks for large pages. A system that has none, or keeps them for others, says no: the memory is as good
// with small ones.
func wantHugePages(mem []byte) { _ = unix.Madvise(mem, unix.MADV_HUGEPAGE) }
