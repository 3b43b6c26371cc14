// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OpenTerminal opens a terminal of the system of so many columns and rows. What is written to it can be read from the
// other end, and what is written there is typed. The caller closes both; reading from the other end fails when the
// terminal is closed.
func OpenTerminal(columns, rows int) (terminal, other *os.File, err error) {
	other, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	n, err := unix.IoctlGetInt(int(other.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(other.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err == nil {
		err = SetSize(terminal, columns, rows)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("screen: opening a terminal: %w", err), other.Close())
	}
	return terminal, other, nil
}

// SetSize changes the size of a terminal.
func SetSize(terminal *os.File, columns, rows int) error {
	return unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Col: uint16(columns), Row: uint16(rows)})
}
