// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/rivo/uniseg"
)

// wrapper writes a text that comes in pieces and breaks its lines between words. A word that has reached the edge moves
// to the next line. Code keeps its lines, so that it can be copied.
type wrapper struct {
	out     io.Writer
	columns func() int // that a line has; 0: any number

	line string // as the text has it
	col  int
	word string // that the line ends with
	code bool   // between lines that begin with fence
}

const fence = "```"

func (w *wrapper) write(piece string) error {
	var s strings.Builder
	width := w.columns()
	for state := -1; piece != ""; {
		var c string
		var wide int
		c, piece, wide, state = uniseg.FirstGraphemeClusterInString(piece, state)
		w.add(&s, c, wide, width)
	}
	_, err := io.WriteString(w.out, s.String())
	return err
}

// add writes a character, which takes so many columns.
func (w *wrapper) add(s *strings.Builder, c string, wide, width int) {
	if c == "\n" {
		if strings.HasPrefix(strings.TrimLeft(w.line, " "), fence) {
			w.code = !w.code
		}
		s.WriteString(c)
		w.line, w.col, w.word = "", 0, ""
		return
	}
	w.line += c
	switch {
	case width == 0 || w.code || c == "\t":
	case w.col+wide <= width:
	case c == " ":
		w.word = "" // what comes next is on another line
		return
	case wide > 1 || uniseg.StringWidth(w.word) == w.col: // it breaks anywhere
		w.lineEnd(s)
	default:
		if n := uniseg.StringWidth(w.word); n > 0 {
			fmt.Fprintf(s, "\x1b[%dD\x1b[K", n)
		}
		word := w.word
		w.lineEnd(s)
		s.WriteString(word)
		w.word, w.col = word, uniseg.StringWidth(word)
	}
	s.WriteString(c)
	if w.col += wide; c == " " || c == "\t" || wide > 1 {
		w.word = ""
	} else {
		w.word += c
	}
}

func (w *wrapper) lineEnd(s *strings.Builder) {
	s.WriteByte('\n')
	w.col, w.word = 0, ""
}
