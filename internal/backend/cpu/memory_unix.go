//go:build unix

package cpu

import "golang.org/x/sys/unix"

// mapMemory takes n zeroed bytes from the system, aligned to a page.
func mapMemory(n int) ([]byte, error) {
	return unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
}

func unmapMemory(mem []byte) { _ = unix.Munmap(mem) } // fails only for what mapMemory did not give
