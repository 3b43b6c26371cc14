//go:build !unix

package cpu

import "unsafe"

// mapMemory takes n zeroed bytes, aligned; here from the Go heap, as bytes, which the collector does not scan.
func mapMemory(n int) ([]byte, error) {
	mem := make([]byte, n+alignment)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) & (alignment - 1)
	return mem[skip : skip+n : skip+n], nil
}

func unmapMemory([]byte) {}
