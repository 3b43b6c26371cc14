// SPDX-License-Identifier: Apache-2.0

package backend

// HostMemory is implemented by backends whose buffers are host memory that other
// packages may share: gradient buckets that collectives reduce where they lie.
type HostMemory interface {
	// Wrap makes a buffer of memory that somebody else owns, aligned to 64 bytes. It must
	// outlive the buffer; Free forgets it and gives nothing back. Stats do not count it.
	Wrap(mem []byte) Buffer
	// HostBytes shows a buffer's memory. It is valid until Free. Work that was launched
	// must have ended (Stream.Sync) before it is touched.
	HostBytes(b Buffer) []byte
}
