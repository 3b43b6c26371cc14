// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/lockstep-ml/lockstep/internal/picture"
)

// window is the picture of a terminal after a command.
type window struct {
	columns int
	command string
	lines   [][]span
	cut     int // the number of the line before which lines are missing; 0: none are
}

// The window's measures, in pixels.
const (
	barHeight = 34.0
	windowPad = 22.0
	rowHeight = 20.0
	advance   = 9.03 // of a character in the fonts of class mono
)

// draw draws the window; how is the command that does so.
func (w *window) draw(how string) *picture.Picture {
	p := picture.Bare("Terminal output of "+w.command, how, "window")
	p.Raw(fmt.Sprintf(`<path class="bar" d="M1 %.0fV9.5a8.5 8.5 0 0 1 8.5-8.5H%.1fa8.5 8.5 0 0 1 8.5 8.5V%[1]gz"/>`+"\n",
		barHeight, picture.Width-9.5))
	for i := range 3 {
		p.Disc(20+20*float64(i), barHeight/2, 6, "grip")
	}
	p.Text(picture.Width/2, barHeight/2+4.5, "muted middle", w.command)
	y := barHeight + windowPad + 13
	w.put(p, y, 0, "$", "ansi3 bold")
	w.put(p, y, 2, w.command, "text bold")
	for i, line := range w.lines {
		y += rowHeight
		if w.cut > 0 && i == w.cut {
			w.put(p, y, 0, "⋮", "muted")
			y += rowHeight
		}
		for _, s := range line {
			if strings.TrimSpace(s.text) != "" {
				w.put(p, y, s.column, s.text, s.style.class())
			}
		}
	}
	if w.cut > 0 && w.cut == len(w.lines) {
		y += rowHeight
		w.put(p, y, 0, "⋮", "muted")
	}
	p.Height = y + rowHeight/2 + windowPad
	return p
}

// class is the style in the picture's sheet.
func (s style) class() string {
	class := "text"
	switch {
	case s.colour > 0:
		class = fmt.Sprint("ansi", s.colour)
	case s.dim:
		class = "muted"
	}
	if s.bold {
		class += " bold"
	}
	return class
}

// put writes a text from a column on. Its width is fixed, so that columns stay in line whatever the font.
func (w *window) put(p *picture.Picture, y float64, column int, text, class string) {
	advance := min(advance, (picture.Width-2*windowPad)/float64(w.columns))
	trimmed := strings.TrimLeft(text, " ")
	column += len(text) - len(trimmed)
	trimmed = strings.TrimRight(trimmed, " ")
	width := advance * float64(utf8.RuneCountInString(trimmed))
	p.Fixed(windowPad+advance*float64(column), y, width, class+" mono", trimmed)
}
