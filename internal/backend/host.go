// SPDX-License-Identifier: Apache-2.0

package backend

// HostMemory is implemented by backends whose buffers are host memory that other
// packages may share: gradient buckets that collectives reduce where they lie.
type HostMemory interface {
	// Wrap makes a buffer of memory that somebody else owns, aligned to 8 bytes. It must
	// outlive the buffer, which refers to owner; Free forgets it and gives nothing back.
	// Stats do not count it.
	Wrap(mem []byte, owner any) Buffer
	// HostBytes shows a buffer's memory. It is valid until Free. Work that was launched
	// must have ended (Stream.Sync) before it is touched.
	HostBytes(b Buffer) []byte
}

// BlockProducts is implemented by backends that multiply by matrices of 8-bit numbers, the blocks of llama.cpp's Q8_0,
// where these lie in host memory. Work that was launched must have ended.
type BlockProducts interface {
	// MultiplyQ8 computes y [rows,n] = x [rows,k]·wᵀ for w [n,k] in blocks along k, exact to the numbers that they
	// stand for. rows are at most RowsQ8.
	MultiplyQ8(y, x []float32, w []byte, rows, k int)
	RowsQ8() int
	// DequantizeQ8 writes what blocks stand for.
	DequantizeQ8(dst []float32, w []byte)
}
