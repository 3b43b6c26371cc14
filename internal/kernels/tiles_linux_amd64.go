// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package kernels

import (
	"sync"

	"golang.org/x/sys/unix"
)

// tilesAllowed asks the kernel once, for all threads of the process, for leave to use tile registers, whose 8 KiB it
// saves only for those that asked. It says no where a thread has a signal stack that is too small for them; those of Go
// are not.
var tilesAllowed = sync.OnceValue(func() bool {
	const (
		requestPermission = 0x1023 // ARCH_REQ_XCOMP_PERM of asm/prctl.h
		tileData          = 18     // the number of that part of a thread's state
	)
	_, _, failure := unix.RawSyscall(unix.SYS_ARCH_PRCTL, requestPermission, tileData, 0)
	return failure == 0
})
