// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/placement"
)

// Array is one array of a Set. Its elements lie in one file, or are scattered over several; nothing of them has been
// read.
type Array struct {
	Entry          // Begin is 0: the bytes are counted from the array's first
	parts []part   // which have each byte once
	files []string // that the parts lie in, for errors
}

// part is the bytes of an array that follow each other in a file.
type part struct {
	placement.Placement // of the array's bytes
	src                 io.ReaderAt
	at                  int64 // of the first byte in src
}

// array is the array of an entry of r.
func (r *Reader) array(e Entry) *Array {
	a := &Array{Entry: e, files: []string{r.name}}
	a.Begin, a.End = 0, e.Bytes()
	whole, _ := a.inBytes(e.Placement())
	a.parts = []part{{whole, r.src, r.data + e.Begin}}
	return a
}

// in names what the array lies in, for errors.
func (a *Array) in() string {
	switch len(a.files) {
	case 0:
		return "no file"
	case 1:
		return a.files[0]
	}
	return fmt.Sprintf("%s and %d more files", a.files[0], len(a.files)-1)
}

func (a *Array) fault(err error) error {
	return fmt.Errorf("%s: tensor %q: %w", a.in(), a.Name, err)
}

// inBytes is a part of the array as a part of the array of its bytes.
func (a *Array) inBytes(p placement.Placement) (placement.Placement, error) {
	el, _ := elementOf(a.Raw)
	switch {
	case a.Bytes() > math.MaxInt:
		return p, fmt.Errorf("%d bytes are too many for this machine", a.Bytes())
	case !slices.Equal(p.Shape, a.Shape):
		return p, fmt.Errorf("a part of an array of shape %v: want one of shape %v", p.Shape, a.Shape)
	case el.bits%8 == 0:
		return p.Bytes(int(el.bits / 8)), p.Validate()
	case p.Numel() != a.Numel():
		return p, fmt.Errorf("no slices of %s", a.Raw)
	}
	return placement.Whole(a.Name, int(a.Bytes())), nil
}

// Section is the bytes of a part of the array, in the part's order. They are read when they are asked for, in as few
// runs as the files' order allows, and no others are. The part's shape must be the array's; its name may be another.
func (a *Array) Section(p placement.Placement) (*io.SectionReader, error) {
	bytes, err := a.inBytes(p)
	if err != nil {
		return nil, a.fault(err)
	}
	return io.NewSectionReader(section{bytes, a.parts}, 0, int64(bytes.Numel())), nil
}

// Region says where the bytes of a part of the array lie: in n bytes of a file from a place on, if they follow each
// other in one.
func (a *Array) Region(p placement.Placement) (file *os.File, at int64, n int, ok bool) {
	wanted, err := a.inBytes(p)
	if err != nil {
		return nil, 0, 0, false
	}
	for _, part := range a.parts {
		for run := range wanted.Intersect(part.Placement) {
			if file, ok = part.src.(*os.File); ok && run.At == 0 && run.Len == wanted.Numel() {
				return file, part.at + int64(run.Other), run.Len, true
			}
		}
	}
	return nil, 0, 0, false
}

// section reads a part of an array's bytes.
type section struct {
	wanted placement.Placement
	parts  []part
}

// ReadAt implements io.ReaderAt.
func (s section) ReadAt(p []byte, off int64) (n int, err error) {
	if off >= int64(s.wanted.Numel()) {
		return 0, io.EOF
	}
	n = min(len(p), s.wanted.Numel()-int(off))
	now := s.wanted.Slice(int(off), int(off)+n)
	for _, part := range s.parts {
		for run := range now.Intersect(part.Placement) {
			if err := readFull(part.src, p[run.At:run.At+run.Len], part.at+int64(run.Other)); err != nil {
				return 0, err
			}
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// Read returns the bytes of all elements.
func (a *Array) Read() ([]byte, error) { return a.read(a.Placement()) }

// ReadSlice returns the bytes of the part of the array that the ranges select, one for each leading dim; dims without
// one are taken whole.
func (a *Array) ReadSlice(ranges ...placement.Range) ([]byte, error) {
	p := a.Placement()
	if len(ranges) > len(a.Shape) {
		return nil, a.fault(fmt.Errorf("%d ranges for shape %v", len(ranges), a.Shape))
	}
	for d, r := range ranges {
		p = p.Along(d, r)
	}
	return a.read(p)
}

func (a *Array) read(p placement.Placement) ([]byte, error) {
	s, err := a.Section(p)
	if err != nil {
		return nil, err
	}
	data := make([]byte, s.Size())
	if n, err := s.ReadAt(data, 0); n < len(data) {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, a.fault(err)
	}
	return data, nil
}

// Source is an array whose elements are made when they are read, of a file of another format.
type Source struct {
	Name  string
	DType dtype.DType
	Shape []int
	// Elements are row-major and little-endian.
	Elements io.ReaderAt
	In       string // the file, for errors
}

// array is the array of a source.
func (s Source) array() (*Array, error) {
	rank, ok := rankOf(s.DType)
	if !ok {
		return nil, fmt.Errorf("%s: tensor %q: dtype %v cannot be read", s.In, clip(s.Name), s.DType)
	}
	el := elements[rank]
	size, err := el.size(s.Shape)
	if err != nil {
		return nil, fmt.Errorf("%s: tensor %q: %w", s.In, clip(s.Name), err)
	}
	a := &Array{Entry: Entry{Name: s.Name, DType: s.DType, Raw: el.raw, Shape: s.Shape, End: size},
		files: []string{s.In}}
	whole, err := a.inBytes(a.Entry.Placement())
	if err != nil {
		return nil, a.fault(err)
	}
	a.parts = []part{{whole, s.Elements, 0}}
	return a, nil
}
