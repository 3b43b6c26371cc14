// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"unicode"
	"unicode/utf8"
)

// class sorts characters as GPT-2's regular expression does.
type class uint8

const (
	classOther  class = iota // [^\s\p{L}\p{N}], and bytes that are not UTF-8
	classSpace               // \s
	classLetter              // \p{L}
	classNumber              // \p{N}
)

// asciiClass answers for the bytes below utf8.RuneSelf without a call.
var asciiClass = func() (table [utf8.RuneSelf]class) {
	for r := range table {
		table[r] = runeClass(rune(r))
	}
	return table
}()

func runeClass(r rune) class {
	switch {
	case unicode.IsLetter(r):
		return classLetter
	case unicode.IsNumber(r):
		return classNumber
	case unicode.IsSpace(r):
		return classSpace
	}
	return classOther
}

// classAt is the class of the character that starts at text[i], and its size in bytes.
func classAt(text string, i int) (class, int) {
	if b := text[i]; b < utf8.RuneSelf {
		return asciiClass[b], 1
	}
	r, size := utf8.DecodeRuneInString(text[i:])
	if r == utf8.RuneError && size == 1 {
		return classOther, 1
	}
	return runeClass(r), size
}

// splitNext returns the end of the pre-token that starts at text[i], i < len(text).
//
// The pre-tokens are the successive matches of GPT-2's regular expression
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// whose alternatives are tried in order (Radford et al. 2019, "Language Models are
// Unsupervised Multitask Learners", encoder.py). They cover the text without gaps.
// A byte that is not part of valid UTF-8 counts as one character of the third kind,
// so that the split is total.
func splitNext(text string, i int) int {
	if text[i] == '\'' {
		if n := contraction(text[i+1:]); n > 0 {
			return i + 1 + n
		}
	}
	kind, size := classAt(text, i)
	if kind != classSpace {
		return runEnd(text, i+size, kind)
	}
	if text[i] == ' ' && i+1 < len(text) {
		if kind, size := classAt(text, i+1); kind != classSpace {
			return runEnd(text, i+1+size, kind)
		}
	}
	return spaceEnd(text, i, size)
}

// contraction is the length of the suffix 's 't 're 've 'm 'll 'd that follows an
// apostrophe, 0 if there is none.
func contraction(rest string) int {
	if len(rest) == 0 {
		return 0
	}
	switch rest[0] {
	case 's', 't', 'm', 'd':
		return 1
	case 'r', 'v':
		if len(rest) > 1 && rest[1] == 'e' {
			return 2
		}
	case 'l':
		if len(rest) > 1 && rest[1] == 'l' {
			return 2
		}
	}
	return 0
}

// runEnd is the first position from i on whose character is not of the given kind.
func runEnd(text string, i int, kind class) int {
	for i < len(text) {
		k, size := classAt(text, i)
		if k != kind {
			break
		}
		i += size
	}
	return i
}

// spaceEnd ends a run of white space that starts at text[i] with a character of the
// given size: \s+(?!\S) leaves the last character of the run to the word after it,
// unless it is the only one.
func spaceEnd(text string, i, size int) int {
	last, end := i, i+size
	for end < len(text) {
		kind, size := classAt(text, end)
		if kind != classSpace {
			if last > i {
				return last
			}
			return end
		}
		last, end = end, end+size
	}
	return end
}

// cutBefore returns the first position p ≥ i at which text can be cut in two without
// changing its pre-tokens, len(text) if there is none. No pre-token has white space
// after another character, so a cut between the two is always safe.
func cutBefore(text string, i int) int {
	for p := max(i, 1); p < len(text); p++ {
		if (text[p] == ' ' || text[p] == '\n') && '!' <= text[p-1] && text[p-1] <= '~' {
			return p
		}
	}
	return len(text)
}

// pieces cuts text into parts of about size bytes that can be split and encoded
// apart from one another.
func pieces(text string, size int) []string {
	var parts []string
	for len(text) > size {
		p := cutBefore(text, size)
		parts = append(parts, text[:p])
		text = text[p:]
	}
	if len(text) > 0 {
		parts = append(parts, text)
	}
	return parts
}
