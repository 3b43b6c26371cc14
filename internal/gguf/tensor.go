// SPDX-License-Identifier: Apache-2.0

package gguf

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"sync"
)

// Tensor describes one tensor of a file.
type Tensor struct {
	Name  string
	Shape []int // the outermost dim first, as PyTorch has it
	Type  Type

	begin int64 // of the first byte in the file
	size  int64 // bytes in the file
}

// Numel is the number of elements.
func (t Tensor) Numel() int {
	n := 1
	for _, s := range t.Shape {
		n *= s
	}
	return n
}

// Elements reads the elements of a tensor, row-major and little-endian, of the dtype Type.DType. Any part may be asked
// for; what is quantized is dequantized block by block.
func (f *File) Elements(t Tensor) (io.ReaderAt, error) {
	l := layouts[t.Type]
	switch {
	case l.dtype == 0:
		return nil, fmt.Errorf("%s: tensor %.100q is of %s, which is not read: want %s", f.name, t.Name, t.Type,
			Readable)
	case l.values == nil:
		return io.NewSectionReader(f.src, t.begin, t.size), nil
	}
	return &dequantizer{src: io.NewSectionReader(f.src, t.begin, t.size), layout: l, name: t.Name}, nil
}

// dequantizer reads quantized blocks as float32.
type dequantizer struct {
	src *io.SectionReader
	layout
	name string
}

// bytesOf is the size of a block's values.
func (d *dequantizer) bytesOf() int64 { return int64(d.block) * 4 }

// buffers are what a ReadAt needs: blocks of a file and the values of one.
var buffers = sync.Pool{New: func() any { return new(buffer) }}

type buffer struct {
	raw    [64 << 10]byte
	values [256]float32
	bytes  [1024]byte
}

// ReadAt implements io.ReaderAt.
func (d *dequantizer) ReadAt(p []byte, off int64) (n int, err error) {
	per := d.bytesOf()
	total := d.src.Size() / int64(d.size) * per
	switch {
	case off < 0:
		return 0, fmt.Errorf("tensor %.100q: offset %d: want at least 0", d.name, off)
	case off >= total:
		return 0, io.EOF
	case int64(len(p)) > total-off:
		p, err = p[:total-off], io.EOF
	}
	b := buffers.Get().(*buffer)
	defer buffers.Put(b)
	for n < len(p) {
		at := off + int64(n)
		first := at / per
		count := min((at+int64(len(p)-n)+per-1)/per-first, int64(len(b.raw)/d.size))
		raw := b.raw[:count*int64(d.size)]
		if err := readFull(d.src, raw, first*int64(d.size)); err != nil {
			return n, fmt.Errorf("tensor %.100q: %w", d.name, err)
		}
		skip := int(at - first*per) // of the first block
		for len(raw) > 0 {
			d.values(b.values[:], raw)
			raw = raw[d.size:]
			n += d.encode(p[n:], b, skip)
			skip = 0
		}
	}
	return n, err
}

// encode writes the values of a block from the skipped byte on, or as many as p has room for.
func (d *dequantizer) encode(p []byte, b *buffer, skip int) int {
	if whole := int(d.bytesOf()); skip == 0 && len(p) >= whole {
		for i, v := range b.values[:d.block] {
			binary.LittleEndian.PutUint32(p[4*i:], math.Float32bits(v))
		}
		return whole
	}
	for i, v := range b.values[:d.block] {
		binary.LittleEndian.PutUint32(b.bytes[4*i:], math.Float32bits(v))
	}
	return copy(p, b.bytes[skip:d.bytesOf()])
}

// readFull fills p from offset off.
func readFull(src io.ReaderAt, p []byte, off int64) error {
	n, err := src.ReadAt(p, off)
	switch {
	case n == len(p):
		return nil
	case err == nil || err == io.EOF:
		return io.ErrUnexpectedEOF
	}
	return err
}
