// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"os"
	"syscall"
)

// handled are the signals that a launcher forwards and that end the job, unless signals_to_handle says otherwise:
// torchrun's, and the one by which schedulers announce the end.
var handled = []string{"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1"}

// signalNames are those that a launcher may forward.
var signalNames = map[string]syscall.Signal{
	"SIGINT": syscall.SIGINT, "SIGTERM": syscall.SIGTERM, "SIGHUP": syscall.SIGHUP, "SIGQUIT": syscall.SIGQUIT,
	"SIGUSR1": syscall.SIGUSR1,
}

// pipes are the signals of writes to a reader who is gone.
var pipes = []os.Signal{syscall.SIGPIPE}
