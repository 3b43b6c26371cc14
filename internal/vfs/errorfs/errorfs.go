// SPDX-License-Identifier: Apache-2.0

// Package errorfs wraps a file system so that a test sees every operation before it
// happens and makes chosen ones fail: a full disk, a bad sector, a short write, or a
// process that dies between two operations.
//
// It is for tests. It does not simulate the loss of what was not synced: vfs.Mem does.
package errorfs

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// Kind says what an operation does.
type Kind string

// The kinds of operations, named as a log shows them.
const (
	Create  Kind = "create"
	Open    Kind = "open"
	Read    Kind = "read"
	Write   Kind = "write"
	Sync    Kind = "sync"
	Close   Kind = "close"
	Mkdir   Kind = "mkdir"
	ReadDir Kind = "read-dir"
	Stat    Kind = "stat"
	Rename  Kind = "rename"
	Remove  Kind = "remove"
	SyncDir Kind = "sync-dir"
	Lock    Kind = "lock"
)

// Changes reports whether the operation may change what is on the disk.
func (k Kind) Changes() bool {
	switch k {
	case Open, Read, ReadDir, Stat:
		return false
	}
	return true
}

// Op is one operation.
type Op struct {
	Kind Kind
	Path string // with slashes
	To   string // Rename: the new path
	Size int    // Read, Write: bytes asked for
}

// String is the operation as one line of a log.
func (o Op) String() string {
	switch o.Kind {
	case Rename:
		return fmt.Sprintf("%s: %s -> %s", o.Kind, o.Path, o.To)
	case Read, Write:
		return fmt.Sprintf("%s: %s (%d bytes)", o.Kind, o.Path, o.Size)
	}
	return fmt.Sprintf("%s: %s", o.Kind, o.Path)
}

// Injector is called before each operation, one call at a time. An error takes the
// operation's place, except that a ShortWrite lets the first half of a Write through and
// that a file whose Close fails is closed all the same.
type Injector func(op Op) error

// Errors to inject, as the operating system would give them.
var (
	ErrNoSpace    error = syscall.ENOSPC
	ErrIO         error = syscall.EIO
	ErrShortWrite error = fmt.Errorf("short write: %w", syscall.ENOSPC)
	ErrCrashed          = errors.New("the process has died")
)

// Nth fails the n-th operation (from 1) that match accepts with err, and no other. A nil
// match accepts all. The second result reports whether that operation was reached.
func Nth(n int, match func(Kind) bool, err error) (Injector, func() bool) {
	return inject(n, n, match, err)
}

// From fails the n-th operation (from 1) that match accepts and all such after it with
// err: a disk that stays full, or a process that has died. See Nth.
func From(n int, match func(Kind) bool, err error) (Injector, func() bool) {
	return inject(n, math.MaxInt, match, err)
}

func inject(first, last int, match func(Kind) bool, err error) (Injector, func() bool) {
	seen := 0
	return func(op Op) error {
		if match != nil && !match(op.Kind) {
			return nil
		}
		if seen++; seen >= first && seen <= last {
			return err
		}
		return nil
	}, func() bool { return seen >= first }
}

// Wrap returns fsys with inject in front of each operation.
func Wrap(fsys vfs.FS, inject Injector) vfs.FS { return &wrapper{fsys: fsys, inject: inject} }

type wrapper struct {
	fsys   vfs.FS
	mu     sync.Mutex
	inject Injector
}

func (w *wrapper) before(op Op) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	op.Path, op.To = filepath.ToSlash(op.Path), filepath.ToSlash(op.To)
	if err := w.inject(op); err != nil {
		return &fs.PathError{Op: string(op.Kind), Path: op.Path, Err: err}
	}
	return nil
}

func (w *wrapper) Create(name string) (vfs.File, error) {
	if err := w.before(Op{Kind: Create, Path: name}); err != nil {
		return nil, err
	}
	return w.file(name)(w.fsys.Create(name))
}

func (w *wrapper) Open(name string) (vfs.File, error) {
	if err := w.before(Op{Kind: Open, Path: name}); err != nil {
		return nil, err
	}
	return w.file(name)(w.fsys.Open(name))
}

func (w *wrapper) file(name string) func(vfs.File, error) (vfs.File, error) {
	return func(f vfs.File, err error) (vfs.File, error) {
		if err != nil {
			return nil, err
		}
		return &file{File: f, w: w, name: name}, nil
	}
}

func (w *wrapper) Mkdir(name string) error {
	if err := w.before(Op{Kind: Mkdir, Path: name}); err != nil {
		return err
	}
	return w.fsys.Mkdir(name)
}

func (w *wrapper) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := w.before(Op{Kind: ReadDir, Path: name}); err != nil {
		return nil, err
	}
	return w.fsys.ReadDir(name)
}

func (w *wrapper) Stat(name string) (fs.FileInfo, error) {
	if err := w.before(Op{Kind: Stat, Path: name}); err != nil {
		return nil, err
	}
	return w.fsys.Stat(name)
}

func (w *wrapper) Rename(oldname, newname string) error {
	if err := w.before(Op{Kind: Rename, Path: oldname, To: newname}); err != nil {
		return err
	}
	return w.fsys.Rename(oldname, newname)
}

func (w *wrapper) Remove(name string) error {
	if err := w.before(Op{Kind: Remove, Path: name}); err != nil {
		return err
	}
	return w.fsys.Remove(name)
}

func (w *wrapper) SyncDir(name string) error {
	if err := w.before(Op{Kind: SyncDir, Path: name}); err != nil {
		return err
	}
	return w.fsys.SyncDir(name)
}

// Lock is seen when the lock is taken; what is written into it goes through unseen.
func (w *wrapper) Lock(name string) (vfs.Lock, error) {
	if err := w.before(Op{Kind: Lock, Path: name}); err != nil {
		return nil, err
	}
	return w.fsys.Lock(name)
}

// file is an open file of a wrapper; Stat goes through unseen.
type file struct {
	vfs.File
	w    *wrapper
	name string
}

func (f *file) Read(p []byte) (int, error) {
	if err := f.w.before(Op{Kind: Read, Path: f.name, Size: len(p)}); err != nil {
		return 0, err
	}
	return f.File.Read(p)
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	if err := f.w.before(Op{Kind: Read, Path: f.name, Size: len(p)}); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *file) Write(p []byte) (int, error) {
	err := f.w.before(Op{Kind: Write, Path: f.name, Size: len(p)})
	switch {
	case errors.Is(err, ErrShortWrite):
		n, _ := f.File.Write(p[:len(p)/2])
		return n, err
	case err != nil:
		return 0, err
	}
	return f.File.Write(p)
}

func (f *file) Sync() error {
	if err := f.w.before(Op{Kind: Sync, Path: f.name}); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *file) Close() error {
	err := f.w.before(Op{Kind: Close, Path: f.name})
	return errors.Join(err, f.File.Close())
}
