// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package main

import (
	"os"
	"syscall"
)

// handled are the signals that a launcher forwards.
var handled = []string{"SIGTERM", "SIGINT"}

// signalNames are those that a launcher may forward.
var signalNames = map[string]syscall.Signal{"SIGINT": syscall.SIGINT, "SIGTERM": syscall.SIGTERM}

// pipes are the signals of writes to a reader who is gone: there are none.
var pipes []os.Signal
