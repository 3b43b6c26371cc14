// SPDX-License-Identifier: Apache-2.0

// Package gzipped opens plain or gzip-compressed files, with a bound on the uncompressed size, so that a small file
// cannot fill the memory. Nothing but regular files is opened.
package gzipped

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// MaxExpansion is how many times its size a compressed file may hold. What is smaller than MinExpanded may be
// compressed further.
const (
	MaxExpansion = 200
	MinExpanded  = 64 << 20
)

// TrimExt is the path without the .gz at its end, if there is one.
func TrimExt(path string) string {
	if strings.EqualFold(filepath.Ext(path), ".gz") {
		return path[:len(path)-len(".gz")]
	}
	return path
}

// Open opens a file, decompressed if its name ends in .gz. Errors name the file.
func Open(path string) (io.ReadCloser, error) {
	return open(path, func(*bufio.Reader) bool { return TrimExt(path) != path })
}

// OpenSniffed opens a file, decompressed if it begins as gzip's files do. Errors name the file.
func OpenSniffed(path string) (io.ReadCloser, error) {
	return open(path, func(r *bufio.Reader) bool {
		magic, err := r.Peek(2)
		return err == nil && magic[0] == 0x1f && magic[1] == 0x8b
	})
}

func open(path string, compressed func(*bufio.Reader) bool) (io.ReadCloser, error) {
	f, err := vfs.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	buffered := bufio.NewReader(f)
	if !compressed(buffered) {
		return plain{buffered, f}, nil
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	z, err := gzip.NewReader(buffered)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return &expanded{z: z, file: f, path: path, left: max(MinExpanded, MaxExpansion*info.Size())}, nil
}

type plain struct {
	io.Reader
	io.Closer
}

// expanded is the contents of a compressed file. It closes the file too, which a gzip.Reader does not.
type expanded struct {
	z    *gzip.Reader
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
