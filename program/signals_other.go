// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package program

import "os"

// interrupts are the signals that end a program's context.
func interrupts() []os.Signal { return []os.Signal{os.Interrupt} }

// failedWrites are the signals of writes that fail: there are none.
func failedWrites() []os.Signal { return nil }

// dumps reports whether a signal asks for the stacks.
func dumps(os.Signal) bool { return false }

// hangup reports whether a signal says that the terminal is gone.
func hangup(os.Signal) bool { return false }

// exitCode is that of an interrupt.
func exitCode(os.Signal) int { return ExitInterrupted }

func signalName(s os.Signal) string { return s.String() }

// die ends the process.
func die(os.Signal) {
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill() // it is this process
	}
}
