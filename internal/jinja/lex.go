// SPDX-License-Identifier: Apache-2.0

package jinja

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// kind is the kind of a token.
type kind uint8

const (
	textToken kind = iota
	blockBegin
	blockEnd
	printBegin
	printEnd
	nameToken
	stringToken
	intToken
	floatToken
	operator
	endToken
)

// token is a part of a template.
type token struct {
	kind kind
	text string
	line int
}

// Error is a template that cannot be read or rendered.
type Error struct {
	Line int // of the template, from 1
	What string
}

// Error names the line.
func (e *Error) Error() string { return fmt.Sprintf("line %d of the template: %s", e.Line, e.What) }

// lexer cuts a template into tokens, with the settings of transformers: trim_blocks and lstrip_blocks.
type lexer struct {
	source string
	at     int
	tokens []token

	lines, counted int // how many lines end before counted
}

// line is the number of the line that the lexer has reached.
func (l *lexer) line() int {
	l.lines += strings.Count(l.source[l.counted:max(l.at, l.counted)], "\n")
	l.counted = max(l.at, l.counted)
	return 1 + l.lines
}

func (l *lexer) fail(format string, args ...any) {
	panic(&Error{l.line(), fmt.Sprintf(format, args...)})
}

func (l *lexer) add(k kind, text string) { l.tokens = append(l.tokens, token{k, text, l.line()}) }

func lex(source string) []token {
	l := &lexer{source: source}
	lineStarts := true // the text begins a line
	for {
		n := nextTag(l.source[l.at:])
		if n < 0 {
			if rest := l.source[l.at:]; rest != "" {
				l.add(textToken, rest)
			}
			l.at = len(l.source)
			l.add(endToken, "the end of the template")
			return l.tokens
		}
		before, tag := l.source[l.at:l.at+n], l.source[l.at+n:]
		sign := byte(0)
		if len(tag) > 2 {
			sign = tag[2]
		}
		switch {
		case sign == '-':
			before = strings.TrimRightFunc(before, unicode.IsSpace)
		case sign != '+' && tag[1] != '{':
			start := strings.LastIndexByte(before, '\n') + 1
			if (start > 0 || lineStarts) && strings.Trim(before[start:], " \t\r\f\v") == "" {
				before = before[:start]
			}
		}
		if before != "" {
			l.add(textToken, before)
		}
		l.at += n
		lineStarts = l.tag(tag[1], sign)
	}
}

// nextTag is where the next tag begins, -1 if there is none.
func nextTag(s string) int {
	for i := 0; i+1 < len(s); i++ {
		if s[i] == '{' && (s[i+1] == '{' || s[i+1] == '%' || s[i+1] == '#') {
			return i
		}
	}
	return -1
}

// tag reads a tag, and reports whether it took in the end of its line.
func (l *lexer) tag(second, sign byte) (endsLine bool) {
	start := l.at
	l.at += 2
	if sign == '-' || sign == '+' {
		l.at++
	}
	switch second {
	case '#':
		n := strings.Index(l.source[l.at:], "#}")
		if n < 0 {
			l.at = start
			l.fail("a comment without #}")
		}
		end := byte(0)
		if n > 0 {
			end = l.source[l.at+n-1]
		}
		l.at += n + 2
		return l.behind(end, true)
	case '%':
		if rest, ok := rawBlock(l.source[l.at:]); ok {
			return l.raw(rest)
		}
		l.add(blockBegin, "{%")
		sign := l.expression("%}")
		l.add(blockEnd, "%}")
		return l.behind(sign, true)
	}
	l.add(printBegin, "{{")
	sign = l.expression("}}")
	l.add(printEnd, "}}")
	return l.behind(sign, false)
}

// behind passes over the white space that a tag takes in.
func (l *lexer) behind(sign byte, block bool) (endsLine bool) {
	rest := l.source[l.at:]
	switch {
	case sign == '-':
		l.at += len(rest) - len(strings.TrimLeftFunc(rest, unicode.IsSpace))
		return strings.HasSuffix(l.source[:l.at], "\n")
	case block && sign != '+' && strings.HasPrefix(rest, "\n"):
		l.at++
		return true
	}
	return false
}

// rawBlock is what follows {% raw %}.
func rawBlock(s string) (rest string, ok bool) {
	s = strings.TrimLeft(s, " \n\t-")
	if s, ok = strings.CutPrefix(s, "raw"); !ok {
		return "", false
	}
	s = strings.TrimLeft(s, " \n\t")
	if s, ok = strings.CutPrefix(strings.TrimPrefix(s, "-"), "%}"); !ok {
		return "", false
	}
	return s, true
}

