// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"fmt"
	"strings"
)

type tokenKind uint8

const (
	tokenEnd    tokenKind = iota
	tokenWord             // identifiers, directives, opcodes with their modifiers, registers
	tokenNumber           // integers and floats, without sign
	tokenString
	tokenMark // one character
)

// token is one word of PTX text; pos and end are byte offsets.
type token struct {
	kind     tokenKind
	text     string
	line     int
	pos, end int
}

// syntaxError describes what is wrong with a line of PTX.
func syntaxError(line int, format string, args ...any) error {
	return fmt.Errorf("ptx: line %d: %s", line, fmt.Sprintf(format, args...))
}

func isWordStart(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == '$' || c == '%' || c == '.'
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// lex cuts PTX text into tokens. The last one has the kind tokenEnd.
func lex(src string) ([]token, error) {
	tokens := make([]token, 0, len(src)/4)
	line := 1
	for i := 0; i < len(src); {
		c := src[i]
		switch {
		case c == '\n':
			line++
			i++
		case c == ' ' || c == '\t' || c == '\r':
			i++
		case strings.HasPrefix(src[i:], "//"):
			n := strings.IndexByte(src[i:], '\n')
			if n < 0 {
				n = len(src) - i
			}
			i += n
		case strings.HasPrefix(src[i:], "/*"):
			n := strings.Index(src[i+2:], "*/")
			if n < 0 {
				return nil, syntaxError(line, "comment without end")
			}
			line += strings.Count(src[i:i+n+4], "\n")
			i += n + 4
		case c == '"':
			n := strings.IndexByte(src[i+1:], '"')
			if n < 0 {
				return nil, syntaxError(line, "string without end")
			}
			tokens = append(tokens, token{tokenString, src[i+1 : i+1+n], line, i, i + n + 2})
			line += strings.Count(src[i:i+n+2], "\n")
			i += n + 2
		case isWordStart(c):
			n := wordLength(src[i:])
			tokens = append(tokens, token{tokenWord, src[i : i+n], line, i, i + n})
			i += n
		case isDigit(c):
			n := numberLength(src[i:])
			tokens = append(tokens, token{tokenNumber, src[i : i+n], line, i, i + n})
			i += n
		default:
			if c < ' ' || c > '~' {
				return nil, syntaxError(line, "unexpected character %q", c)
			}
			tokens = append(tokens, token{tokenMark, src[i : i+1], line, i, i + 1})
			i++
		}
	}
	return append(tokens, token{tokenEnd, "end of text", line, len(src), len(src)}), nil
}

// wordLength counts the bytes of a word; a double colon belongs to it (.L2::128B), a single one ends a label. A
// directive ends at the next period: ".reg.b32" is two words.
func wordLength(s string) int {
	n := 1
	for n < len(s) {
		if s[0] == '.' && s[n] == '.' {
			break
		}
		if isWordStart(s[n]) || isDigit(s[n]) {
			n++
		} else if strings.HasPrefix(s[n:], "::") {
			n += 2
		} else {
			break
		}
	}
	return n
}

// numberLength counts the bytes of 12, 0x1fU, 017, 0b10, 0f3F800000, 0d…, 1.5e-3.
func numberLength(s string) int {
	n := 1
	for n < len(s) {
		c := s[n]
		exponent := (c == '+' || c == '-') && (s[n-1] == 'e' || s[n-1] == 'E') && !strings.HasPrefix(s, "0x") &&
			!strings.HasPrefix(s, "0f") && !strings.HasPrefix(s, "0d") && !strings.HasPrefix(s, "0F") &&
			!strings.HasPrefix(s, "0D") && !strings.HasPrefix(s, "0X")
		if isDigit(c) || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '.' || exponent {
			n++
		} else {
			break
		}
	}
	return n
}
