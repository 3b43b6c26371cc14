package callbacks_test

import (
	"strconv"
	"strings"
	"sync"
)

// screen is a terminal's screen: it does what a program's output asks for, as far as displays use it.
type screen struct {
	mu            sync.Mutex
	width, height int
	rows          [][]rune
	wrapped       []bool   // the row goes on in the next one
	history       []string // rows that have left the screen at the top
	broken        []string // lines that did not fit
	row, col      int
	rest          []byte // an escape sequence or character that is not complete
}

func newScreen(width, height int) *screen { return &screen{width: width, height: height} }

// Write implements io.Writer.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := []rune(string(append(s.rest, p...)))
	s.rest = nil
	for i := 0; i < len(text); i++ {
		switch r := text[i]; {
		case r == '\uFFFD' && i >= len(text)-3: // the beginning of a character
			s.rest = append(s.rest, p[len(p)-(len(text)-i):]...)
			return len(p), nil
		case r == '\r':
			s.col = 0
		case r == '\n':
			s.col = 0
			s.down()
		case r == '\x1b':
			n := s.escape(text[i:])
			if n == 0 {
				s.rest = []byte(string(text[i:]))
				return len(p), nil
			}
			i += n - 1
		default:
			s.put(r)
		}
	}
	return len(p), nil
}

func (s *screen) line() []rune {
	for len(s.rows) <= s.row {
		s.rows, s.wrapped = append(s.rows, nil), append(s.wrapped, false)
	}
	return s.rows[s.row]
}

func (s *screen) put(r rune) {
	if s.col >= s.width {
		s.broken = append(s.broken, string(s.line()))
		s.line()
		s.wrapped[s.row] = true
		s.col = 0
		s.down()
	}
	line := s.line()
	for len(line) <= s.col {
		line = append(line, ' ')
	}
	line[s.col] = r
	s.rows[s.row] = line
	s.col++
}

func (s *screen) down() {
	s.line()
	if s.row++; s.row >= s.height {
		s.history = append(s.history, strings.TrimRight(string(s.rows[0]), " "))
		s.rows, s.wrapped, s.row = s.rows[1:], s.wrapped[1:], s.height-1
	}
	s.line()
}

// escape does the sequence that text begins with and gives its length; 0 if it is not complete.
func (s *screen) escape(text []rune) int {
	for i := 2; i < len(text); i++ {
		if c := text[i]; c >= '@' {
			n, _ := strconv.Atoi(string(text[2:i]))
			switch {
			case c == 'J' && n == 0:
				s.line()
				s.rows, s.wrapped = s.rows[:s.row+1], s.wrapped[:s.row+1]
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

// resize changes the width as terminals do that break and join lines anew: the cursor stays at its character.
func (s *screen) resize(width int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line()
	var rows [][]rune
	var wrapped []bool
	row, col := 0, s.col
	for i, line := range s.rows {
		if i == s.row {
			row = len(rows) + s.col/width
			col = s.col % width
		}
		for len(line) > width {
			rows, wrapped = append(rows, line[:width]), append(wrapped, true)
			line = line[width:]
		}
		rows, wrapped = append(rows, line), append(wrapped, false)
	}
	s.width, s.rows, s.wrapped, s.row, s.col = width, rows, wrapped, row, col
}

// lines gives all lines, those that have left the screen too, without empty ones at the end.
func (s *screen) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := append([]string(nil), s.history...)
	for _, line := range s.rows {
		out = append(out, strings.TrimRight(string(line), " "))
	}
	for len(out) > 0 && out[len(out)-1] == "" {
		out = out[:len(out)-1]
	}
	return out
}

// text is lines as one text.
func (s *screen) text() string { return strings.Join(s.lines(), "\n") }

// tooLong gives the lines that were broken because they did not fit.
func (s *screen) tooLong() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}
