// SPDX-License-Identifier: Apache-2.0

package vfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// OS is the operating system's file system. SyncDir does nothing on Windows, which has
// no such call and journals its metadata in order.
var OS FS = osFS{}

type osFS struct{}

func (osFS) Create(name string) (File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err // not a *os.File in an interface: that would not be nil
	}
	return f, nil
}

func (osFS) Open(name string) (File, error) {
	f, err := OpenRegular(name)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// OpenRegular opens a file for reading, and nothing but a file: a pipe would be waited for, a device
// has no end.
func OpenRegular(name string) (*os.File, error) {
	if err := regular(name, os.Stat); err != nil {
		if p := (*fs.PathError)(nil); errors.As(err, &p) {
			p.Op = "open" // what was asked for
		}
		return nil, err
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if err := regular(name, func(string) (fs.FileInfo, error) { return f.Stat() }); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func regular(name string, stat func(string) (fs.FileInfo, error)) error {
	info, err := stat(name)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return pathError("open", name, errIsDir)
	case !info.Mode().IsRegular():
		return pathError("open", name, errIrregular)
	}
	return nil
}

func (osFS) Mkdir(name string) error                    { return os.Mkdir(name, 0o755) }
func (osFS) ReadDir(name string) ([]fs.DirEntry, error) { return os.ReadDir(name) }
func (osFS) Stat(name string) (fs.FileInfo, error)      { return os.Stat(name) }
func (osFS) Rename(oldname, newname string) error       { return os.Rename(oldname, newname) }
func (osFS) Remove(name string) error                   { return os.Remove(name) }
func (osFS) SyncDir(name string) error                  { return syncDir(name) }

// Replace writes a file in one step, of mode 0600: whoever reads it meanwhile finds the old contents or the new ones.
// It follows no link, and makes nothing durable.
func Replace(name string, data []byte) error {
	w, err := os.CreateTemp(filepath.Dir(name), ".new-*")
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	if err = errors.Join(err, w.Close()); err == nil {
		err = os.Rename(w.Name(), name)
	}
	if err != nil {
		_ = os.Remove(w.Name())
	}
	return err
}
