//go:build unix

package cpu

import "golang.org/x/sys/unix"

// hugePage is the size of a large page where the processor has them, and the system gives them to who asks.
const hugePage = 2 << 20

// mapMemory takes n zeroed bytes from the system, aligned to a page. Blocks of several large pages are asked for in such: with small ones, prefetching ends
// every 4 KiB, which costs the streaming kernels up to half of their speed.
func mapMemory(n int) ([]byte, error) {
	size := n
	if n >= 2*hugePage {
		size = (n + hugePage - 1) / hugePage * hugePage // a whole number is what Linux aligns
	}
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	if n >= 2*hugePage {
		wantHugePages(mem)
	}
	return mem[:n], nil
}

func unmapMemory(mem []byte) { _ = unix.Munmap(mem[:cap(mem)]) } // fails only for what mapMemory did not give
