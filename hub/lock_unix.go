// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package hub

import (
	"errors"
	"os"
	"syscall"
)

// noFollow keeps a lock from being somebody else's file.
const noFollow = syscall.O_NOFOLLOW

// lockFile takes the lock that Python's filelock takes, and reports whether another process has it. shared: the file
// system has no locks.
func lockFile(f *os.File) (taken, shared bool, err error) {
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return false, false, nil
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK), errors.Is(err, syscall.EACCES):
			return true, false, nil
		case errors.Is(err, syscall.ENOLCK), errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ENOSYS):
			return false, true, nil
		default:
			return false, false, err
		}
	}
}
