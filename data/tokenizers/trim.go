// SPDX-License-Identifier: Apache-2.0

package tokenizers

import "unicode/utf8"

// trimSpaces moves the offsets of tokens past the spaces that they begin and end with, a character of the text for
// each. With prefixSpace the first token's one space is not in the text.
func (t *Tokenizer) trimSpaces(e *Encoding, text string, prefixSpace bool) {
	for i := range e.Offsets {
		token, ok := e.added[i]
		if !ok {
			token = t.spelled[e.IDs[i]]
		}
		o := &e.Offsets[i]
		n := leadingSpaces(token)
		if n == 1 && (i == 0 || o.Start == 0) && prefixSpace {
			n = 0
		}
		for ; n > 0 && o.Start < o.End; n-- {
			_, size := decodeRune(text, o.Start)
			o.Start += size
		}
		end := o.End
		for n = trailingSpaces(token); n > 0 && end > 0; n-- {
			_, size := utf8.DecodeLastRuneInString(text[:end])
			end -= size
		}
		if n == 0 {
			o.End = max(end, o.Start)
		}
	}
}

// isOuterSpace reports whether a character of a token is white space. In the alphabet of bytes a space is "Ġ".
func isOuterSpace(r rune) bool { return r == byteRunes[' '] || isSpaceRune(r) }

func leadingSpaces(token string) (n int) {
	for _, r := range token {
		if !isOuterSpace(r) {
			break
		}
		n++
	}
	return n
}

func trailingSpaces(token string) (n int) {
	for token != "" {
		r, size := utf8.DecodeLastRuneInString(token)
		if !isOuterSpace(r) {
			break
		}
		n++
		token = token[:len(token)-size]
	}
	return n
}
