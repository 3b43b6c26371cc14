// SPDX-License-Identifier: Apache-2.0

package callbacks

import (
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/lockstep-ml/lockstep/internal/terminal"
)

// refresh is the least time between two drawings of a bar.
const refresh = 100 * time.Millisecond

// bar is a progress bar in a terminal's last line. The library draws it, not more often than the eye sees; the terminal
// puts what it draws below the lines above, with notes behind it as far as there is room.
type bar struct {
	progress *progressbar.ProgressBar
	terminal *Terminal
	label    string   // in front, as "evaluating"
	notes    []string // of the unit that is done, the most important first
	drawn    string   // as last drawn
	shown    []string // the notes then
}

// newBar makes a bar of a number of units at the unit from which the work continues.
func newBar(t *Terminal, label string, from, total int64, more ...progressbar.Option) *bar {
	b := &bar{terminal: t, label: label}
	cells := min(20, max(0, (t.width()-30)/2)) // the figures have the rest
	options := []progressbar.Option{progressbar.OptionSetWriter(b), progressbar.OptionUseANSICodes(true),
		progressbar.OptionThrottle(refresh), progressbar.OptionSetDescription(label),
		progressbar.OptionSetWidth(cells), progressbar.OptionSetPredictTime(false)}
	b.progress = progressbar.NewOptions64(max(total, 1), append(options, more...)...)
	b.set(from)
	return b
}

// set moves the bar to the unit that is done. Errors are those of writing, which stop nothing.
func (b *bar) set(done int64, notes ...string) {
	if len(notes) > 0 {
		b.terminal.mu.Lock()
		b.notes = notes
		b.terminal.mu.Unlock()
	}
	_ = b.progress.Set64(min(done, b.progress.GetMax64())) // draws where the percentage changes
	b.progress.Describe(b.label)                           // draws the notes too
}

// Write takes what the library draws: a line that begins with a carriage return and ends by clearing what is right of
// it.
func (b *bar) Write(p []byte) (int, error) {
	line := strings.TrimSuffix(strings.TrimPrefix(string(p), "\r"), "\x1b[0K")
	t := b.terminal
	t.mu.Lock()
	defer t.mu.Unlock()
	b.drawn, b.shown = strings.TrimRight(line, " "), b.notes
	if t.bar == b {
		_ = t.draw("")
	}
	return len(p), nil
}

// line is what the terminal shows, in at most width columns: a narrow one gets fewer notes.
func (b *bar) line(width int) string {
	line := terminal.Cut(b.drawn, width)
	for i, note := range b.shown {
		gap := "  "
		if i == 0 {
			gap = " "
		}
		if terminal.Columns(line+gap+note) <= width {
			line += gap + note
		}
	}
	return line
}
