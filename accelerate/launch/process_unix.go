// SPDX-License-Identifier: Apache-2.0

//go:build unix

package launch

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// unsupported is nil where ranks can be started.
func unsupported() error { return nil }

// removedFile returns a file that holds a text, to be read only. It had a name in TMPDIR before it held anything.
func removedFile(text string) (*os.File, error) {
	w, err := os.CreateTemp("", "lockstep-token-*") // mode 0600
	if err != nil {
		return nil, err
	}
	r, err := os.Open(w.Name())
	err = errors.Join(err, os.Remove(w.Name()))
	if err == nil {
		_, err = w.WriteString(text)
	}
	if err = errors.Join(err, w.Close()); err != nil && r != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, err
}

// signalGroup sends to all processes of a group.
func signalGroup(pgid int, sig syscall.Signal) error { return syscall.Kill(-pgid, sig) }

// interrupts are the signals that end a job whose ranks then save, as package program does.
var interrupts = []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1}

// signalName is a signal's name, such as "SIGKILL".
func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return sig.String()
}

// guardAttributes puts the guard into its own group.
func guardAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// resident is the most memory that an ended process held at once, in the system's unit.
func resident(state *os.ProcessState) int64 {
	if usage, ok := state.SysUsage().(*syscall.Rusage); ok {
		return usage.Maxrss
	}
	return 0
}
