// SPDX-License-Identifier: Apache-2.0

package tokenizers

import "unicode/utf8"

// byteRunes spells each byte as a printable character, the alphabet of GPT-2's
// byte-level vocabulary: the printable bytes of Latin-1 stand for themselves, the
// other 68 are U+0100, U+0101, … in byte order (a space is "Ġ", a newline "Ċ").
var byteRunes = makeByteRunes()

// runeBytes is the inverse of byteRunes; -1 marks characters outside the alphabet.
var runeBytes = makeRuneBytes()

// alphabetSize is one more than the largest character of the alphabet.
const alphabetSize = 256 + 68

func makeByteRunes() (table [256]rune) {
	next := rune(256)
	for b := range table {
		if isPrintableLatin1(b) {
			table[b] = rune(b)
			continue
		}
		table[b] = next
		next++
	}
	return table
}

func isPrintableLatin1(b int) bool {
	return '!' <= b && b <= '~' || 0xA1 <= b && b <= 0xAC || 0xAE <= b && b <= 0xFF
}

func makeRuneBytes() (table [alphabetSize]int16) {
	for r := range table {
		table[r] = -1
	}
	for b, r := range byteRunes {
		table[r] = int16(b)
	}
	return table
}

// spell writes bytes in the alphabet.
func spell(token []byte) string {
	out := make([]byte, 0, 2*len(token))
	for _, b := range token {
		out = utf8.AppendRune(out, byteRunes[b])
	}
	return string(out)
}

// unspell reads bytes back from the alphabet; ok is false if s has a character that
// is not in it.
func unspell(s string) (token []byte, ok bool) {
	token = make([]byte, 0, len(s))
	for _, r := range s {
		if r >= alphabetSize || runeBytes[r] < 0 {
			return nil, false
		}
		token = append(token, byte(runeBytes[r]))
	}
	return token, true
}
