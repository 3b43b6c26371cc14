// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package launch

import (
	"errors"
	"os"
	"runtime"
	"syscall"
)

// attributes gives a rank a process group. There is no parent's death signal here: the
// guard ends the ranks of a launcher that was killed.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// awaitExit cannot wait without reaping here.
func awaitExit(int) bool { return false }

// groupAlive reports whether the group has a process.
func groupAlive(pgid int) bool {
	err := syscall.Kill(-pgid, 0)
	return err == nil || !errors.Is(err, syscall.ESRCH) && !errors.Is(err, syscall.EPERM)
}

// sweep finds nothing: other processes' environments cannot be read here.
func sweep(string) int { return 0 }

// peakMemory is the most memory that an ended process held at once, in bytes.
func peakMemory(state *os.ProcessState) int64 {
	if runtime.GOOS == "darwin" {
		return resident(state)
	}
	return resident(state) << 10
}

// standsStill is not known here.
func standsStill(int) bool { return false }

// holdsFiles says that other processes cannot open the files that this one holds.
const holdsFiles = false

func unnamedFile(string) (*os.File, error) { return nil, errors.ErrUnsupported }

// secretFile returns a file without a name that holds a text.
func secretFile(text string) (*os.File, error) { return removedFile(text) }

// rename does nothing: a name cannot be changed here.
func rename(string) {}
