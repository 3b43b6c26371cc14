// SPDX-License-Identifier: Apache-2.0

// Package compressed opens files that are plain or compressed by gzip or zstd, with a bound on the uncompressed size,
// so that a small file cannot fill the memory. Nothing but regular files is opened.
package compressed

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// MaxExpansion is how many times its size a compressed file may hold. What is smaller than MinExpanded may be
// compressed further.
const (
	MaxExpansion = 200
	MinExpanded  = 64 << 20
)

// maxWindow is how far back a file in zstd may refer, and so the memory that reading it takes: that of zstd --long.
const maxWindow = 128 << 20

// method is a way to compress files.
type method struct {
	ext, magic string
	open       func(r io.Reader) (io.ReadCloser, error)
}

var methods = []method{
	{".gz", "\x1f\x8b", func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) }},
	{".zst", "\x28\xb5\x2f\xfd", func(r io.Reader) (io.ReadCloser, error) {
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}},
}

// byName is the method that a file's name ends in, nil if it is plain.
func byName(path string) *method {
	for i, m := range methods {
		if strings.EqualFold(filepath.Ext(path), m.ext) {
			return &methods[i]
		}
	}
	return nil
}

// TrimExt is the path without the .gz or .zst at its end, if there is one.
func TrimExt(path string) string {
	if m := byName(path); m != nil {
		return path[:len(path)-len(m.ext)]
	}
	return path
}

// Open opens a file, decompressed if its name ends in .gz or .zst. Errors name the file.
func Open(path string) (io.ReadCloser, error) {
	return open(path, func(*bufio.Reader) *method { return byName(path) })
}

// OpenSniffed opens a file, decompressed if it begins as files of gzip or zstd do. Errors name the file.
func OpenSniffed(path string) (io.ReadCloser, error) {
	return open(path, func(r *bufio.Reader) *method {
		for i, m := range methods {
			if head, err := r.Peek(len(m.magic)); err == nil && bytes.Equal(head, []byte(m.magic)) {
				return &methods[i]
			}
		}
		return nil
	})
}

func open(path string, choose func(*bufio.Reader) *method) (io.ReadCloser, error) {
	f, err := vfs.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	buffered := bufio.NewReader(f)
	m := choose(buffered)
	if m == nil {
		return plain{buffered, f}, nil
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	z, err := m.open(buffered)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return &expanded{z: z, file: f, path: path, left: max(MinExpanded, MaxExpansion*info.Size())}, nil
}

type plain struct {
	io.Reader
	io.Closer
}

// expanded is the contents of a compressed file. It closes the file too, which the decompressor does not.
type expanded struct {
	z    io.ReadCloser
	file *os.File
	path string
	left int64 // bytes that it may still hold
}

func (e *expanded) Read(p []byte) (int, error) {
	n, err := e.z.Read(p)
	if e.left -= int64(n); e.left < 0 {
		return 0, fmt.Errorf("%s holds more than %d times its size: "+
			"want a file that is not made to exhaust memory, or decompress it", e.path, MaxExpansion)
	}
	if err != nil && err != io.EOF {
		err = fmt.Errorf("%s: %w", e.path, err)
	}
	return n, err
}

func (e *expanded) Close() error { return errors.Join(e.z.Close(), e.file.Close()) }
