// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"
	"unicode/utf8"
)

// class is what a character is to HuggingFace's tokenizers: a general category in the low four bits, and properties.
// The library asks tables of different versions of Unicode, none of which is Go's; testdata/unicode.py reads them.
type class uint16

const (
	classOther class = iota // and bytes that are not UTF-8
	classUpper
	classLower
	classTitle
	classModifier
	classOtherLetter
	classMark
	classNumber
	classPunctuation
	classSymbol
	classSpace // \s

	category = 1<<4 - 1

	isWord      class = 1 << 4  // \w of the pre-tokenizer Whitespace
	isPunct     class = 1 << 5  // BERT's punctuation
	isNumeric   class = 1 << 6  // Rust's char::is_numeric
	isCleaned   class = 1 << 7  // what BERT's normalizer removes
	isMn        class = 1 << 8  // marks that its strip_accents removes
	isCombining class = 1 << 9  // marks that StripAccents removes
	isNew       class = 1 << 10 // has no normal form in the library's Unicode, but in Go's
	isRegexWord class = 1 << 11 // \w of regular expressions
	isDigit     class = 1 << 12 // \d
	isHan       class = 1 << 13 // \p{Han}
	isClassWord class = 1 << 14 // \w within a class of a regular expression: not ², for example
)

// set is a set of categories.
type set uint16

func setOf(categories ...class) (s set) {
	for _, c := range categories {
		s |= 1 << c
	}
	return s
}

func (s set) has(c class) bool { return s>>(c&category)&1 != 0 }

var (
	letters = setOf(classUpper, classLower, classTitle, classModifier, classOtherLetter)
	numbers = setOf(classNumber)
	spaces  = setOf(classSpace)
)

// badByte is what a byte b that is not UTF-8 counts as: a character badByte+b of no class.
const badByte = utf8.MaxRune + 1

// decodeRune reads the character at s[i].
func decodeRune(s string, i int) (r rune, size int) {
	if b := s[i]; b < utf8.RuneSelf {
		return rune(b), 1
	}
	if r, size = utf8.DecodeRuneInString(s[i:]); r == utf8.RuneError && size == 1 {
		r = badByte + rune(s[i])
	}
	return r, size
}

// appendRune is the inverse of decodeRune.
func appendRune(dst []byte, r rune) []byte {
	if r >= badByte {
		return append(dst, byte(r-badByte))
	}
	return utf8.AppendRune(dst, r)
}

func runeSize(r rune) int {
	if r >= badByte {
		return 1
	}
	return utf8.RuneLen(r)
}

//go:embed unicode.json.gz
var unicodeFile []byte

// characters has the classes by pages of 256 characters, and lower cases that are not Go's.
type characters struct {
	pages [utf8.MaxRune>>8 + 1]*[256]class
	lower map[rune]string
}

var unicodeTables = sync.OnceValue(func() *characters {
	var file struct {
		MadeBy string `json:"made_by"`
		Runs   [][2]int
		Lower  map[string]string
	}
	z, err := gzip.NewReader(bytes.NewReader(unicodeFile))
	if err == nil {
		err = json.NewDecoder(z).Decode(&file)
	}
	if err != nil {
		panic(fmt.Sprintf("tokenizers: unicode.json.gz: %v", err))
	}
	t := &characters{lower: make(map[rune]string, len(file.Lower))}
	for from, to := range file.Lower {
		r, _ := utf8.DecodeRuneInString(from)
		t.lower[r] = to
	}
	var all [utf8.MaxRune + 1]class
	next := 0
	for _, run := range file.Runs {
		for range run[0] {
			all[next] = class(run[1])
			next++
		}
	}
	known := map[[256]class]*[256]class{} // most pages are of one class
	for i := range t.pages {
		page := [256]class(all[i<<8:])
		if known[page] == nil {
			known[page] = &page
		}
		t.pages[i] = known[page]
	}
	return t
})

// asciiClass answers for the bytes below utf8.RuneSelf without a call.
var asciiClass = func() (table [utf8.RuneSelf]class) {
	copy(table[:], unicodeTables().pages[0][:])
	return table
}()

func classOf(r rune) class {
	if r < utf8.RuneSelf {
		return asciiClass[r]
	}
	if r >= badByte {
		return classOther
	}
	return unicodeTables().pages[r>>8][r&255]
}

// classAt is the class of the character that starts at text[i], and its size in bytes.
func classAt(text string, i int) (class, int) {
	if b := text[i]; b < utf8.RuneSelf {
		return asciiClass[b], 1
	}
	r, size := decodeRune(text, i)
	return classOf(r), size
}

// runEnd is the first position from i on whose character is not of the given categories.
func runEnd(text string, i int, of set) int {
	for i < len(text) {
		k, size := classAt(text, i)
		if !of.has(k) {
			break
		}
		i += size
	}
	return i
}

// appendLower appends the lower case of r, which may be two characters.
func appendLower(dst []rune, r rune) []rune {
	if r < utf8.RuneSelf {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return append(dst, r)
	}
	if s, ok := unicodeTables().lower[r]; ok {
		return append(dst, []rune(s)...)
	}
	return append(dst, r)
}
