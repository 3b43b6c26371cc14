// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"os/signal"
	"syscall"
)

// ignoreFileSizeSignal makes a write beyond the limit of ulimit -f an error like that of a
// full disk, instead of a crash.
func ignoreFileSizeSignal() { signal.Ignore(syscall.SIGXFSZ) }