func (l *lexer) raw(rest string) bool {
	for i := 0; i < len(rest); i++ {
		if !strings.HasPrefix(rest[i:], "{%") {
			continue
		}
		tail := strings.TrimLeft(rest[i+2:], " \n\t-")
		if tail, ok := strings.CutPrefix(tail, "endraw"); ok {
			if n := strings.Index(tail, "%}"); n >= 0 {
				l.add(textToken, rest[:i])
				l.at = len(l.source) - len(tail) + n + 2
				return l.behind(0, true)
			}
		}
	}
	l.fail("raw without endraw")
	return false
}

var operators = []string{"//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[", "]", "(", ")", "{", "}",
	"<", ">", "=", ".", ":", "|", ",", ";"}

// expression reads tokens up to the end of a tag, and returns the sign before it.
func (l *lexer) expression(end string) (sign byte) {
	depth := 0 // of braces, which may look like the end
	for {
		rest := strings.TrimLeftFunc(l.source[l.at:], unicode.IsSpace)
		l.at = len(l.source) - len(rest)
		if rest == "" {
			l.fail("a tag without %s", end)
		}
		if depth == 0 {
			for _, s := range []string{"", "-", "+"} {
				if strings.HasPrefix(rest, s+end) {
					l.at += len(s) + len(end)
					return (s + "\x00")[0]
				}
			}
		}
		r, _ := utf8.DecodeRuneInString(rest)
		switch {
		case r == '_' || unicode.IsLetter(r):
			n := strings.IndexFunc(rest, func(r rune) bool {
				return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
			})
			if n < 0 {
				n = len(rest)
			}
			l.add(nameToken, rest[:n])
			l.at += n
		case r >= '0' && r <= '9':
			l.number(rest)
		case r == '"' || r == '\'':
			l.string(rest, byte(r))
		default:
			l.operator(rest, &depth)
		}
	}
}

func (l *lexer) operator(rest string, depth *int) {
	for _, op := range operators {
		if strings.HasPrefix(rest, op) {
			switch op {
			case "{", "[", "(":
				*depth++
			case "}", "]", ")":
				*depth--
			}
			l.add(operator, op)
			l.at += len(op)
			return
		}
	}
	r, _ := utf8.DecodeRuneInString(rest)
	l.fail("unexpected %q", r)
}

var exponentOf = regexp.MustCompile(`^[eE][+-]?\d+`)

func (l *lexer) number(rest string) {
	n, k := 0, intToken
	digits := func() {
		for n < len(rest) && (rest[n] >= '0' && rest[n] <= '9' || rest[n] == '_') {
			n++
		}
	}
	digits()
	if n+1 < len(rest) && rest[n] == '.' && rest[n+1] >= '0' && rest[n+1] <= '9' {
		k, n = floatToken, n+1
		digits()
	}
	if exponent := exponentOf.FindString(rest[n:]); exponent != "" {
		k, n = floatToken, n+len(exponent)
	}
	l.add(k, strings.ReplaceAll(rest[:n], "_", ""))
	l.at += n
}

func (l *lexer) string(rest string, quote byte) {
	var b strings.Builder
	for i := 1; i < len(rest); i++ {
		switch c := rest[i]; {
		case c == quote:
			l.add(stringToken, b.String())
			l.at += i + 1
			return
		case c == '\\' && i+1 < len(rest):
			i++
			i += l.escape(&b, rest[i:])
		default:
			b.WriteByte(c)
		}
	}
	l.fail("a text without its closing quote")
}

// escape writes the character of an escape behind its backslash, and returns how many bytes follow the first.
func (l *lexer) escape(b *strings.Builder, s string) int {
	sizes := map[byte]int{'x': 2, 'u': 4, 'U': 8}
	if n := sizes[s[0]]; n > 0 && len(s) > n {
		if v, err := strconv.ParseUint(s[1:1+n], 16, 32); err == nil && v <= unicode.MaxRune {
			b.WriteRune(rune(v))
			return n
		}
		l.fail("a text with the escape \\%.9s: want hexadecimal digits of a character", s)
	}
	if i := strings.IndexByte("ntrbfva0\\'\"\n", s[0]); i >= 0 {
		b.WriteString([]string{"\n", "\t", "\r", "\b", "\f", "\v", "\a", "\x00", "\\", "'", `"`, ""}[i])
		return 0
	}
	b.WriteByte('\\')
	b.WriteByte(s[0])
	return 0
}
