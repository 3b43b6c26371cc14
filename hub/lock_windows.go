// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

const noFollow = 0

// lockFile takes the lock that Python's filelock takes, the first byte, and reports whether another process has it.
// shared: the file system has no locks.
func lockFile(f *os.File) (taken, shared bool, err error) {
	err = windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY,
		0, 1, 0, &windows.Overlapped{})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return true, false, nil
	}
	return false, false, err
}
