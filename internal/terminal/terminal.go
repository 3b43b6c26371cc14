// SPDX-License-Identifier: Apache-2.0

// Package terminal decides the width and colour of output for people. Every program, display and log asks it, so that
// one screen has one look.
package terminal

import (
	"io"
	"os"
	"strconv"

	"golang.org/x/term"
)

// EnvColumns is the width that lines of a process may have whose output appears on a terminal although it goes into a
// pipe: lockstep launch sets it for its ranks, and prints their lines behind its own prefix.
const EnvColumns = "LOCKSTEP_COLUMNS"

// Full is how many columns a line has at most on a wide terminal.
const Full = 100

// usual is the width of a terminal that does not report it.
const usual = 80

// descriptor is the file descriptor that w writes to; false if it has none. A wrapper of a file has a method Fd.
func descriptor(w io.Writer) (int, bool) {
	f, ok := w.(interface{ Fd() uintptr })
	if !ok {
		return 0, false
	}
	return int(f.Fd()), true
}

// Is reports whether w writes to a terminal.
func Is(w io.Writer) bool {
	fd, ok := descriptor(w)
	return ok && term.IsTerminal(fd)
}

// Width is the number of columns that a line on w may have; 0 if it is not for a screen, as in a file. A terminal has
// one column more: some break a line that is full. One that does not report its width has the variable COLUMNS, or 80.
// Pipes have EnvColumns.
func Width(w io.Writer) int {
	fd, ok := descriptor(w)
	if !ok {
		return 0
	}
	if !term.IsTerminal(fd) {
		return variable(EnvColumns)
	}
	width, _, err := term.GetSize(fd)
	if err != nil || width <= 0 {
		width = variable("COLUMNS")
	}
	if width <= 0 {
		width = usual
	}
	return max(width-1, 1)
}

// variable is an environment variable that holds a width; 0 if it holds none.
func variable(name string) int {
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// Moves reports whether the cursor of w can be moved, so that a line may change in place: on terminals that are not
// dumb.
func Moves(w io.Writer) bool { return Is(w) && os.Getenv("TERM") != "dumb" }

// Style is how a text is painted: a parameter of the escape sequence SGR (ECMA-48).
type Style string

// The styles. Few texts have one: names of lines are bold, warnings yellow, errors red.
const (
	Bold   Style = "1"
	Red    Style = "31"
	Green  Style = "32"
	Yellow Style = "33"
)

// Colour reports whether texts on w may be painted: on terminals that are not dumb, without NO_COLOR
// (https://no-color.org), and not in continuous integration (the variable CI).
func Colour(w io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("CI") == "" && os.Getenv("TERM") != "" && Moves(w)
}

// Paint returns text in a style if w has colour.
func Paint(w io.Writer, s Style, text string) string {
	if text == "" || !Colour(w) {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}
