// SPDX-License-Identifier: Apache-2.0

// Package picture draws the pictures of the documents as SVG in one style: as wide as a page on GitHub, with a title, a
// legend, axes with round ticks and units, and a version each for light and for dark pages. The package knows no kind
// of chart: a program puts lines, boxes and discs where its axes say, and names their style by classes of one sheet.
//
// A picture names the command that drew it, so that a test can draw it again from its record.
package picture

import (
	"fmt"
	"html"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Measures that all pictures share, in pixels.
const (
	Width  = 830.0 // that of a README's text on GitHub
	Margin = 24.0  // of text at the left and at the right
	Top    = 98.0  // where the plot may begin: below the title, the note and the legend
	titleY = 33.0
	noteY  = 53.0
	keyY   = 77.0
)

// Picture is a picture in the making. Classes of its elements are those of a Theme's sheet, several with blanks between
// them: text, muted, bold, end, middle; fill1 to fill5 and line1 to line5 of the series; grid, axis, target.
type Picture struct {
	Height                float64 // in pixels
	title, command, panel string
	head, body            strings.Builder
	keyX                  float64 // of the legend's next entry
}

// New begins a picture with a title and a note below it: what was measured, and where. The command is the one that
// draws the picture; "" if that is no command of this repository.
func New(title, note, command string) *Picture {
	p := Bare(title, command, "page")
	p.Text(Margin, titleY, "text title", title)
	p.Text(Margin, noteY, "muted", note)
	return p
}

// Bare begins a picture that does not show its title, which screen readers read. Its background is of the class panel:
// page or window.
func Bare(title, command, panel string) *Picture {
	return &Picture{title: title, command: command, panel: panel, keyX: Margin}
}

// Key adds an entry to the legend. Draw draws its mark around a point.
func (p *Picture) Key(name string, draw func(p *Picture, x, y float64)) {
	own := Picture{}
	draw(&own, p.keyX+8, keyY-4.5)
	own.Text(p.keyX+22, keyY, "muted", name)
	p.head.WriteString(own.body.String())
	p.keyX += 22 + 7.2*float64(utf8.RuneCountInString(name)) + 16
}

// Text writes a text whose base line begins at x, or, by its class, ends there or has its middle there.
func (p *Picture) Text(x, y float64, class, text string) {
	fmt.Fprintf(&p.body, `<text class="%s" x="%.1f" y="%.1f">%s</text>`+"\n", class, x, y, html.EscapeString(text))
}

// Upright writes a text that reads from below to above and has its middle at y.
func (p *Picture) Upright(x, y float64, class, text string) {
	const element = `<text class="%s middle" x="%.1f" y="%.1f" transform="rotate(-90 %[2]g %[3]g)">%[4]s</text>`
	fmt.Fprintf(&p.body, element+"\n", class, x, y, html.EscapeString(text))
}

// Fixed writes a text of a fixed width, whatever the font.
func (p *Picture) Fixed(x, y, width float64, class, text string) {
	const element = `<text class="%s" x="%.1f" y="%.1f" textLength="%.2f" lengthAdjust="spacingAndGlyphs" ` +
		`xml:space="preserve">%s</text>`
	fmt.Fprintf(&p.body, element+"\n", class, x, y, width, html.EscapeString(text))
}

// Line draws a straight line.
func (p *Picture) Line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&p.body, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", class, x1, y1, x2, y2)
}

// Polyline draws a line through points.
func (p *Picture) Polyline(points [][2]float64, class string) {
	list := make([]string, len(points))
	for i, at := range points {
		list[i] = fmt.Sprintf("%.1f,%.1f", at[0], at[1])
	}
	fmt.Fprintf(&p.body, `<polyline class="%s" points="%s"/>`+"\n", class, strings.Join(list, " "))
}

// Box draws a rectangle. A browser that shows the picture alone shows the hint under the pointer.
func (p *Picture) Box(x, y, width, height float64, class, hint string) {
	fmt.Fprintf(&p.body, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"`, class, x, y, width, height)
	if hint == "" {
		p.body.WriteString("/>\n")
		return
	}
	fmt.Fprintf(&p.body, "><title>%s</title></rect>\n", html.EscapeString(hint))
}

// Disc draws a disc.
func (p *Picture) Disc(x, y, radius float64, class string) {
	fmt.Fprintf(&p.body, `<circle class="%s" cx="%.1f" cy="%.1f" r="%g"/>`+"\n", class, x, y, radius)
}

// Raw adds elements of SVG.
func (p *Picture) Raw(svg string) { p.body.WriteString(svg) }

// XAxis draws an axis at height y with its ticks, grid lines from top down to it, and its label.
func (p *Picture) XAxis(a Axis, top, y float64, label string) {
	for _, v := range a.Ticks() {
		p.Line(a.At(v), top, a.At(v), y, "grid")
		p.Line(a.At(v), y, a.At(v), y+5, "axis")
		p.Text(a.At(v), y+20, "muted middle", a.Number(v))
	}
	p.Line(a.From, y, a.To, y, "axis")
	p.Text((a.From+a.To)/2, y+40, "muted middle", label)
}

// YAxis draws grid lines from left to right with the numbers of an upright axis, and its label.
func (p *Picture) YAxis(a Axis, left, right float64, label string) {
	for _, v := range a.Ticks() {
		p.Line(left, a.At(v), right, a.At(v), "grid")
		p.Text(left-10, a.At(v)+4.5, "muted end", a.Number(v))
	}
	p.Upright(Margin+6, (a.From+a.To)/2, "muted", label)
}

// The fonts that systems have: no picture in a document can load one.
const (
	sans = "system-ui, -apple-system, 'Segoe UI', Inter, Helvetica, Arial, sans-serif"
	mono = "ui-monospace, 'SF Mono', SFMono-Regular, Menlo, Consolas, 'JetBrains Mono', 'DejaVu Sans Mono', " +
		"'Liberation Mono', monospace"
)

// SVG is the picture in a theme.
func (p *Picture) SVG(t *Theme) string {
	panel := fmt.Sprintf(`<rect class="%s" x="0.5" y="0.5" width="%g" height="%.0f" rx="9"/>`, p.panel, Width-1,
		p.Height-1)
	body := panel + "\n" + `<g class="legend">` + "\n" + p.head.String() + "</g>\n" + p.body.String()
	const head = `<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%.0f" viewBox="0 0 %[1]g %.0[2]f" ` +
		`font-family="%s" font-size="12.5" role="img" aria-label="%s">`
	by := ""
	if p.command != "" {
		by = "<desc>Drawn by: " + html.EscapeString(p.command) + "</desc>\n"
	}
	return fmt.Sprintf(head+"\n", Width, p.Height, sans, html.EscapeString(p.title)) + by +
		"<style>\n" + t.style(body) + "</style>\n" + body + "</svg>\n"
}

// Write writes the picture in both themes: NAME-light.svg and NAME-dark.svg.
func (p *Picture) Write(name string) error {
	for i := range Themes {
		t := &Themes[i]
		if err := os.WriteFile(name+"-"+t.Name+".svg", []byte(p.SVG(t)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

var plain = regexp.MustCompile(`^[\w./:=@%+,-]+$`)

// Command is the command line of a program of this repository, as a shell takes it.
func Command(program string, args []string) string {
	words := []string{"go run", program}
	for _, word := range args {
		if !plain.MatchString(word) {
			word = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}
