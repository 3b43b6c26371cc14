// SPDX-License-Identifier: Apache-2.0

//go:build unix

package shm

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// segment is a piece of memory that this process made for others to map.
type segment struct {
	memory []byte
	file   *os.File // nil once all have mapped it
	name   string   // "" if it has none
}

// ticket tells other processes how to map a segment.
type ticket struct {
	Path  string `json:"path"`
	Bytes int    `json:"bytes"`
	Error string `json:"error,omitempty"` // it could not be made
}

func (t ticket) encode() []byte {
	b, _ := json.Marshal(t) // strings and numbers cannot fail
	return b
}

// kind is a way to make segments.
type kind string

const (
	anonymous kind = "anonymous"
	named     kind = "named"
)

// folders are where named segments may lie, in order of preference.
func folders() []string { return []string{"/dev/shm", os.TempDir()} }

// makeSegment makes a segment of n bytes, a multiple of the page size, all zero and reserved.
func makeSegment(k kind, n int) (*segment, ticket, error) {
	var s *segment
	var path string
	var err error
	if k == anonymous {
		s, path, err = makeAnonymous(n)
	} else {
		s, path, err = makeNamed(n)
	}
	if err == nil {
		s.memory, err = unix.Mmap(int(s.file.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, mapFlags)
		if err != nil {
			err = fmt.Errorf("map %d bytes: %w", n, err)
			s.settle()
		}
	}
	if err != nil {
		return nil, ticket{Error: err.Error()}, err
	}
	return s, ticket{Path: path, Bytes: n}, nil
}

// makeNamed makes an unguessable file that only this user can open, in the first folder that has room.
func makeNamed(n int) (*segment, string, error) {
	var errs []error
	for _, dir := range folders() {
		if err := room(dir, n); err != nil {
			errs = append(errs, err)
			continue
		}
		f, err := os.CreateTemp(dir, "lockstep-*")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s := &segment{file: f, name: f.Name()}
		if err := reserve(f, n); err != nil {
			s.settle()
			errs = append(errs, fmt.Errorf("reserve %d bytes in %s: %w", n, dir, err))
			continue
		}
		return s, f.Name(), nil
	}
	return nil, "", errors.Join(errs...)
}

// room returns an error unless the file system of dir has n bytes to spare.
func room(dir string, n int) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if free := int64(fs.Bavail) * int64(fs.Bsize); free < int64(n) {
		return fmt.Errorf("%s has %d bytes free: want %d: enlarge it (docker run --shm-size, or an emptyDir of "+
			"medium Memory at /dev/shm in Kubernetes)", dir, free, n)
	}
	return nil
}

// settle releases the name and the descriptor: all who need the segment have mapped it.
func (s *segment) settle() {
	if s.name != "" {
		_ = os.Remove(s.name)
		s.name = ""
	}
	if s.file != nil {
		_ = s.file.Close()
		s.file = nil
	}
}

// free unmaps the memory.
func (s *segment) free() error {
	s.settle()
	m := s.memory
	s.memory = nil
	return unmap(m)
}

func unmap(m []byte) error {
	if m == nil {
		return nil
	}
	if err := unix.Munmap(m); err != nil {
		return fmt.Errorf("comm/shm: unmap: %w", err)
	}
	return nil
}

// open maps the segment that another process of this job has made.
func (t ticket) open() ([]byte, error) {
	if t.Error != "" {
		return nil, errors.New(t.Error)
	}
	dir := filepath.Dir(t.Path)
	if !filepath.IsAbs(t.Path) || t.Bytes <= 0 || !strings.HasPrefix(dir, "/proc/") &&
		!strings.HasPrefix(filepath.Base(t.Path), "lockstep-") {
		return nil, fmt.Errorf("no segment at %q", t.Path)
	}
	fd, err := unix.Open(t.Path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", t.Path, err)
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, fmt.Errorf("%s: %w", t.Path, err)
	}
	if stat.Size < int64(t.Bytes) || stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%s has %d bytes: want %d", t.Path, stat.Size, t.Bytes)
	}
	m, err := unix.Mmap(fd, 0, t.Bytes, unix.PROT_READ|unix.PROT_WRITE, mapFlags)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of %s: %w", t.Bytes, t.Path, err)
	}
	return m, nil
}

func decodeTicket(text []byte) (ticket, error) {
	var t ticket
	if err := json.Unmarshal(text, &t); err != nil {
		return t, fmt.Errorf("unreadable: %w", err)
	}
	return t, nil
}
