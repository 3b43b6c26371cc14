// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

// editor reads messages that are typed on a terminal in raw mode, and shows them. A pasted one has its line ends, and
// Alt-Enter adds one. Characters may have any width.
type editor struct {
	keys  *bufio.Reader
	out   io.Writer
	size  func() (width, height int)
	paint func(prompt string) string

	prompt        string
	before, after string // the text, on both sides of the cursor
	history       []string
	shown         int    // in history; its length: none
	draft         string // what was typed before one of history was shown
	frame         frame  // on the screen
}

// frame is what the screen shows of a text.
type frame struct {
	width    int
	rows     []string
	columns  []int // that each row takes
	row, col int   // of the cursor
}

const (
	tab         = "    " // how one is shown
	pasteBegins = "200~" // behind the escape character and [
	pasteEnds   = "\x1b[201~"
)

// lineEnds makes a line feed of whatever ends a line (Unicode annex 14).
var lineEnds = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n")

// The control characters that the editor obeys, as readline has them.
const (
	controlA = iota + 1
	controlB
	controlC
	controlD
	controlE
	controlF
	controlH  = 8
	controlK  = 11
	controlL  = 12
	controlN  = 14
	controlP  = 16
	controlU  = 21
	controlW  = 23
	escape    = 27
	backspace = 127
)

// read is the next text. The error is errInterrupted for Ctrl-C, io.EOF for Ctrl-D in place of one.
func (e *editor) read(prompt string) (string, error) {
	e.prompt, e.before, e.after, e.shown, e.frame = prompt, "", "", len(e.history), frame{}
	for {
		if e.keys.Buffered() == 0 { // what comes together is shown together
			if err := e.draw(); err != nil {
				return "", err
			}
		}
		key, _, err := e.keys.ReadRune()
		if err != nil {
			return "", e.leave(err)
		}
		switch {
		case key == '\r' || key == '\n':
			text := e.before + e.after
			if strings.TrimSpace(text) != "" && (len(e.history) == 0 || e.history[len(e.history)-1] != text) {
				e.history = append(e.history, text)
			}
			return text, e.leave(nil)
		case key == controlC:
			return "", e.leave(errInterrupted)
		case key == controlD && e.before+e.after == "":
			return "", e.leave(io.EOF)
		case key == escape:
			err = e.sequence()
		default:
			e.obey(key)
		}
		if err != nil {
			return "", e.leave(err)
		}
	}
}

// leave shows all of the text and goes below it.
func (e *editor) leave(err error) error {
	e.before, e.after = e.before+e.after, ""
	width, _ := e.size()
	e.show(e.layout(width))
	if _, wrote := io.WriteString(e.out, "\r\n"); err == nil {
		return wrote
	}
	return err
}

// obey does what a key says.
func (e *editor) obey(key rune) {
	switch key {
	case controlA:
		e.move(e.lineStart())
	case controlE:
		e.move(len(e.before) + e.lineEnd())
	case controlB:
		e.move(len(e.before) - len(last(e.before)))
	case controlF:
		e.move(len(e.before) + len(first(e.after)))
	case controlD:
		e.after = e.after[len(first(e.after)):]
	case controlH, backspace:
		e.before = e.before[:len(e.before)-len(last(e.before))]
	case controlK:
		e.after = e.after[e.lineEnd():]
	case controlU:
		e.before = e.before[:e.lineStart()]
	case controlW:
		e.before = e.before[:e.wordStart()]
	case controlP:
		e.recall(-1)
	case controlN:
		e.recall(1)
	case controlL:
		_, _ = io.WriteString(e.out, "\x1b[H\x1b[2J") // the next thing that is drawn fails as well
		e.frame = frame{}
	default:
		e.before += printable(lineEnds.Replace(string(key)))
	}
}

// sequence obeys what follows an escape character.
func (e *editor) sequence() error {
	key, _, err := e.keys.ReadRune()
	if err != nil {
		return err
	}
	switch key {
	case '\r', '\n':
		e.before += "\n"
	case 'b':
		e.move(e.wordStart())
	case 'f':
		e.move(e.wordEnd())
	case backspace:
		e.before = e.before[:e.wordStart()]
	case '[', 'O':
		var name strings.Builder
		for {
			if key, _, err = e.keys.ReadRune(); err != nil {
				return err
			}
			name.WriteRune(key)
			if key >= '@' {
				break
			}
		}
		if name.String() == pasteBegins {
			return e.paste()
		}
		e.function(name.String())
	}
	return nil
}

// function obeys a key that sends a sequence (ECMA-48 and xterm).
func (e *editor) function(name string) {
	switch name {
	case "A":
		e.recall(-1)
	case "B":
		e.recall(1)
	case "C":
		e.obey(controlF)
	case "D":
		e.obey(controlB)
	case "H", "1~", "7~":
		e.obey(controlA)
	case "F", "4~", "8~":
		e.obey(controlE)
	case "3~":
		e.obey(controlD)
	case "1;5C", "1;3C":
		e.move(e.wordEnd())
	case "1;5D", "1;3D":
		e.move(e.wordStart())
	}
}

// paste adds what the terminal says is pasted.
func (e *editor) paste() error {
	var all strings.Builder
	large := false
	for !strings.HasSuffix(all.String(), pasteEnds) {
		key, _, err := e.keys.ReadRune()
		if err != nil {
			return err
		}
		if all.Len() > maxInput {
			all.Reset() // what is left would be taken for keys
			large = true
		}
		all.WriteRune(key)
	}
	if large {
		return fmt.Errorf("a message has at most %d bytes", maxInput)
	}
	text := strings.TrimSuffix(all.String(), pasteEnds)
	e.before += printable(lineEnds.Replace(text))
	return nil
}

