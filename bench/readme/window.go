// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// window is the picture of a terminal after a command.
type window struct {
	theme   theme
	columns int
	command string
	lines   [][]span
	cut     int // the number of the line before which lines are missing; 0: none are
}

// The window's measures, in pixels.
const (
	barHeight  = 34.0
	windowPad  = 18.0
	rowHeight  = 18.0
	fontHeight = 13.2
)

func (w *window) svg() string {
	var b strings.Builder
	rows := len(w.lines) + 1
	if w.cut > 0 {
		rows++
	}
	height := barHeight + 2*windowPad + float64(rows)*rowHeight
	w.frame(&b, height)
	y := barHeight + windowPad + 13
	w.prompt(&b, y)
	for i, line := range w.lines {
		y += rowHeight
		if w.cut > 0 && i == w.cut {
			w.put(&b, y, 0, "⋮", w.theme.muted, "")
			y += rowHeight
		}
		for _, s := range line {
			w.span(&b, y, s)
		}
	}
	b.WriteString("</g>\n")
	return document(height, "Terminal output of "+w.command, b.String())
}

func (w *window) frame(b *strings.Builder, height float64) {
	t := w.theme
	panel(b, height, t.panel, t.border)
	fmt.Fprintf(b, `<path d="M1 %.0fV9.5a8.5 8.5 0 0 1 8.5-8.5H%.1fa8.5 8.5 0 0 1 8.5 8.5V%.0fz" fill="%s"/>`+"\n",
		barHeight, pageWidth-9.5, barHeight, t.bar)
	for i, colour := range []string{"#ff5f57", "#febc2e", "#28c840"} {
		fmt.Fprintf(b, `<circle cx="%d" cy="%.0f" r="6" fill="%s"/>`+"\n", 20+20*i, barHeight/2, colour)
	}
	write(b, pageWidth/2, barHeight/2+4.5,
		fmt.Sprintf(`text-anchor="middle" font-family="%s" font-size="12.5" fill="%s"`, sans, t.muted), w.command)
	const group = `<g font-family="%s" font-size="%g" xml:space="preserve" style="font-variant-ligatures: none">`
	fmt.Fprintf(b, group+"\n", monospace, fontHeight)
}

func (w *window) prompt(b *strings.Builder, y float64) {
	w.put(b, y, 0, "$", w.theme.palette[3], ` font-weight="600"`)
	w.put(b, y, 2, w.command, w.theme.text, ` font-weight="600"`)
}

func (w *window) span(b *strings.Builder, y float64, s span) {
	if strings.TrimSpace(s.text) == "" {
		return
	}
	colour, extra := w.theme.text, ""
	switch {
	case s.style.colour > 0:
		colour = w.theme.palette[s.style.colour]
	case s.style.dim:
		colour = w.theme.muted
	}
	if s.style.bold {
		extra = ` font-weight="600"`
	}
	w.put(b, y, s.column, s.text, colour, extra)
}

// put writes a text from a column on. Its length is fixed, so that columns stay in line whatever the font.
func (w *window) put(b *strings.Builder, y float64, column int, text, colour, extra string) {
	advance := (pageWidth - 2*windowPad) / float64(w.columns)
	trimmed := strings.TrimLeft(text, " ")
	column += len(text) - len(trimmed)
	trimmed = strings.TrimRight(trimmed, " ")
	length := advance * float64(utf8.RuneCountInString(trimmed))
	write(b, windowPad+advance*float64(column), y,
		fmt.Sprintf(`textLength="%.2f" lengthAdjust="spacingAndGlyphs" fill="%s"%s`, length, colour, extra), trimmed)
}
