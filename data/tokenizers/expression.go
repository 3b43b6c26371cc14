// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"
)

// Package regexp2 asks Go's tables of Unicode, which know fewer characters than Oniguruma's, and its \w has no marks
// with a width. So the classes that expressions name are written out from our tables.

// maxTranslated is how long an expression may be with its classes written out, in bytes: some 150 classes.
const maxTranslated = 1 << 20

// namedSets are classes of characters by what stands between the braces of \p{…}.
var namedSets = map[string]func(class) bool{
	"L": letters.has, "Letter": letters.has,
	"Lu": setOf(classUpper).has, "Ll": setOf(classLower).has, "Lt": setOf(classTitle).has,
	"Lm": setOf(classModifier).has, "Lo": setOf(classOtherLetter).has,
	"M": setOf(classMark).has, "N": numbers.has, "Nd": isDigit.in, "Han": isHan.in,
	"P": setOf(classPunctuation).has, "S": setOf(classSymbol).has,
}

// in reports whether k has a property.
func (property class) in(k class) bool { return k&property != 0 }

// anyCase finds (?i), and joined what Oniguruma takes there for one character too, as ﬁ for fi.
var (
	anyCase = regexp.MustCompile(`\(\?[a-z]*i`)
	joined  = regexp.MustCompile(`(?i:ff|fi|fl|st|ss)|[^[:ascii:]]`)
)

// translate writes an expression of Oniguruma's for regexp2, or says what would mean something else there.
func translate(expr string) (string, error) {
	if at := joined.FindString(expr); at != "" && anyCase.MatchString(expr) {
		return "", fmt.Errorf("(?i) and %q are not supported: upper and lower case may have another length", at)
	}
	var out strings.Builder
	inside := false
	for i := 0; i < len(expr); i++ {
		switch c := expr[i]; {
		case c == '\\' && i+1 < len(expr):
			text, n, err := escape(expr[i:], inside)
			if err != nil {
				return "", err
			}
			if out.WriteString(text); out.Len() > maxTranslated {
				return "", errors.New("it has too many classes of characters")
			}
			i += n - 1
			continue
		case inside && (c == '[' || strings.HasPrefix(expr[i:], "&&")):
			return "", fmt.Errorf("%q in a class is not supported", c)
		case c == '[':
			inside = true
		case c == ']':
			inside = false
		}
		out.WriteByte(expr[i])
	}
	return out.String(), nil
}

// escape translates the escape that expr begins with, which has n bytes there.
func escape(expr string, inside bool) (text string, n int, err error) {
	has, negated := (func(class) bool)(nil), false
	name := expr[1:2]
	n = 2
	switch e := expr[1]; e {
	case 'W', 'b', 'B', 'h', 'H', 'R', 'X', 'G':
		return "", 0, fmt.Errorf(`\%c is not supported`, e)
	case 'w':
		if has = isRegexWord.in; inside {
			name, has = "[w]", isClassWord.in
		}
	case 's', 'S':
		name, has, negated = "s", spaces.has, e == 'S'
	case 'd', 'D':
		name, has, negated = "Nd", isDigit.in, e == 'D'
	case 'p', 'P':
		rest, opened := strings.CutPrefix(expr[2:], "{")
		var closed bool
		name, _, closed = strings.Cut(rest, "}")
		if n += len(name) + len("{}"); !opened || !closed {
			return "", 0, fmt.Errorf(`\%c without a name: want \%c{NAME}`, e, e)
		}
		var caret bool
		name, caret = strings.CutPrefix(name, "^")
		negated = caret != (e == 'P')
		if has = namedSets[name]; has == nil && caret {
			return "", 0, fmt.Errorf(`\%c{^%.50s} is not supported`, e, name)
		}
	}
	if has == nil {
		return expr[:n], n, nil
	}
	text = ranges(name, has, negated)
	if !inside {
		text = "[" + text + "]"
	}
	return text, n, nil
}

// writtenRanges has the ranges that were asked for, by name.
var writtenRanges sync.Map

// ranges are the characters of a set of that name, or all others, as they are written between brackets.
func ranges(name string, has func(class) bool, negated bool) string {
	key := fmt.Sprint(name, negated)
	if text, ok := writtenRanges.Load(key); ok {
		return text.(string)
	}
	var out strings.Builder
	for c := rune(0); c <= utf8.MaxRune; c++ {
		if has(classOf(c)) == negated {
			continue
		}
		first := c
		for c < utf8.MaxRune && has(classOf(c+1)) != negated {
			c++
		}
		writeRune(&out, first)
		if c > first {
			out.WriteByte('-')
			writeRune(&out, c)
		}
	}
	writtenRanges.Store(key, out.String())
	return out.String()
}

// writeRune writes a character of a class: by its number what may mean something there, or is half of a UTF-16 pair.
func writeRune(out *strings.Builder, c rune) {
	if c < utf8.RuneSelf || !utf8.ValidRune(c) {
		fmt.Fprintf(out, `\u%04x`, c)
		return
	}
	out.WriteRune(c)
}
