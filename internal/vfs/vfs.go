// SPDX-License-Identifier: Apache-2.0

// Package vfs is a small file system interface for durable writes, so that tests can fail each operation and simulate a
// crash between any two.
//
// OS is the real one. Mem keeps everything in memory, remembers what has been synced and CrashClone returns the state
// that a power failure would have left. Package errorfs wraps any FS and observes or fails chosen operations.
//
// The contract is the weakest that file systems in use give (POSIX, and what NTFS
// shares with it): the contents of a file survive a crash once File.Sync has returned;
// that a name exists, is gone or was renamed survives once SyncDir of its folder has
// returned; Rename is atomic. Nothing else is promised, in no order.
//
// It is not a general file-system abstraction (io/fs reads, this writes): it has no
// permissions, links, globs or seeks, and paths are those of package filepath.
package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
)

// FS is a file system. Errors are *fs.PathError or *os.LinkError that match fs.ErrNotExist
// and fs.ErrExist where those apply. Implementations are safe for concurrent use.
type FS interface {
	// Create makes the named file for writing. A name that exists is an error, also that
	// of a link: what is created is never somebody else's file.
	Create(name string) (File, error)
	// Open opens the named file for reading: a regular file, no folder, pipe or device.
	Open(name string) (File, error)
	// Mkdir makes one folder; that it exists already is an error.
	Mkdir(name string) error
	// ReadDir lists the folder, sorted by name.
	ReadDir(name string) ([]fs.DirEntry, error)
	// Stat describes the named file or folder.
	Stat(name string) (fs.FileInfo, error)
	// Rename gives a file or folder a new name, atomically. A file replaces a file;
	// an existing folder is never replaced.
	Rename(oldname, newname string) error
	// Remove deletes a file or an empty folder.
	Remove(name string) error
	// SyncDir makes the creations, removals and renames in the folder durable.
	SyncDir(name string) error
	// Lock takes the named file as a lock, which it makes if need be. ErrLocked, beside a
	// Lock that only reads, says that another holder has it.
	Lock(name string) (Lock, error)
}

// Lock is a file that one holder at a time has, among the processes of this host and, where
// the file system's locks reach them, of others. The operating system takes it from a
// process that ends, however it ends. The contents say who holds it.
type Lock interface {
	// Read returns the contents, at most 4 KiB.
	Read() ([]byte, error)
	// Write replaces the contents.
	Write(data []byte) error
	// Close gives the lock up and removes the file, if this Lock holds it.
	Close() error
	// Abandon gives the lock up and leaves the file.
	Abandon() error
	// Exclusive reports whether the file system keeps other processes of this host out.
	Exclusive() bool
}

// ErrLocked is returned by FS.Lock if another holder has the lock.
var ErrLocked = errors.New("locked")

const maxLock = 4 << 10

// File is an open file. One from Create is written in order, one from Open is read.
type File interface {
	io.Reader
	io.ReaderAt
	io.Writer
	io.Closer
	// Sync makes what has been written durable; not the file's name: see SyncDir.
	Sync() error
	// Stat describes the file; its Size is the number of bytes.
	Stat() (fs.FileInfo, error)
}

// MkdirAll makes the folder and the parents that it lacks, each made durable in its own
// parent. An existing folder is left alone.
func MkdirAll(fsys FS, name string) error {
	name = filepath.Clean(name)
	info, err := fsys.Stat(name)
	if err == nil {
		if !info.IsDir() {
			return &fs.PathError{Op: "mkdir", Path: name, Err: errNotDir}
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(name)
	if parent == name {
		return err
	}
	if err := MkdirAll(fsys, parent); err != nil {
		return err
	}
	if err := fsys.Mkdir(name); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return fsys.SyncDir(parent)
}

// RemoveAll deletes the named file or folder with all that is in it, one Remove at a time; links are not followed. A
// name that does not exist is no error. It continues after an error and returns all of them.
func RemoveAll(fsys FS, name string) error {
	// The first Remove is for files, links and empty folders.
	err := fsys.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if info, statErr := fsys.Stat(name); statErr != nil || !info.IsDir() {
		return err
	}
	return removeFolder(fsys, name)
}

func removeFolder(fsys FS, name string) error {
	entries, err := fsys.ReadDir(name)
	errs := []error{err}
	for _, e := range entries {
		child := filepath.Join(name, e.Name())
		if e.IsDir() {
			errs = append(errs, removeFolder(fsys, child))
		} else {
			errs = append(errs, fsys.Remove(child))
		}
	}
	return errors.Join(append(errs, fsys.Remove(name))...)
}

// Part is a file to be written: its name and what writes it. Write is called once.
type Part struct {
	Name  string
	Write func(w io.Writer) error
}

// WriteFile creates the named file with the given contents and syncs it; not its name.
func WriteFile(fsys FS, name string, data []byte) error {
	f, err := fsys.Create(name)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// ReadFile returns the contents of the named file, at most limit bytes of it: a larger
// file is an error.
func ReadFile(fsys FS, name string, limit int64) (data []byte, err error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data, err = io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("file is too large: want at most %d bytes", limit)
		return nil, &fs.PathError{Op: "read", Path: name, Err: err}
	}
	return data, err
}

var (
	errNotDir    = errors.New("not a folder")
	errIsDir     = errors.New("is a folder")
	errNotEmpty  = errors.New("folder is not empty")
	errIrregular = errors.New("neither a file nor a folder: want a file")
	errWriteRO   = errors.New("file was opened for reading")
	errReadWO    = errors.New("file was opened for writing")
)