// move puts the cursor at a byte of the text.
func (e *editor) move(at int) {
	text := e.before + e.after
	e.before, e.after = text[:at], text[at:]
}

func (e *editor) lineStart() int { return strings.LastIndexByte(e.before, '\n') + 1 }

// lineEnd is how many bytes of the line come after the cursor.
func (e *editor) lineEnd() int {
	line, _, _ := strings.Cut(e.after, "\n")
	return len(line)
}

// wordStart is where the word before the cursor begins, wordEnd where that behind it ends.
func (e *editor) wordStart() int {
	text := strings.TrimRightFunc(e.before, unicode.IsSpace)
	space := strings.LastIndexFunc(text, unicode.IsSpace)
	if space < 0 {
		return 0
	}
	_, size := utf8.DecodeRuneInString(text[space:])
	return space + size
}

func (e *editor) wordEnd() int {
	word := strings.TrimLeftFunc(e.after, unicode.IsSpace)
	blank := len(e.after) - len(word)
	if n := strings.IndexFunc(word, unicode.IsSpace); n >= 0 {
		word = word[:n]
	}
	return len(e.before) + blank + len(word)
}

// recall shows an earlier or later text.
func (e *editor) recall(by int) {
	to := e.shown + by
	if to < 0 || to > len(e.history) {
		return
	}
	if e.shown == len(e.history) {
		e.draft = e.before + e.after
	}
	e.before, e.after, e.shown = e.draft, "", to
	if to < len(e.history) {
		e.before = e.history[to]
	}
}

// first and last are characters as people see them (grapheme clusters, Unicode annex 29).
func first(text string) string {
	c, _, _, _ := uniseg.FirstGraphemeClusterInString(text, -1)
	return c
}

func last(text string) string {
	tail := text[strings.LastIndexByte(text, '\n')+1:]
	if tail == "" && text != "" {
		return "\n"
	}
	c := ""
	for state := -1; tail != ""; {
		c, tail, _, state = uniseg.FirstGraphemeClusterInString(tail, state)
	}
	return c
}

// layout breaks prompt and text into rows of at most so many columns.
func (e *editor) layout(width int) (f frame) {
	f.width = max(width, 1)
	var row strings.Builder
	col := 0
	end := func() {
		f.rows, f.columns = append(f.rows, row.String()), append(f.columns, col)
		row.Reset()
		col = 0
	}
	put := func(c string, wide int) {
		if col > 0 && col+wide > f.width {
			end()
		}
		row.WriteString(c)
		col += wide
	}
	begin := func(prompt string) {
		row.WriteString(e.paint(prompt))
		col = uniseg.StringWidth(prompt)
	}
	add := func(text string) {
		for state := -1; text != ""; {
			var c string
			var wide int
			c, text, wide, state = uniseg.FirstGraphemeClusterInString(text, state)
			switch c {
			case "\n":
				end()
				begin(goesOn)
			case "\t":
				put(tab, len(tab))
			default:
				put(c, wide)
			}
		}
	}
	begin(e.prompt)
	add(e.before)
	if col >= f.width { // the cursor is before what comes next
		end()
	}
	f.row, f.col = len(f.rows), col
	add(e.after)
	end()
	return f
}

// window is the part of a frame with the cursor that a screen has room for.
func (f frame) window(height int) frame {
	if height <= 0 || len(f.rows) <= height {
		return f
	}
	top := min(max(0, f.row-height+1), len(f.rows)-height)
	f.rows, f.columns, f.row = f.rows[top:top+height], f.columns[top:top+height], f.row-top
	return f
}

// draw shows the text as it is.
func (e *editor) draw() error {
	width, height := e.size()
	return e.show(e.layout(width).window(height))
}

// show puts a frame in place of the one on the screen.
func (e *editor) show(f frame) error {
	old := e.frame
	e.frame = f
	var s strings.Builder
	end := len(f.rows) - 1
	if at := len(old.rows) - 1; at >= 0 && at == end && old.row == at && f.row == end && old.width == f.width &&
		old.col == old.columns[at] && f.col == f.columns[end] && slices.Equal(old.rows[:at], f.rows[:end]) &&
		strings.HasPrefix(f.rows[end], old.rows[at]) {
		s.WriteString(f.rows[end][len(old.rows[at]):])
	} else {
		up(&s, old.above(f.width))
		s.WriteString("\r\x1b[J" + strings.Join(f.rows, "\r\n"))
		up(&s, end-f.row)
		if s.WriteByte('\r'); f.col > 0 {
			fmt.Fprintf(&s, "\x1b[%dC", f.col)
		}
	}
	_, err := io.WriteString(e.out, s.String())
	return err
}

// above is how many rows lie above the cursor on a screen of another width, which has broken them again.
func (f frame) above(width int) int {
	n := f.row
	if width != f.width && len(f.rows) > 0 {
		n = f.col / width
		for _, columns := range f.columns[:f.row] {
			n += max(1, (columns+width-1)/width)
		}
	}
	return n
}

func up(s *strings.Builder, rows int) {
	if rows > 0 {
		fmt.Fprintf(s, "\x1b[%dA", rows)
	}
}
