// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/program"
)

// valueWidth is the number of columns from which a value is not aligned with the others.
const valueWidth = 44

// list prints the settings that are not defaults: those that somebody set, one a line with its origin, and the
// demonstration's.
func list(w io.Writer, r *args.Resolved) {
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
	for i, row := range rows {
		if i == 0 {
			fmt.Fprintln(w, "settings:")
		}
		fmt.Fprintf(w, "  %-*s  %-*s  %s\n", keys, row[0], values, row[1], row[2])
	}
	if len(demo) > 0 { // on functions of the Go standard library
		program.WriteLine(w, demonstration, demo...)
	}
}

// brief are the settings in one line: what somebody set, and how many settings are the demonstration's.
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
