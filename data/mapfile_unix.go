// SPDX-License-Identifier: Apache-2.0

//go:build unix

package data

import (
	"fmt"
	"io"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// mapped is a file in memory.
type mapped []byte

// mapFile maps a file that is not empty for reading and closes it; the mapping stays.
func mapFile(file *os.File, size int64) (byteReader, error) {
	defer file.Close()
	if size > math.MaxInt {
		return nil, fmt.Errorf("it has %d bytes, too many to map", size)
	}
	m, err := unix.Mmap(int(file.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping it: %w", err)
	}
	return mapped(m), nil
}

// ReadAt implements io.ReaderAt.
func (m mapped) ReadAt(p []byte, at int64) (int, error) {
	if at < 0 || at > int64(len(m)) {
		return 0, io.EOF
	}
	n := copy(p, m[at:])
	if n < len(p) {
		return n, io.ErrUnexpectedEOF
	}
	return n, nil
}

// Close implements io.Closer.
func (m mapped) Close() error { return unix.Munmap(m) }
