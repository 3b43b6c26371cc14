// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cpu

import (
	"golang.org/x/sys/unix"

	"github.com/lockstep-ml/lockstep/internal/hostmemory"
)

// segmentBytes of address space are reserved at a time. They cost nothing until they are committed and touched.
const segmentBytes = 16 << (10 + 10*(^uint(0)>>63) + 10) // 16 GiB, or 16 MiB where addresses have 32 bits

// reserveMemory takes n bytes of address space, aligned to a page. Large pages are asked for: with small ones,
// prefetching ends every 4 KiB, which costs the streaming kernels up to half of their speed.
func reserveMemory(n int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	hostmemory.WantHugePages(mem)
	return mem, nil
}

// commitMemory makes whole pages of reserved memory usable; they are zero.
func commitMemory(mem []byte) error { return unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE) }

// unmapMemory gives back what reserveMemory gave; it fails for nothing else.
func unmapMemory(mem []byte) { _ = unix.Munmap(mem) }
