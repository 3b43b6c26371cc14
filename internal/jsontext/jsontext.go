// SPDX-License-Identifier: Apache-2.0

// Package jsontext reads the JSON of data sets: one object on each line, an array of objects, or objects over several
// lines, with the NaN and Infinity that Python writes. Use [Records] for files and [Fields] for one object.
package jsontext

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Field is a key of an object and its value.
type Field struct {
	Key   string
	Value json.RawMessage // one of Python's NaN, Infinity and -Infinity is null
}

// Kind is what a value begins with, in words.
func (f Field) Kind() string {
	switch f.Value[0] {
	case '"':
		return "a string"
	case '{':
		return "an object"
	case '[':
		return "a list"
	case 't', 'f':
		return "a bool"
	case 'n':
		return "null"
	}
	return "a number"
}

// Text is the string that the value is. The error says what else it is, or that half a surrogate pair stands in it.
func (f Field) Text() (string, error) {
	if f.Value[0] != '"' {
		return "", fmt.Errorf("field %q is %.40s: want a string", f.Key, f.Value)
	}
	var s string
	if err := json.Unmarshal(f.Value, &s); err != nil {
		return "", err
	}
	if LoneSurrogate(f.Value) {
		return "", fmt.Errorf(`field %q has an escape \uD800 to \uDFFF that is not half of a pair`, f.Key)
	}
	return s, nil
}

// Fields are the keys and values of an object, in their order. A duplicate key is there twice.
func Fields(object []byte) ([]Field, error) {
	object = Finite(object)
	d := json.NewDecoder(bytes.NewReader(object))
	start, err := d.Token()
	if err != nil {
		return nil, fault(err)
	}
	if start != json.Delim('{') {
		return nil, fmt.Errorf("want a JSON object, got %.40s", bytes.TrimSpace(object))
	}
	var fields []Field
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, fault(err)
		}
		f := Field{Key: key.(string)} // a key is a string, or Token had failed
		if err := d.Decode(&f.Value); err != nil {
			return nil, fault(err)
		}
		fields = append(fields, f)
	}
	if _, err := d.Token(); err != nil {
		return nil, fault(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more text after the JSON object: want the object alone")
	}
	return fields, nil
}

// fault words an error of encoding/json.
func fault(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("no JSON object: it ends too early")
	}
	return fmt.Errorf("no JSON object: %w", err)
}

// notFinite are the numbers that Python writes and JSON does not have.
var notFinite = []string{"-Infinity", "Infinity", "NaN"}

// Finite is text with null in place of NaN, Infinity and -Infinity, which Python writes and JSON does not have. It
// returns text itself if there are none.
func Finite(text []byte) []byte { return Replaced(text, "null") }

// Replaced is Finite with another value in their place.
func Replaced(text []byte, value string) []byte {
	if !bytes.Contains(text, []byte("NaN")) && !bytes.Contains(text, []byte("Infinity")) {
		return text
	}
	out := make([]byte, 0, len(text))
	quoted := false
next:
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\' && i+1 < len(text):
			out = append(out, c, text[i+1])
			i++
			continue
		case c == '"':
			quoted = !quoted
		case !quoted && (c == '-' || c == 'I' || c == 'N'):
			for _, n := range notFinite {
				if bytes.HasPrefix(text[i:], []byte(n)) {
					out = append(out, value...)
					i += len(n) - 1
					continue next
				}
			}
		}
		out = append(out, text[i])
	}
	return out
}

// LoneSurrogate reports whether JSON text has an escape \uD800 to \uDFFF that is not half of a pair, which
// encoding/json replaces without a word by U+FFFD.
func LoneSurrogate(text []byte) bool {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		switch r := escaped(text[i:]); {
		case r < 0xD800 || r > 0xDFFF:
			i++ // the character after a backslash starts no escape
		case r >= 0xDC00:
			return true
		default:
			if low := escaped(text[i+6:]); low < 0xDC00 || low > 0xDFFF {
				return true
			}
			i += 11
		}
	}
	return false
}

// escaped is the number of the escape \uXXXX that text begins with, -1 if it begins with none.
func escaped(text []byte) int {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	n := 0
	for _, c := range text[2:6] {
		digit := strings.IndexByte("0123456789abcdef", c|0x20)
		if c >= '0' && c <= '9' {
			digit = int(c - '0')
		}
		if digit < 0 {
			return -1
		}
		n = n<<4 | digit
	}
	return n
}

// InvalidUTF8 is the offset of the first byte that is not part of valid UTF-8, or -1.
func InvalidUTF8(text []byte) int {
	if utf8.Valid(text) {
		return -1
	}
	for i := 0; ; {
		r, size := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
}
