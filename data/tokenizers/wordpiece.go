// SPDX-License-Identifier: Apache-2.0

package tokenizers

import "unicode/utf8"

// wordPiece takes the longest token that a word begins with, and then the longest that continues.
type wordPiece struct {
	first, next map[string]int32 // tokens that begin a word, and those that continue, without their prefix
	longest     int              // of both, in bytes
	unk         int32            // the token of a word that cannot be taken apart
	maxChars    int              // longer words are unknown
}

// tokenize implements model.
func (m *wordPiece) tokenize(e *encoder, dst []token, word string) []token {
	if utf8.RuneCountInString(word) > m.maxChars {
		return append(dst, token{m.unk, int32(len(word))})
	}
	if tokens, ok := e.cache[word]; ok {
		return append(dst, tokens...)
	}
	begin := len(dst)
	for start := 0; start < len(word); {
		tokens := m.first
		if start > 0 {
			tokens = m.next
		}
		id, end := m.unk, min(len(word), start+m.longest)
		for ; end > start; end-- {
			if end < len(word) && !utf8.RuneStart(word[end]) {
				continue
			}
			if i, ok := tokens[word[start:end]]; ok {
				id = i
				break
			}
		}
		if end == start {
			dst = append(dst[:begin], token{m.unk, int32(len(word))})
			break
		}
		dst = append(dst, token{id, int32(end - start)})
		start = end
	}
	e.remember(word, dst[begin:])
	return dst
}
