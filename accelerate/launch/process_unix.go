// SPDX-License-Identifier: Apache-2.0

//go:build unix

package launch

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// unsupported is nil where ranks can be started.
func unsupported() error { return nil }

// signalGroup sends to all processes of a group.
func signalGroup(pgid int, sig syscall.Signal) error { return syscall.Kill(-pgid, sig) }

// interrupts are the signals that end a job whose ranks then save, as package program does.
var interrupts = []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1}

// signalName is "SIGKILL" and the like.
func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return sig.String()
}

// guardAttributes puts the guard into a group of its own.
func guardAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// resident is the most memory that an ended process held at once, in the system's unit.
func resident(state *os.ProcessState) int64 {
	if usage, ok := state.SysUsage().(*syscall.Rusage); ok {
		return usage.Maxrss
	}
	return 0
}
