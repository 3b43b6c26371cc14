// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package cpu

import "unsafe"

// segmentBytes are taken at a time.
const segmentBytes = 16 << 20

// reserveMemory takes n zeroed bytes, aligned; here from the Go heap, as bytes, which the collector does not scan.
func reserveMemory(n int) ([]byte, error) {
	mem := make([]byte, n+alignment)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) & (alignment - 1)
	return mem[skip : skip+n : skip+n], nil
}

func commitMemory([]byte) error { return nil }

func unmapMemory([]byte) {}
