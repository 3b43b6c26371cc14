// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// style is how a character looks.
type style struct {
	colour int // 0: the default; 1 to 8: black, red, green, yellow, blue, magenta, cyan, white
	bold   bool
	dim    bool
}

// cell is one character of the screen.
type cell struct {
	char  rune
	style style
}

// span is a part of a line in one style.
type span struct {
	column int
	text   string
	style  style
}

// screen is a terminal that keeps every line. It knows what progress bars and log lines use: carriage returns,
// backspaces, tabs, movements of the cursor, erasing, and colours. It ignores other escape sequences.
type screen struct {
	columns     int
	rows        [][]cell
	row, column int
	style       style
}

func newScreen(columns int) *screen { return &screen{columns: columns, rows: make([][]cell, 1)} }

var header = regexp.MustCompile(`(?s)\AScript started on [^\n]*\n`)
var trailer = regexp.MustCompile(`(?s)\n?Script done on [^\n]*\n\z`)

// unwrapScript removes the lines that script(1) adds at the begin and the end of its file.
func unwrapScript(text string) string {
	return trailer.ReplaceAllString(header.ReplaceAllString(text, ""), "")
}

// escape is a control sequence: its parameters and its final letter; or a title (OSC); or a short sequence.
var escape = regexp.MustCompile("^\x1b(?:\\[([0-9;?]*)[ -/]*([@-~])|\\][^\a\x1b]*(?:\a|\x1b\\\\)|[()].|[=>78DEHM])")

// play feeds the text to the screen until a line contains the text until, and tells whether one did. An empty until
// plays everything.
func (s *screen) play(text, until string) bool {
	for len(text) > 0 {
		if m := escape.FindStringSubmatch(text); m != nil {
			s.control(m[1], m[2])
			text = text[len(m[0]):]
			continue
		}
		r := []rune(text[:min(len(text), 4)])[0]
		text = text[len(string(r)):]
		if until != "" && (r == '\r' || r == '\n') && strings.Contains(plain(s.rows[s.row]), until) {
			return true
		}
		s.put(r)
	}
	return until == "" || strings.Contains(plain(s.rows[s.row]), until)
}

// put writes one character and moves the cursor.
func (s *screen) put(r rune) {
	switch {
	case r == '\r':
		s.column = 0
	case r == '\n':
		s.down(1)
	case r == '\b':
		s.column = max(0, s.column-1)
	case r == '\t':
		s.column = min(s.columns-1, s.column/8*8+8)
	case r >= ' ' && r != '\x7f':
		if s.column >= s.columns {
			s.column = 0
			s.down(1)
		}
		line := s.rows[s.row]
		for len(line) <= s.column {
			line = append(line, cell{char: ' '})
		}
		line[s.column] = cell{r, s.style}
		s.rows[s.row] = line
		s.column++
	}
}

func (s *screen) down(n int) {
	s.row += n
	for len(s.rows) <= s.row {
		s.rows = append(s.rows, nil)
	}
}

// control does what a control sequence asks for.
func (s *screen) control(parameters, final string) {
	n := 1
	if v, err := strconv.Atoi(parameters); err == nil {
		n = v
	}
	switch final {
	case "A":
		s.row = max(0, s.row-n)
	case "B":
		s.down(n)
	case "C":
		s.column = min(s.columns-1, s.column+n)
	case "D":
		s.column = max(0, s.column-n)
	case "G":
		s.column = min(max(0, n-1), s.columns-1)
	case "K":
		s.eraseLine(parameters)
	case "J":
		s.eraseLine(parameters)
		if parameters == "" || parameters == "0" {
			s.rows = s.rows[:s.row+1]
		}
	case "m":
		s.setStyle(parameters)
	}
}

func (s *screen) eraseLine(parameters string) {
	line := s.rows[s.row]
	switch parameters {
	case "", "0":
		s.rows[s.row] = line[:min(s.column, len(line))]
	case "1":
		for i := range min(s.column+1, len(line)) {
			line[i] = cell{char: ' '}
		}
	case "2":
		s.rows[s.row] = nil
	}
}

func (s *screen) setStyle(parameters string) {
	for _, p := range strings.Split(parameters, ";") {
		n, _ := strconv.Atoi(p)
		switch {
		case n == 0:
			s.style = style{}
		case n == 1:
			s.style.bold = true
		case n == 2:
			s.style.dim = true
		case n == 22:
			s.style.bold, s.style.dim = false, false
		case n >= 30 && n <= 37:
			s.style.colour = n - 29
		case n == 39:
			s.style.colour = 0
		case n == 90:
			s.style.colour, s.style.dim = 0, true
		case n >= 91 && n <= 97:
			s.style.colour = n - 89
		}
	}
}

func plain(line []cell) string {
	var b strings.Builder
	for _, c := range line {
		b.WriteRune(c.char)
	}
	return strings.TrimRight(b.String(), " ")
}

// lines are the lines of the screen as spans, without empty ones at the end.
func (s *screen) lines() [][]span {
	var out [][]span
	for _, row := range s.rows {
		var spans []span
		for column, c := range row[:len([]rune(plain(row)))] {
			if last := len(spans) - 1; last >= 0 && spans[last].style == c.style {
				spans[last].text += string(c.char)
				continue
			}
			spans = append(spans, span{column, string(c.char), c.style})
		}
		out = append(out, spans)
	}
	for len(out) > 0 && len(out[len(out)-1]) == 0 {
		out = out[:len(out)-1]
	}
	return out
}

// excerpt keeps the first and the last lines if there are more than both. Cut is the number of the line before which
// lines are missing, or 0.
func excerpt(lines [][]span, head, tail int) (kept [][]span, cut int) {
	if len(lines) <= head+tail {
		return lines, 0
	}
	return slices.Concat(lines[:head], lines[len(lines)-tail:]), head
}
