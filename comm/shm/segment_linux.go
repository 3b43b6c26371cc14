// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// preferred is the kind of segment that is tried first.
const preferred = anonymous

// mapFlags fault all pages in when a segment is mapped, not in the first steps of training.
const mapFlags = unix.MAP_SHARED | unix.MAP_POPULATE

// makeAnonymous makes a segment without a name. Its size is sealed, so that no process can be killed by another's
// truncating it.
func makeAnonymous(n int) (*segment, string, error) {
	fd, err := unix.MemfdCreate("lockstep", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, "", fmt.Errorf("memfd: %w", err)
	}
	s := &segment{file: os.NewFile(uintptr(fd), "lockstep")}
	if err := reserve(s.file, n); err != nil {
		s.settle()
		return nil, "", fmt.Errorf("reserve %d bytes of memory: %w", n, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS,
		unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		s.settle()
		return nil, "", fmt.Errorf("seal: %w", err)
	}
	return s, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), nil
}

// reserve takes the memory now, so that a lack of it is an error here and not the end of the process at some later
// access.
func reserve(f *os.File, n int) error { return unix.Fallocate(int(f.Fd()), 0, 0, int64(n)) }
