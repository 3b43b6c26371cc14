// SPDX-License-Identifier: Apache-2.0

package assemble

import (
	"go/format"
	"strings"
	"unicode/utf8"
)

// columns is where lines of generated Go end, as those of other Go do; tabs count as four.
const columns = 120

// Format formats generated Go as gofmt does, and wraps its lines: a comment between words, code behind a comma.
// Assembly is not wrapped.
func Format(source []byte) ([]byte, error) {
	source, err := format.Source(source)
	if err != nil {
		return nil, err
	}
	var lines []string
	var comment []string // its words yet
	for _, line := range strings.Split(string(source), "\n") {
		text, is := strings.CutPrefix(line, "// ")
		if is {
			comment = append(comment, strings.Fields(text)...)
			continue
		}
		lines = append(lines, wrappedComment(comment)...)
		lines, comment = append(lines, wrappedCode(line)...), nil
	}
	return format.Source([]byte(strings.Join(lines, "\n")))
}

func wrappedComment(words []string) (lines []string) {
	for i, word := range words {
		if i == 0 || width(lines[len(lines)-1]+" "+word) > columns {
			lines = append(lines, "//")
		}
		lines[len(lines)-1] += " " + word
	}
	return lines
}

func wrappedCode(line string) (lines []string) {
	indent := line[:len(line)-len(strings.TrimLeft(line, "\t"))] + "\t"
	for width(line) > columns {
		at := strings.LastIndex(line, ", ")
		for at > 0 && width(line[:at+1]) > columns {
			at = strings.LastIndex(line[:at], ", ")
		}
		if at < 0 {
			break
		}
		lines, line = append(lines, line[:at+1]), indent+line[at+2:]
	}
	return append(lines, line)
}

func width(line string) int { return utf8.RuneCountInString(line) + 3*strings.Count(line, "\t") }
