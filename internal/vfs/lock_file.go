// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly || windows

package vfs

import (
	"errors"
	"io"
	"os"
)

// Lock implements FS.
func (osFS) Lock(name string) (Lock, error) {
	for {
		f, err := openLock(name)
		if err != nil {
			return nil, err
		}
		l := &fileLock{f: f}
		switch l.exclusive, err = lockFile(f); {
		case errors.Is(err, ErrLocked):
			l.other = true
			return l, ErrLocked
		case err != nil:
			return nil, errors.Join(err, f.Close())
		}
		if l.current() {
			return l, nil
		}
		_ = f.Close() // the holder removed the file after it was opened here: try the new one
	}
}

// fileLock is an open lock file.
type fileLock struct {
	f         *os.File
	exclusive bool
	other     bool // somebody else holds it
}

// current reports whether the name still means the file that is open.
func (l *fileLock) current() bool {
	opened, err := l.f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(l.f.Name())
	return err == nil && os.SameFile(opened, named)
}

func (l *fileLock) Exclusive() bool { return l.exclusive }

// Read reopens the file: only then does a network file system fetch its current content.
func (l *fileLock) Read() ([]byte, error) {
	f, err := os.Open(l.f.Name())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxLock))
}

func (l *fileLock) Write(data []byte) error {
	if l.other {
		return pathError("write", l.f.Name(), ErrLocked)
	}
	if err := l.f.Truncate(int64(len(data))); err != nil {
		return err
	}
	if _, err := l.f.WriteAt(data, 0); err != nil {
		return err
	}
	return l.f.Sync()
}

func (l *fileLock) Abandon() error { return l.f.Close() }

func (l *fileLock) Close() error {
	if l.other {
		return l.f.Close()
	}
	return closeLock(l)
}
