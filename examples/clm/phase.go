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
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	var bar *progressbar.ProgressBar
	return func(done, total int) {
		if bar == nil {
			bar = progressbar.NewOptions(total, progressbar.OptionSetWriter(f), progressbar.OptionSetDescription(name),
				progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(1e8))
		}
		_ = bar.Set(done) // a bar that cannot be drawn is no reason to stop
	}
}

// fileSize is the size of a file in bytes.
func fileSize(name string) (int64, error) {
	info, err := os.Stat(name)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
