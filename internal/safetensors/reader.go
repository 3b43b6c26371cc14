// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/foreign"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// Reader gives access to the arrays of one file. It holds the header alone; arrays are
// read when asked for, whole or in part. It is safe for concurrent use if its file is.
type Reader struct {
	name   string
	src    io.ReaderAt
	closer io.Closer // nil if the caller owns src
	data   int64     // where the arrays begin
	header *header
	byName map[string]int
}

// NewReader reads and checks the header of a file of size bytes; name stands in errors.
func NewReader(src io.ReaderAt, size int64, name string) (*Reader, error) {
	r := &Reader{name: name, src: src}
	if err := r.readHeader(size); err != nil {
		if other := foreign.CheckReader(name, src); other != nil {
			return nil, other
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	r.byName = make(map[string]int, len(r.header.entries))
	for i, e := range r.header.entries {
		r.byName[e.Name] = i
	}
	return r, nil
}

// Open opens the named file. The caller closes the Reader.
func Open(fsys vfs.FS, name string) (*Reader, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r, err := NewReader(f, info.Size(), name)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r.closer = f
	return r, nil
}

// Close closes the file that Open opened.
func (r *Reader) Close() error {
	if r.closer == nil {
		return nil
	}
	return r.closer.Close()
}

func (r *Reader) readHeader(size int64) error {
	if size < 8 {
		return fmt.Errorf("file has %d bytes: want at least the 8 of the header's length", size)
	}
	var prefix [8]byte
	if err := readFull(r.src, prefix[:], 0); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	switch {
	case n > maxHeader:
		return fmt.Errorf("header of %d bytes: want at most %d (is this a safetensors file?)", n, maxHeader)
	case int64(n) > size-8:
		return fmt.Errorf("file is truncated: header of %d bytes in a file of %d", n, size)
	}
	text := make([]byte, n)
	if err := readFull(r.src, text, 8); err != nil {
		return err
	}
	h, err := parseHeader(text)
	if err != nil {
		return err
	}
	r.header, r.data = h, 8+int64(n)
	switch have, want := size-r.data, h.dataSize(); {
	case have < want:
		return fmt.Errorf("file is truncated: it has %d bytes of tensors, its header describes %d", have, want)
	case have > want:
		return fmt.Errorf("file has %d bytes after its last tensor", have-want)
	}
	return nil
}

// readFull fills p from offset off.
func readFull(src io.ReaderAt, p []byte, off int64) error {
	n, err := src.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// Entries lists the arrays in the order of their bytes.
func (r *Reader) Entries() []Entry { return slices.Clone(r.header.entries) }

// Metadata is a copy of the free-form strings of the header, as {"format": "pt"}.
func (r *Reader) Metadata() map[string]string { return maps.Clone(r.header.metadata) }

// Lookup finds an array by name.
func (r *Reader) Lookup(name string) (Entry, bool) {
	i, ok := r.byName[name]
	if !ok {
		return Entry{}, false
	}
	return r.header.entries[i], true
}

// ReadTensor returns the bytes of an array.
func (r *Reader) ReadTensor(name string) ([]byte, error) {
	e, ok := r.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("%s: no tensor %q", r.name, name)
	}
	return r.array(e).Read()
}
