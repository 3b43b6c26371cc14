// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// newPhase shows the progress of a phase on a terminal; elsewhere nothing.
func newPhase(w io.Writer, name string) func(done, total int) {
	if terminalWidth(w) == 0 {
		return nil
	}
	var bar *progressbar.ProgressBar
	return func(done, total int) {
		if bar == nil {
			bar = progressbar.NewOptions(total, progressbar.OptionSetWriter(w), progressbar.OptionSetDescription(name),
				progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(1e8))
		}
		_ = bar.Set(done) // a bar that cannot be drawn is no reason to stop
	}
}

// terminalWidth is the number of columns of the terminal that w writes to, 80 if it does not report them; 0 if w is no
// terminal.
func terminalWidth(w io.Writer) int {
	f, ok := w.(interface{ Fd() uintptr })
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
		return width
	}
	return 80
}

// fileSize is the size of a file in bytes.
func fileSize(name string) (int64, error) {
	info, err := os.Stat(name)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
