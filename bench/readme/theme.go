// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"strings"
)

// theme is a set of colours for light or for dark pages.
type theme struct {
	name                                string
	page, panel, bar, border            string
	text, muted, grid, accent, evaluate string
	palette                             [9]string // by style.colour
}

var themes = []theme{
	{
		name: "light", page: "#ffffff", panel: "#f6f8fa", bar: "#eaeef2", border: "#d0d7de",
		text: "#1f2328", muted: "#656d76", grid: "#e6eaef", accent: "#0969da", evaluate: "#bc4c00",
		palette: [9]string{
			"#1f2328", "#24292f", "#cf222e", "#116329", "#7d4e00", "#0969da", "#8250df", "#1b7c83", "#57606a",
		},
	},
	{
		name: "dark", page: "#0d1117", panel: "#161b22", bar: "#21262d", border: "#30363d",
		text: "#e6edf3", muted: "#8b949e", grid: "#21262d", accent: "#58a6ff", evaluate: "#f0883e",
		palette: [9]string{
			"#e6edf3", "#484f58", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#b1bac4",
		},
	},
}

// The fonts that systems have: no picture in a README can load one.
const (
	monospace = "ui-monospace, 'SF Mono', SFMono-Regular, Menlo, Consolas, 'JetBrains Mono', 'DejaVu Sans Mono', " +
		"'Liberation Mono', monospace"
	sans      = "system-ui, -apple-system, 'Segoe UI', Inter, Helvetica, Arial, sans-serif"
	pageWidth = 830 // as wide as a README's text on GitHub
)

// document is an SVG of that height around the body. Its label is what a screen reader says.
func document(height float64, label, body string) string {
	const head = `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" viewBox="0 0 %[1]d %.0[2]f" role="img" ` +
		`aria-label="%[3]s">`
	return fmt.Sprintf(head+"\n", pageWidth, height, html.EscapeString(label)) + body + "</svg>\n"
}

// panel draws a rounded background of that height.
func panel(b *strings.Builder, height float64, fill, border string) {
	fmt.Fprintf(b, `<rect x="0.5" y="0.5" width="%d" height="%.0f" rx="9" fill="%s" stroke="%s"/>`+"\n",
		pageWidth-1, height-1, fill, border)
}

// stroke draws a straight line.
func stroke(b *strings.Builder, x1, y1, x2, y2 float64, colour string) {
	fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, colour)
}

// write draws a text with further attributes.
func write(b *strings.Builder, x, y float64, attributes, text string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" %s>%s</text>`+"\n", x, y, attributes, html.EscapeString(text))
}
