// SPDX-License-Identifier: Apache-2.0

package vfs

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

func openLock(name string) (*os.File, error) { return os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644) }

// lockFile locks a byte far behind the contents, which others may then read.
func lockFile(f *os.File) (exclusive bool, err error) {
	at := &windows.Overlapped{OffsetHigh: 1}
	err = windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY,
		0, 1, 0, at)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, windows.ERROR_LOCK_VIOLATION):
		return false, ErrLocked
	}
	return false, pathError("lock", f.Name(), err)
}

// closeLock empties the file: Windows does not remove one that is open.
func closeLock(l *fileLock) error { return errors.Join(l.f.Truncate(0), l.f.Close()) }
