// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package launch

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
)

// unsupported says that ranks cannot be started as processes here.
func unsupported() error {
	return fmt.Errorf("launch: not supported on %s yet, which has no process groups; use ranks in one process "+
		"(--num_replicas)", runtime.GOOS)
}

// interrupts are the signals that end a job whose ranks then save, as package program does.
var interrupts = []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}

func attributes() *syscall.SysProcAttr      { return nil }
func guardAttributes() *syscall.SysProcAttr { return nil }
func signalGroup(int, syscall.Signal) error { return unsupported() }
func awaitExit(int) bool                    { return false }
func groupAlive(int) bool                   { return false }
func sweep(string) int                      { return 0 }
func signalName(sig syscall.Signal) string  { return sig.String() }
func peakMemory(*os.ProcessState) int64     { return 0 }

const holdsFiles = false

func unnamedFile(string) (*os.File, error) { return nil, unsupported() }
func secretFile(string) (*os.File, error)  { return nil, unsupported() }

// standsStill is not known here.
func standsStill(int) bool { return false }

// rename does nothing: a name cannot be changed here.
func rename(string) {}
