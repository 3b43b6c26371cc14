// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"strings"
	"unicode/utf8"
)

// Stream decodes tokens as they come. It gives whole characters, and its texts make up what DecodeText gives for all
// tokens. For bytes that make up no character it gives U+FFFD.
type Stream struct {
	t    *Tokenizer
	ids  []int32 // the tokens of the last text, which the decoder may look at, and those whose text is held back
	read int     // how many of them have been given
}

// NewStream begins a text.
func (t *Tokenizer) NewStream() *Stream { return &Stream{t: t} }

// Next takes a token and returns the text that can be shown, which is empty if the token ends inside a character. The
// error names an id outside the vocabulary.
func (s *Stream) Next(id int32) (string, error) {
	if err := s.t.known(id); err != nil {
		return "", err
	}
	if s.t.special[id] {
		return "", nil
	}
	s.ids = append(s.ids, id)
	text, err := s.rest()
	if err != nil {
		return "", err
	}
	if len(s.ids)-s.read < utf8.UTFMax && s.endsInside(text) {
		return "", nil
	}
	return s.give(text), nil
}

// Flush returns what is left when no token follows.
func (s *Stream) Flush() string {
	text, _ := s.rest() // Next had no error for the same tokens
	return s.give(text)
}

func (s *Stream) give(text string) string {
	s.ids = s.ids[s.read:]
	s.read = len(s.ids)
	return strings.ToValidUTF8(text, string(utf8.RuneError))
}

// rest is the text that has not been given.
func (s *Stream) rest() (string, error) {
	given, err := s.t.text(s.ids[:s.read], true)
	if err != nil {
		return "", err
	}
	all, err := s.t.text(s.ids, true)
	if err != nil {
		return "", err
	}
	if rest, ok := strings.CutPrefix(all, given); ok {
		return rest, nil
	}
	return s.t.text(s.ids[s.read:], true)
}

// endsInside reports whether the text of the tokens held back ends in a character whose other bytes may follow.
func (s *Stream) endsInside(text string) bool {
	if s.t.fallback { // the text has replacement characters for such bytes
		var run []byte
		for _, id := range s.ids[s.read:] {
			if b, ok := byteToken(s.t.spelled[id]); ok {
				run = append(run, b)
			} else {
				run = run[:0]
			}
		}
		text = string(run)
	}
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if tail := text[len(text)-n:]; utf8.RuneStart(tail[0]) {
			return !utf8.FullRuneInString(tail)
		}
	}
	return false
}
