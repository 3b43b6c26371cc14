// SPDX-License-Identifier: Apache-2.0

package gguf

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// What a file may have before its elements. The metadata of a vocabulary of 256,000 tokens have 10 MB.
const (
	maxHeader  = 64 << 20 // bytes of the whole header
	maxKeys    = 10_000   // of the metadata
	maxTensors = 200_000
	maxDims    = 4   // of one
	maxName    = 255 // bytes of a key or of a tensor's name
)

const (
	magic            = "GGUF"
	defaultAlignment = 32
	// split is the key of files that are one of several.
	split = "split.count"
)

// File is an open GGUF file. It is safe for concurrent use if its source is.
type File struct {
	// Metadata are the values by their keys.
	Metadata map[string]Value
	// Tensors are in the order in which the file lists them.
	Tensors []Tensor

	name   string
	src    io.ReaderAt
	closer io.Closer // nil if the caller owns src
}

// Open opens the named file. The caller closes it.
func Open(fsys vfs.FS, name string) (*File, error) {
	src, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := src.Stat()
	if err != nil {
		return nil, errors.Join(err, src.Close())
	}
	f, err := Read(src, info.Size(), name)
	if err != nil {
		return nil, errors.Join(err, src.Close())
	}
	f.closer = src
	return f, nil
}

// Read reads and checks the header of a file of size bytes; name stands in errors.
func Read(src io.ReaderAt, size int64, name string) (*File, error) {
	f := &File{Metadata: map[string]Value{}, name: name, src: src}
	bounded := io.NewSectionReader(src, 0, min(size, maxHeader))
	r := &reader{buf: bufio.NewReaderSize(bounded, 64<<10), left: bounded.Size(), cut: size > maxHeader}
	if err := f.read(r, size); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

// Name is the path of the file.
func (f *File) Name() string { return f.name }

// Close closes the file that Open opened.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	return f.closer.Close()
}

// Tensor finds a tensor by its name.
func (f *File) Tensor(name string) (Tensor, bool) {
	i := slices.IndexFunc(f.Tensors, func(t Tensor) bool { return t.Name == name })
	if i < 0 {
		return Tensor{}, false
	}
	return f.Tensors[i], true
}

func (f *File) read(r *reader, size int64) error {
	tensors, keys, err := readCounts(r)
	if err != nil {
		return err
	}
	for range keys {
		key, v, err := readPair(r)
		if err != nil {
			return err
		}
		if _, twice := f.Metadata[key]; twice {
			return fmt.Errorf("the metadata have the key %q twice", key)
		}
		f.Metadata[key] = v
	}
	if n, ok := f.Metadata[split].Int(); ok && n > 1 {
		return fmt.Errorf("it is one of %d files of a model: \"llama-gguf-split --merge FIRST OUT\" of llama.cpp "+
			"makes one file of them", n)
	}
	return f.readTensors(r, tensors, size)
}

// readCounts reads what a file begins with: the number of tensors and that of keys.
func readCounts(r *reader) (tensors, keys uint64, err error) {
	head, err := r.bytes(4)
	if err != nil {
		return 0, 0, err
	}
	if string(head) != magic {
		return 0, 0, fmt.Errorf("it begins with %q: want %q", head, magic)
	}
	version, err := r.uint32()
	if err != nil {
		return 0, 0, err
	}
	switch {
	case version != 0 && version&0xffff == 0:
		return 0, 0, errors.New("it is in big-endian order: want little-endian")
	case version < 2 || version > 3:
		return 0, 0, fmt.Errorf("GGUF version %d: this program reads versions 2 and 3", version)
	}
	if tensors, err = r.uint64(); err != nil {
		return 0, 0, err
	}
	if keys, err = r.uint64(); err != nil {
		return 0, 0, err
	}
	if tensors > maxTensors || keys > maxKeys {
		return 0, 0, fmt.Errorf("%d tensors and %d keys: want at most %d and %d", tensors, keys, maxTensors, maxKeys)
	}
	return tensors, keys, nil
}

func readPair(r *reader) (key string, v Value, err error) {
	if key, err = r.name("a key of the metadata"); err != nil {
		return "", v, err
	}
	kind, err := r.uint32()
	if err == nil {
		v, err = r.value(Kind(kind))
	}
	if err != nil {
		return "", v, fmt.Errorf("metadata %q: %w", key, err)
	}
	return key, v, nil
}

