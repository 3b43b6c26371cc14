// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The operations of futex(2); they are not the private ones, since processes share the words.
const (
	futexWait = 0
	futexWake = 1
)

// park sleeps until word is no longer old, a wake, or d has passed.
func park(word *atomic.Uint32, old uint32, d time.Duration) {
	timeout := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(old),
		uintptr(unsafe.Pointer(&timeout)), 0, 0)
}

// unpark wakes all who sleep on word.
func unpark(word *atomic.Uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, 1<<30, 0, 0, 0)
}
