// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/lockstep-ml/lockstep/args"
)

const (
	lineWidth  = 100 // columns of the program's own lines
	valueWidth = 44  // columns from which a value is not aligned with the others
)

// listing shows the settings that are not defaults: those that somebody set, one a line, and the demonstration's.
func listing(r *args.Resolved) string {
	var rows [][3]string
	var demo []string
	keys, values := 0, 0
	for _, row := range r.Table() {
		switch origin := row[2]; {
		case origin == "default":
		case origin == demonstration && row[0] == "prompt": // the samples show it
		case origin == demonstration:
			demo = append(demo, row[0]+" "+quoted(row[1]))
		default:
			row[1] = quoted(row[1])
			rows, keys = append(rows, row), max(keys, len(row[0]))
			if n := utf8.RuneCountInString(row[1]); n <= valueWidth {
				values = max(values, n)
			}
		}
	}
	var b strings.Builder
	for i, row := range rows {
		if i == 0 {
			b.WriteString("settings:\n")
		}
		fmt.Fprintf(&b, "  %-*s  %-*s  %s\n", keys, row[0], values, row[1], row[2])
	}
	if len(demo) > 0 {
		fmt.Fprintf(&b, "settings of the demonstration on functions of the Go standard library:\n%s",
			wrapped("  ", demo, lineWidth))
	}
	return b.String()
}

// brief are the settings for a terminal: what somebody set, and how many settings are the demonstration's.
func brief(r *args.Resolved) (words []string) {
	demo := 0
	for _, row := range r.Table() {
		switch row[2] {
		case "default":
		case demonstration:
			demo++
		default:
			words = append(words, row[0]+" "+quoted(row[1]))
		}
	}
	if demo > 0 {
		words = append(words, fmt.Sprintf("%d for the demonstration (--log_level info lists them)", demo))
	}
	return words
}

// quoted is a value as it is, or in quotes if it would break the line.
func quoted(value string) string {
	if strings.ContainsAny(value, "\t\n\r\v\f") {
		return fmt.Sprintf("%q", value)
	}
	return value
}

// wrapped joins words with commas, in lines that begin with indent and are not longer than width.
func wrapped(indent string, words []string, width int) string {
	var b strings.Builder
	line := indent
	for i, w := range words {
		if i < len(words)-1 {
			w += ","
		}
		if line != indent && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(w) > width {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = indent
		}
		if line != indent {
			line += " "
		}
		line += w
	}
	return b.String() + line + "\n"
}

// sizeText is a size as people read it.
func sizeText(n int64) string {
	switch {
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%d bytes", n)
}