// readTensors reads the list of tensors and checks that their bytes are in the file, each for one tensor.
func (f *File) readTensors(r *reader, count uint64, size int64) error {
	seen := map[string]bool{}
	for range count {
		t, err := readTensor(r)
		if err != nil {
			return err
		}
		if seen[t.Name] {
			return fmt.Errorf("tensor %q is there twice", t.Name)
		}
		seen[t.Name] = true
		f.Tensors = append(f.Tensors, t)
	}
	align := int64(defaultAlignment)
	if v, ok := f.Metadata["general.alignment"]; ok {
		n, ok := v.Int()
		if !ok || n <= 0 || n > 1<<20 || n&(n-1) != 0 {
			return fmt.Errorf("general.alignment is %s: want a power of two up to %d", v, 1<<20)
		}
		align = n
	}
	data := (r.read + align - 1) / align * align
	for i := range f.Tensors {
		t := &f.Tensors[i]
		if t.begin%align != 0 {
			return fmt.Errorf("tensor %q begins at byte %d of the elements: want a multiple of %d", t.Name, t.begin,
				align)
		}
		if data > size || t.begin > size-data || t.size > size-data-t.begin {
			return fmt.Errorf("file is truncated: it has %d bytes, and tensor %q has %d from byte %d of the elements "+
				"on, which begin at byte %d", size, t.Name, t.size, t.begin, data)
		}
		t.begin += data
	}
	return f.checkOverlap()
}

// checkOverlap refuses bytes that are of two tensors.
func (f *File) checkOverlap() error {
	sorted := slices.Clone(f.Tensors)
	slices.SortStableFunc(sorted, func(a, b Tensor) int { return cmp.Compare(a.begin, b.begin) })
	for i, t := range sorted {
		if i > 0 && sorted[i-1].begin+sorted[i-1].size > t.begin {
			return fmt.Errorf("tensors %q and %q have bytes in common", sorted[i-1].Name, t.Name)
		}
	}
	return nil
}

func readTensor(r *reader) (t Tensor, err error) {
	if t.Name, err = r.name("a tensor's name"); err != nil {
		return t, err
	}
	dims, err := r.uint32()
	if err != nil {
		return t, err
	}
	if dims < 1 || dims > maxDims {
		return t, fmt.Errorf("tensor %q has %d dims: want 1 to %d", t.Name, dims, maxDims)
	}
	t.Shape = make([]int, dims)
	total := uint64(1)
	for d := range t.Shape {
		n, err := r.uint64()
		if err != nil {
			return t, err
		}
		hi, lo := bits.Mul64(total, n)
		if hi != 0 || lo > math.MaxInt64/8 || lo > math.MaxInt || n == 0 {
			return t, fmt.Errorf("tensor %q has a dim of %d: want at least 1, and fewer than 2^60 elements", t.Name, n)
		}
		total = lo
		t.Shape[len(t.Shape)-1-d] = int(n)
	}
	kind, err := r.uint32()
	if err != nil {
		return t, err
	}
	begin, err := r.uint64()
	if err != nil {
		return t, err
	}
	t.Type, t.begin = Type(kind), int64(min(begin, math.MaxInt64))
	l, known := layouts[t.Type]
	row := t.Shape[len(t.Shape)-1]
	switch {
	case !known:
		return t, fmt.Errorf("tensor %q is of %s, which is unknown: want %s", t.Name, t.Type, Readable)
	case row%l.block != 0:
		return t, fmt.Errorf("tensor %q has rows of %d elements: want a multiple of the %d of a block of %s", t.Name,
			row, l.block, t.Type)
	}
	t.size = int64(total) / int64(l.block) * int64(l.size)
	return t, nil
}

// reader reads a header, and no more of it than there is.
type reader struct {
	buf  *bufio.Reader
	left int64
	read int64
	cut  bool // whether the file continues behind what is left
}

// take fails if n bytes are not left.
func (r *reader) take(n uint64) error {
	switch {
	case n <= uint64(r.left):
		r.left, r.read = r.left-int64(n), r.read+int64(n)
		return nil
	case r.cut:
		return fmt.Errorf("header has more than %d bytes: want at most as many", maxHeader)
	}
	return fmt.Errorf("file is truncated: its header ends in the middle, at byte %d", r.read)
}

// bytes reads the next n bytes.
func (r *reader) bytes(n uint64) ([]byte, error) {
	if err := r.take(n); err != nil {
		return nil, err
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r.buf, b)
	return b, err
}

func (r *reader) uint32() (uint32, error) {
	b, err := r.bytes(4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (r *reader) uint64() (uint64, error) {
	b, err := r.bytes(8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

// name reads a string that is short and not empty.
func (r *reader) name(what string) (string, error) {
	n, err := r.uint64()
	if err != nil {
		return "", err
	}
	if n == 0 || n > maxName {
		return "", fmt.Errorf("%s has %d bytes: want 1 to %d", what, n, maxName)
	}
	b, err := r.bytes(n)
	return string(b), err
}
