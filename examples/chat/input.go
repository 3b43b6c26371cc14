// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"

	"github.com/lockstep-ml/lockstep/internal/terminal"
)

const (
	ready    = ">>> "
	goesOn   = "... "
	quotes   = `"""`    // around a message of several lines
	maxInput = 16 << 20 // bytes of a line from a pipe, or of what is pasted
	farewell = "Ctrl-C again, or Ctrl-D, ends"
)

// input is where messages come from: a person at a terminal, or a pipe.
type input struct {
	file   *os.File
	echo   io.Writer      // shows what is typed; nil: no person types
	lines  *bufio.Scanner // of what is no terminal, or of one that cannot move its cursor
	editor *editor        // of a terminal

	mu     sync.Mutex
	cooked *term.State // the terminal as it was, while a line is read
	ended  bool
}

// newInput reads from in. What is typed appears on out, or else on errors.
func newInput(in, out *os.File, errors io.Writer) *input {
	i := &input{file: in}
	if terminal.Is(in) {
		i.echo = errors
		if terminal.Is(out) {
			i.echo = out
		}
	}
	if i.echo == nil || !terminal.Moves(i.echo) {
		i.lines = bufio.NewScanner(in)
		i.lines.Buffer(nil, maxInput)
		return i
	}
	i.editor = &editor{keys: bufio.NewReader(in), out: i.echo, size: i.size,
		paint: func(prompt string) string { return terminal.Paint(i.echo, terminal.Bold, prompt) }}
	return i
}

// size is how many columns and rows the terminal has; 0 rows: it does not say.
func (i *input) size() (width, height int) {
	if w, h, err := term.GetSize(int(i.file.Fd())); err == nil && w > 0 {
		return w, h
	}
	return terminal.Width(i.echo), 0
}

// errInterrupted is Ctrl-C in place of a line.
var errInterrupted = errors.New("interrupted")

// message is the next message or command, io.EOF at the end. It may have several lines, between quotes or pasted
// together.
func (i *input) message() (string, error) {
	text, err := i.line(ready)
	rest, quoted := strings.CutPrefix(text, quotes)
	if err != nil || !quoted {
		return text, err
	}
	for text = rest; ; {
		if inside, closed := strings.CutSuffix(strings.TrimRight(text, " \t"), quotes); closed {
			return strings.TrimPrefix(inside, "\n"), nil
		}
		more, err := i.line(goesOn)
		if errors.Is(err, io.EOF) {
			return "", fmt.Errorf("a message that begins with %s has no end: want %[1]s behind it", quotes)
		}
		if err != nil {
			return "", err
		}
		text += "\n" + more
	}
}

// line reads a line, which has several if they were pasted.
func (i *input) line(prompt string) (string, error) {
	if i.lines == nil {
		return i.edited(prompt)
	}
	if i.echo != nil {
		fmt.Fprint(i.echo, prompt)
	}
	if !i.lines.Scan() {
		if err := i.lines.Err(); err != nil {
			return "", err
		}
		return "", io.EOF
	}
	return strings.TrimSuffix(i.lines.Text(), "\r"), nil
}

// edited reads a message from a terminal.
func (i *input) edited(prompt string) (string, error) {
	if err := i.raw(int(i.file.Fd())); err != nil {
		return "", err
	}
	defer i.close()
	fmt.Fprint(i.echo, "\x1b[?2004h") // what is pasted is marked
	defer fmt.Fprint(i.echo, "\x1b[?2004l")
	return i.editor.read(prompt)
}

// end is close for good: no line is read after it. A signal may call it at any time.
func (i *input) end() {
	i.mu.Lock()
	i.ended = true
	i.mu.Unlock()
	i.close()
}

// raw takes the terminal's keys one by one until close.
func (i *input) raw(fd int) (err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return io.EOF
	}
	i.cooked, err = term.MakeRaw(fd)
	return err
}

// close gives the terminal back as it was.
func (i *input) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.cooked != nil {
		_ = term.Restore(int(i.file.Fd()), i.cooked) // there is nobody left to tell
		i.cooked = nil
	}
}
