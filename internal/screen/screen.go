// SPDX-License-Identifier: Apache-2.0

// Package screen is a terminal for tests: a screen in memory that interprets a program's output, and (on Linux) a
// pseudo-terminal to run a program in. It knows the few control codes that displays use, and panics at others: it is
// not a terminal emulator.
package screen

import (
	"bytes"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

// Screen is what a terminal shows. It is safe for concurrent use.
type Screen struct {
	mu            sync.Mutex
	width, height int
	rows          [][]rune
	history       []string // rows that have left the screen at the top
	broken        []string // lines that did not fit
	row, col      int
	rest          []byte // an escape sequence or character that is not complete
}

// New returns an empty screen of so many columns and rows.
func New(width, height int) *Screen { return &Screen{width: width, height: height} }

// Width is the number of columns.
func (s *Screen) Width() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.width
}

// Write implements io.Writer.
func (s *Screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := append(s.rest, p...)
	for len(text) > 0 && utf8.FullRune(text) {
		r, n := utf8.DecodeRune(text)
		switch r {
		case '\r':
			s.col = 0
		case '\n':
			s.col = 0
			s.down()
		case '\x1b':
			n = s.escape(text)
		default:
			s.put(r)
		}
		if n == 0 {
			break
		}
		text = text[n:]
	}
	s.rest = bytes.Clone(text)
	return len(p), nil
}

func (s *Screen) line() []rune {
	for len(s.rows) <= s.row {
		s.rows = append(s.rows, nil)
	}
	return s.rows[s.row]
}

// filler is the second column of a character of double width.
const filler = 0

func (s *Screen) put(r rune) {
	wide := max(1, uniseg.StringWidth(string(r)))
	if s.col+wide > s.width {
		s.broken = append(s.broken, text(s.line()))
		s.col = 0
		s.down()
	}
	line := s.line()
	for len(line) < s.col+wide {
		line = append(line, ' ')
	}
	for i := range wide {
		line[s.col+i] = filler
	}
	line[s.col] = r
	s.rows[s.row] = line
	s.col += wide
}

// text is a row without fillers and blanks at its end.
func text(row []rune) string {
	return strings.TrimRight(strings.ReplaceAll(string(row), string(rune(filler)), ""), " ")
}

func (s *Screen) down() {
	s.line()
	if s.row++; s.row >= s.height {
		s.history = append(s.history, text(s.rows[0]))
		s.rows, s.row = s.rows[1:], s.height-1
	}
	s.line()
}

// escape does the sequence that text begins with and gives its length; 0 if it is not complete.
func (s *Screen) escape(text []byte) int {
	for i := 2; i < len(text); i++ {
		if c := text[i]; c >= '@' {
			n, _ := strconv.Atoi(string(text[2:i]))
			switch {
			case c == 'm': // colours are not kept
			case c == 'A':
				s.row = max(0, s.row-n)
			case c == 'C':
				s.col = min(s.width-1, s.col+n)
			case c == 'D':
				s.col = max(0, s.col-n)
			case c == 'J' && n == 0:
				s.line()
				s.rows = s.rows[:s.row+1]
				fallthrough
			case c == 'K' && n == 0:
				if line := s.line(); len(line) > s.col {
					s.rows[s.row] = line[:s.col]
				}
			default:
				panic("unknown escape sequence " + strconv.Quote(string(text[:i+1])))
			}
			return i + 1
		}
	}
	return 0
}

// Resize changes the width. Lines that have become too long are broken, as terminals do; the cursor stays at its
// character.
func (s *Screen) Resize(width int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line()
	var rows [][]rune
	row, col := 0, s.col
	for i, line := range s.rows {
		if i == s.row {
			row = len(rows) + s.col/width
			col = s.col % width
		}
		for len(line) > width {
			rows = append(rows, line[:width])
			line = line[width:]
		}
		rows = append(rows, line)
	}
	s.width, s.rows, s.row, s.col = width, rows, row, col
}

// Lines returns all lines, those that have left the screen too, without empty ones at the end.
func (s *Screen) Lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := append([]string(nil), s.history...)
	for _, line := range s.rows {
		out = append(out, text(line))
	}
	for len(out) > 0 && out[len(out)-1] == "" {
		out = out[:len(out)-1]
	}
	return out
}

// Text is Lines as one text.
func (s *Screen) Text() string { return strings.Join(s.Lines(), "\n") }

// Broken returns the lines that were broken because they did not fit.
func (s *Screen) Broken() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}
