// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package vfs

import (
	"errors"
	"os"
	"syscall"
)

func openLock(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o644)
}

// lockFile locks f. Network and user-space file systems that have no locks say ENOLCK,
// ENOTSUP or ENOSYS: then nothing is exclusive.
func lockFile(f *os.File) (exclusive bool, err error) {
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, ErrLocked
		case errors.Is(err, syscall.ENOLCK), errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ENOSYS):
			return false, nil
		default:
			return false, pathError("lock", f.Name(), err)
		}
	}
}

// closeLock removes the file while the lock is held, so that nobody locks a file whose name is about to go.
func closeLock(l *fileLock) error {
	var err error
	if l.current() {
		err = os.Remove(l.f.Name())
	}
	return errors.Join(err, l.f.Close())
}
