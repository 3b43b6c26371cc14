// SPDX-License-Identifier: Apache-2.0

//go:build unix

package program

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// interrupts are the signals that end a program's context: not those that whoever started the process has it ignore,
// as nohup does with SIGHUP. A shell has programs in the background ignore SIGINT, but a signal that is sent to the
// process itself is meant.
func interrupts() []os.Signal {
	list := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1} {
		if !signal.Ignored(s) {
			list = append(list, s)
		}
	}
	return list
}

// failedWrites are the signals of writes that fail.
func failedWrites() []os.Signal { return []os.Signal{syscall.SIGPIPE, syscall.SIGXFSZ} }

// dumps reports whether a signal asks for the stacks.
func dumps(s os.Signal) bool { return s == syscall.SIGQUIT }

// hangup reports whether a signal says that the terminal is gone.
func hangup(s os.Signal) bool { return s == syscall.SIGHUP }

// exitCode is that of an interrupt; got is nil if another rank was interrupted.
func exitCode(got os.Signal) int {
	if got == syscall.SIGUSR1 {
		return 128 + int(syscall.SIGUSR1)
	}
	return ExitInterrupted
}

func signalName(s os.Signal) string {
	if n, ok := s.(syscall.Signal); ok && unix.SignalName(n) != "" {
		return unix.SignalName(n)
	}
	return s.String()
}

// die ends the process by a signal, as if nothing had handled it. Go does nothing upon a SIGUSR1 that nobody handles.
func die(sig os.Signal) {
	if sig == syscall.SIGUSR1 {
		sig = syscall.SIGTERM
	}
	signal.Reset(sig)
	_ = syscall.Kill(os.Getpid(), sig.(syscall.Signal)) // interrupts has no others
}
