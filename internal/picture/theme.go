// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"fmt"
	"slices"
	"strings"
)

// Theme is a set of colours for light or for dark pages.
type Theme struct {
	Name                      string
	page, window, bar, border string // backgrounds, and the line around them
	text, muted, grid         string
	series                    [5]string
	ansi                      [8]string // black, red, green, yellow, blue, magenta, cyan, white
}

// Themes are the two themes of every picture. The series' colours can be told apart with any colour vision, and stand
// out from both pages; text has a contrast of 4.5 and more (WCAG 2.2, AA).
var Themes = []Theme{
	{
		Name: "light", page: "#ffffff", window: "#f6f8fa", bar: "#eaeef2", border: "#d0d7de",
		text: "#1f2328", muted: "#59636e", grid: "#e6eaef",
		series: [5]string{"#1a7fe0", "#d9550b", "#1d6b3c", "#53237a", "#868e96"},
		ansi: [8]string{
			"#24292f", "#cf222e", "#116329", "#7d4e00", "#0969da", "#8250df", "#1b7c83", "#57606a",
		},
	},
	{
		Name: "dark", page: "#0d1117", window: "#161b22", bar: "#21262d", border: "#30363d",
		text: "#e6edf3", muted: "#9198a1", grid: "#21262d",
		series: [5]string{"#388bfd", "#db6d28", "#7ee787", "#a04fc4", "#b1bac4"},
		ansi: [8]string{
			"#8b949e", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#b1bac4",
		},
	},
}

// rules are the style of each class that pictures use.
func (t *Theme) rules() [][2]string {
	out := [][2]string{
		{"page", "fill:" + t.page + ";stroke:" + t.border}, {"window", "fill:" + t.window + ";stroke:" + t.border},
		{"bar", "fill:" + t.bar}, {"grip", "fill:" + t.border},
		{"text", "fill:" + t.text}, {"muted", "fill:" + t.muted},
		{"title", "font-size:15px;font-weight:600"}, {"bold", "font-weight:600"}, {"small", "font-size:11.5px"},
		{"mono", "font-family:" + mono + ";font-size:15px;font-variant-ligatures:none"},
		{"end", "text-anchor:end"}, {"middle", "text-anchor:middle"},
		{"grid", "stroke:" + t.grid}, {"axis", "stroke:" + t.muted}, {"gap", "stroke:" + t.page},
		{"target", "stroke:" + t.text + ";stroke-width:2"}, {"pale", "opacity:0.38"},
	}
	for i, colour := range t.series {
		line := "fill:none;stroke:" + colour + ";stroke-width:2.25;stroke-linejoin:round"
		out = append(out, [2]string{fmt.Sprint("fill", i+1), "fill:" + colour},
			[2]string{fmt.Sprint("line", i+1), line})
	}
	for i, colour := range t.ansi {
		out = append(out, [2]string{fmt.Sprint("ansi", i+1), "fill:" + colour})
	}
	return out
}

// style is the sheet of the classes that a body uses. Nothing else differs between two themes of a picture.
func (t *Theme) style(body string) string {
	var used []string
	for rest := body; ; {
		_, after, found := strings.Cut(rest, `class="`)
		if !found {
			break
		}
		names, next, _ := strings.Cut(after, `"`)
		used, rest = append(used, strings.Fields(names)...), next
	}
	var b strings.Builder
	for _, rule := range t.rules() {
		if slices.Contains(used, rule[0]) {
			fmt.Fprintf(&b, ".%s{%s}\n", rule[0], rule[1])
		}
	}
	return b.String()
}
