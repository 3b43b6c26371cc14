// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"fmt"
	"io"
	"math"
	"sort"
)

// Array is one array of a Set. Its elements lie in one file or, in pieces, in several; nothing of them has been read.
type Array struct {
	Entry             // Begin is 0: the bytes are counted from the array's first
	src   io.ReaderAt // the array's bytes
	files []*Reader   // that they lie in
}

// array is the array of an entry of r.
func (r *Reader) array(e Entry) *Array {
	src := io.NewSectionReader(r.src, r.data+e.Begin, e.Bytes())
	e.Begin, e.End = 0, e.Bytes()
	return &Array{Entry: e, src: src, files: []*Reader{r}}
}

// in names what the array lies in, for errors.
func (a *Array) in() string {
	switch len(a.files) {
	case 0:
		return "no file"
	case 1:
		return a.files[0].name
	}
	return fmt.Sprintf("%s and %d more files", a.files[0].name, len(a.files)-1)
}

func (a *Array) fault(err error) error {
	return fmt.Errorf("%s: tensor %q: %w", a.in(), a.Name, err)
}

// Section is the bytes of the elements lo to hi, exclusively, of the array's flat order. They are read when they are
// asked for, and no others are.
func (a *Array) Section(lo, hi int) (*io.SectionReader, error) {
	el, _ := elementOf(a.Raw)
	n := a.Numel()
	switch {
	case lo < 0 || hi < lo || hi > n:
		return nil, a.fault(fmt.Errorf("elements [%d, %d) of %d: want a range inside", lo, hi, n))
	case el.bits%8 != 0 && (lo != 0 || hi != n):
		return nil, a.fault(fmt.Errorf("no slices of %s", a.Raw))
	case lo == 0 && hi == n:
		return io.NewSectionReader(a.src, 0, a.Bytes()), nil
	}
	width := int64(el.bits / 8)
	return io.NewSectionReader(a.src, int64(lo)*width, int64(hi-lo)*width), nil
}

// Read returns the bytes of all elements.
func (a *Array) Read() ([]byte, error) {
	if a.Bytes() > math.MaxInt {
		return nil, a.fault(fmt.Errorf("%d bytes are too many for this machine", a.Bytes()))
	}
	p := make([]byte, a.Bytes())
	if err := readFull(a.src, p, 0); err != nil {
		return nil, a.fault(err)
	}
	return p, nil
}

// ReadSlice returns the bytes of the part of the array that the ranges select, as Reader.ReadSlice does.
func (a *Array) ReadSlice(ranges ...Range) ([]byte, error) {
	p, err := readSlice(a.src, 0, a.Entry, ranges)
	if err != nil {
		return nil, a.fault(err)
	}
	return p, nil
}

// segment is a run of an array's bytes that ends at end and lies in src.
type segment struct {
	begin, end int64
	src        io.ReaderAt
	at         int64 // of the first byte, in src
}

// segments are runs that follow each other without gaps, from byte 0.
type segments []segment

// ReadAt implements io.ReaderAt.
func (s segments) ReadAt(p []byte, off int64) (n int, err error) {
	for i := sort.Search(len(s), func(i int) bool { return s[i].end > off }); n < len(p); i++ {
		if i == len(s) {
			return n, io.EOF
		}
		at := off + int64(n)
		part := p[n:min(int64(len(p)), int64(n)+s[i].end-at)]
		if err := readFull(s[i].src, part, s[i].at+at-s[i].begin); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// readSlice reads a part of the array e, whose bytes begin at off of src.
func readSlice(src io.ReaderAt, off int64, e Entry, ranges []Range) ([]byte, error) {
	el, _ := elementOf(e.Raw)
	switch {
	case len(ranges) > len(e.Shape):
		return nil, fmt.Errorf("%d ranges for shape %v", len(ranges), e.Shape)
	case el.bits%8 != 0:
		return nil, fmt.Errorf("no slices of %s", e.Raw)
	}
	full := make([]Range, len(e.Shape))
	total := int(el.bits / 8)
	for d, size := range e.Shape {
		full[d] = Range{0, size}
		if d < len(ranges) {
			full[d] = ranges[d]
		}
		if full[d].Start < 0 || full[d].Stop < full[d].Start || full[d].Stop > size {
			return nil, fmt.Errorf("range [%d, %d) of dim %d: want one in [0, %d)", full[d].Start, full[d].Stop, d,
				size)
		}
		total *= full[d].Stop - full[d].Start
	}
	p := make([]byte, total)
	if total == 0 {
		return p, nil
	}
	return p, gather(src, p, off, e.Shape, full, int64(el.bits/8))
}

// gather fills p with the box that the ranges cut out of the array at off.
func gather(src io.ReaderAt, p []byte, off int64, shape []int, ranges []Range, width int64) error {
	// All dims behind the last cut one are contiguous: run is the bytes of one piece.
	stride := make([]int64, len(shape))
	n := width
	for d := len(shape) - 1; d >= 0; d-- {
		stride[d] = n
		n *= int64(shape[d])
	}
	inner := len(shape)
	for inner > 0 && ranges[inner-1] == (Range{0, shape[inner-1]}) {
		inner--
	}
	if inner == 0 {
		return readFull(src, p, off)
	}
	inner--
	run := int64(ranges[inner].Stop-ranges[inner].Start) * stride[inner]
	index := make([]int, inner)
	for {
		at := off + int64(ranges[inner].Start)*stride[inner]
		for d, i := range index {
			at += int64(ranges[d].Start+i) * stride[d]
		}
		if err := readFull(src, p[:run], at); err != nil {
			return err
		}
		p = p[run:]
		d := inner - 1
		for ; d >= 0; d-- {
			if index[d]++; index[d] < ranges[d].Stop-ranges[d].Start {
				break
			}
			index[d] = 0
		}
		if d < 0 {
			return nil
		}
	}
}
