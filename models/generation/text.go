// SPDX-License-Identifier: Apache-2.0

package generation

import (
	"slices"
	"unicode/utf8"
)

// PieceDecoder turns tokens into text as they come, in whole characters, as a stream of data/tokenizers does.
type PieceDecoder interface {
	Next(id int32) (string, error)
	Flush() string
}

// TextStream is the text of new tokens as they come, up to the first of some strings. What may be the beginning of one
// is held back until it is known, so that nobody sees a part of it. Give the tokens of Options.OnToken to Next.
type TextStream struct {
	pieces  PieceDecoder
	eos     []int
	stops   []string
	held    string
	stopped bool
}

// NewTextStream begins a text. Tokens of eos have none, and stops end it.
func NewTextStream(d PieceDecoder, eos []int, stops ...string) *TextStream {
	return &TextStream{pieces: d, eos: eos, stops: stops}
}

// Next takes a token and returns the text that can be shown. The error names an id outside the vocabulary.
func (s *TextStream) Next(id int) (string, error) {
	if s.stopped || slices.Contains(s.eos, id) {
		return "", nil
	}
	piece, err := s.pieces.Next(int32(id))
	if err != nil {
		return "", err
	}
	return s.show(piece, false), nil
}

// Flush returns what is left when no token follows.
func (s *TextStream) Flush() string {
	if s.stopped {
		return ""
	}
	return s.show(s.pieces.Flush(), true)
}

// Stopped reports whether one of the strings has ended the text.
func (s *TextStream) Stopped() bool { return s.stopped }

func (s *TextStream) show(piece string, last bool) string {
	s.held += piece
	text := CutStop(s.held, s.stops...)
	s.stopped = len(text) < len(s.held)
	if s.stopped || last {
		s.held = ""
		return text
	}
	longest := 1
	for _, stop := range s.stops {
		longest = max(longest, len(stop))
	}
	n := max(0, len(text)-longest+1)
	for n > 0 && n < len(text) && !utf8.RuneStart(text[n]) {
		n--
	}
	text, s.held = text[:n], text[n:]
	return text
}
