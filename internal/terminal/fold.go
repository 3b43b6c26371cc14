// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"strings"
	"unicode/utf8"
)

// Columns is how wide a text is on a terminal. Characters of double width are not known: our lines have none.
func Columns(text string) int { return utf8.RuneCountInString(text) }

// Fold breaks a text into lines of at most width columns between its parts, or within one that is too long between
// words. The first line begins with head, the others with indent. A single word that is too long has its own line. A
// width of 0 is any.
func Fold(parts []string, between string, width int, head, indent string) []string {
	if width == 0 {
		return []string{head + strings.Join(parts, between)}
	}
	f := folder{width: width, indent: indent, line: head, empty: true}
	mark := strings.TrimRight(between, " ")
	for i, part := range parts {
		if i < len(parts)-1 {
			part += mark
		}
		f.part(part, between[len(mark):])
	}
	return append(f.lines, f.line)
}

// Words is Fold of a text between its words.
func Words(text string, width int, indent string) []string {
	if width == 0 {
		return []string{text}
	}
	return Fold(strings.Fields(text), " ", width, "", indent)
}

// Lines is a text whose lines have at most width columns: one that is longer continues in the next, between words and
// two columns further in. All blanks within a line stay.
func Lines(text string, width int) string {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		if width == 0 || Columns(line) <= width {
			lines = append(lines, line)
			continue
		}
		words := strings.TrimLeft(line, " ")
		indent := line[:len(line)-len(words)]
		lines = append(lines, Fold(strings.Split(words, " "), " ", width, indent, indent+"  ")...)
	}
	return strings.Join(lines, "\n")
}

// Paragraphs is Lines of a text whose lines are broken already: the lines of a paragraph that do not fit are refilled.
// A paragraph with a line that begins with a blank is a list, whose lines stay apart.
func Paragraphs(text string, width int) string {
	if width == 0 {
		return text
	}
	paragraphs := strings.Split(text, "\n\n")
	for i, p := range paragraphs {
		if !strings.HasPrefix(p, " ") && !strings.Contains(p, "\n ") {
			words := strings.TrimRight(p, "\n")
			paragraphs[i] = strings.Join(Words(words, width, ""), "\n") + p[len(words):]
			continue
		}
		paragraphs[i] = Lines(p, width)
	}
	return strings.Join(paragraphs, "\n\n")
}

// folder fills lines.
type folder struct {
	width  int
	indent string
	lines  []string
	line   string
	empty  bool // nothing is in the line yet
}

// part adds a part behind a gap, or in its own line.
func (f *folder) part(part, gap string) {
	switch {
	case f.fits(gap, part):
		f.add(gap, part)
	case !f.empty && Columns(f.indent)+Columns(part) <= f.width:
		f.down()
		f.add("", part)
	default:
		for i, word := range strings.Fields(part) {
			if i > 0 {
				gap = " "
			}
			if !f.fits(gap, word) {
				f.down()
			}
			f.add(gap, word)
		}
	}
}

func (f *folder) fits(gap, text string) bool {
	if f.empty {
		gap = ""
	}
	return Columns(f.line)+Columns(gap)+Columns(text) <= f.width
}

func (f *folder) add(gap, text string) {
	if !f.empty {
		f.line += gap
	}
	f.line, f.empty = f.line+text, false
}

func (f *folder) down() {
	if !f.empty {
		f.lines, f.line, f.empty = append(f.lines, f.line), f.indent, true
	}
}

// Cut shortens a text to width columns.
func Cut(text string, width int) string {
	if Columns(text) <= width {
		return text
	}
	if width < 1 {
		return ""
	}
	return string([]rune(text)[:width-1]) + "…"
}

// CutLeft is Cut at the beginning: the end of a path has its name.
func CutLeft(text string, width int) string {
	n := Columns(text)
	if n <= width {
		return text
	}
	if width < 1 {
		return ""
	}
	return "…" + string([]rune(text)[n-width+1:])
}
