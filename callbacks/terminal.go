// SPDX-License-Identifier: Apache-2.0

package callbacks

import (
	"bytes"
	"context"
	"io"
	"log"
	"log/slog"
	"os"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/terminal"
)

// Terminal is a terminal with a progress bar in its last line while a run shows one. What is written to it appears
// above the bar, line by line. A program that writes to a terminal on which a run is shown writes through TerminalOf,
// so that its text and the bar do not run into each other. It is safe for concurrent use.
type Terminal struct {
	file *os.File // nil in tests
	w    io.Writer
	size func() int // columns that a line may have; 0: any number

	mu    sync.Mutex
	bar   *bar // nil: none is shown
	drawn bool // the bar stands in the last line, the cursor at its beginning
	held  int  // calls of hold: the bar is out of the way
	tail  []byte
}

// terminals has the Terminal of each *os.File: whatever writes to a file shares its bar.
var terminals sync.Map

// TerminalOf returns the terminal that f is, the same one for the same f. For a file that is no terminal it writes
// through.
func TerminalOf(f *os.File) *Terminal {
	t := &Terminal{file: f, w: f, size: func() int { return terminal.Width(f) }}
	if !terminal.Is(f) {
		return t
	}
	shared, _ := terminals.LoadOrStore(f, t)
	return shared.(*Terminal)
}

// AboveBar returns TerminalOf a file, and any other writer as it is: where a program's own messages and log go.
func AboveBar(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); ok {
		return TerminalOf(f)
	}
	return w
}

// newTerminal returns a terminal for whatever a display writes to.
func newTerminal(w io.Writer) *Terminal {
	if f, ok := w.(*os.File); ok {
		return TerminalOf(f)
	}
	return &Terminal{w: w, size: func() int { return terminal.Full }}
}

// Fd is the descriptor of the terminal's file, by which programs find out what it is.
func (t *Terminal) Fd() uintptr {
	if t.file == nil {
		return ^uintptr(0) // of no file
	}
	return t.file.Fd()
}

// Write writes whole lines above the bar. What follows the last line break waits for its own, unless no bar is shown.
func (t *Terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bar == nil && len(t.tail) == 0 {
		return t.w.Write(p)
	}
	end := bytes.LastIndexByte(p, '\n') + 1
	text := append(t.tail, p[:end]...)
	t.tail = append([]byte(nil), p[end:]...)
	if end == 0 {
		text, t.tail = nil, append(text, p...)
	}
	if len(text) == 0 {
		return len(p), nil
	}
	if err := t.draw(string(text)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Handler returns a handler that lets h write to the terminal that the bar is on: the bar makes room and comes back.
func (t *Terminal) Handler(h slog.Handler) slog.Handler { return aboveBar{h, t} }

// aboveBar keeps the bar out of the way while a log record is written.
type aboveBar struct {
	slog.Handler
	terminal *Terminal
}

// Handle implements slog.Handler.
func (h aboveBar) Handle(ctx context.Context, r slog.Record) error {
	h.terminal.hold(1)
	defer h.terminal.hold(-1)
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h aboveBar) WithAttrs(a []slog.Attr) slog.Handler {
	return aboveBar{h.Handler.WithAttrs(a), h.terminal}
}

// WithGroup implements slog.Handler.
func (h aboveBar) WithGroup(name string) slog.Handler {
	return aboveBar{h.Handler.WithGroup(name), h.terminal}
}

// hold takes the bar away until as many calls of -1 as of 1 have come.
func (t *Terminal) hold(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held += n
	_ = t.draw("") // a bar that cannot be drawn does not concern who writes
}

// show puts a bar into the last line, or takes it away for good if b is nil. While there is one, the standard logger
// writes above it.
func (t *Terminal) show(b *bar) {
	t.mu.Lock()
	began := t.bar == nil && b != nil
	ended := t.bar != nil && b == nil
	t.bar = b
	text := ""
	if ended && len(t.tail) > 0 {
		text, t.tail = string(t.tail)+"\n", nil
	}
	_ = t.draw(text)
	t.mu.Unlock()
	if t.file == nil {
		return
	}
	// The logger locks itself while it writes here: it must not be touched under the terminal's lock.
	if began && log.Writer() == io.Writer(t.file) {
		log.SetOutput(t)
	}
	if ended && log.Writer() == io.Writer(t) {
		log.SetOutput(t.file)
	}
}

// draw writes text, whole lines or nothing, and the bar below it, in one piece. The cursor stays at the beginning of
// the bar's line: if a terminal that became narrower breaks the line in two, clearing from the cursor on still takes
// all of it away.
func (t *Terminal) draw(text string) error {
	line := ""
	if t.bar != nil && t.held == 0 {
		line = t.bar.line(t.width())
	}
	if text == "" && line == "" && !t.drawn {
		return nil
	}
	const clear = "\r\x1b[J"
	out := text
	if t.drawn && (text != "" || line == "") {
		out = clear + text
	}
	if line != "" {
		out += "\r" + line + "\x1b[J\r"
	}
	t.drawn = line != ""
	_, err := io.WriteString(t.w, out)
	return err
}

// width is how many columns a line may have.
func (t *Terminal) width() int {
	width := t.size()
	if width <= 0 {
		return terminal.Full
	}
	return min(width, terminal.Full)
}

// Width is how many columns a line may have, 100 at most.
func (t *Terminal) Width() int { return t.width() }
