// SPDX-License-Identifier: Apache-2.0

package tokenizers

import "unicode/utf8"

// piece is a part of a text on its way through the pipeline.
type piece struct {
	text  string
	track bool // whether offsets are wanted
	run   *run
	base  int // where the piece begins in the text that was given
	// spans has, for each byte of text, the bytes of the given text that its character stands for. It is nil as long as
	// nothing was changed, or if offsets are not wanted.
	spans []span
}

// span is the bytes from start to before end.
type span struct{ start, end int }

// cut is a part of the piece.
func (p piece) cut(i, j int) piece {
	q := piece{text: p.text[i:j], track: p.track, run: p.run, base: p.base + i}
	if p.spans != nil {
		q.spans, q.base = p.spans[i:j], p.base
		if i < j {
			q.base = p.spans[i].start
		}
	}
	return q
}

// at is what the byte p.text[i] stands for: the whole character that it is part of.
func (p *piece) at(i int) span {
	if p.spans != nil {
		return p.spans[i]
	}
	start := i
	for start > 0 && i-start < utf8.UTFMax-1 && !utf8.RuneStart(p.text[start]) {
		start--
	}
	if _, size := decodeRune(p.text, start); start+size > i {
		return span{p.base + start, p.base + start + size}
	}
	return span{p.base + i, p.base + i + 1}
}

// change is a character of a new text: n is 1 if it is new, so that it stands for what the character before it stands
// for; otherwise it replaces a character, and -n of those after it are gone.
type change struct {
	r rune
	n int
}

// transform replaces the text of a piece, whose first characters, so many, are gone. It keeps spans as HuggingFace's
// NormalizedString does.
func (p piece) transform(changes []change, removed int) piece {
	if !p.run.fits(len(changes)) {
		return p
	}
	out := make([]byte, 0, len(p.text)+8)
	if !p.track {
		for _, c := range changes {
			out = appendRune(out, c.r)
		}
		p.text = string(out)
		return p
	}
	at := 0
	skip := func(n int) {
		for ; n > 0 && at < len(p.text); n-- {
			_, size := decodeRune(p.text, at)
			at += size
		}
	}
	skip(removed)
	spans := make([]span, 0, len(p.text)+8)
	for _, c := range changes {
		s := span{p.base, p.base}
		switch {
		case c.n <= 0 && at < len(p.text):
			s = p.at(at)
		case c.n > 0 && at > 0:
			s = p.at(at - 1)
		}
		if c.n <= 0 {
			skip(1 - c.n)
		}
		for range runeSize(c.r) {
			spans = append(spans, s)
		}
		out = appendRune(out, c.r)
	}
	p.text, p.spans = string(out), spans
	return p
}

// prepend puts s before a piece that is not empty.
func (p piece) prepend(s string) piece {
	if p.text == "" || !p.run.fits(len(s)+len(p.text)) {
		return p
	}
	if p.track {
		first := p.at(0)
		spans := make([]span, 0, len(s)+len(p.text))
		for range len(s) {
			spans = append(spans, first)
		}
		for i := range len(p.text) {
			spans = append(spans, p.at(i))
		}
		p.spans = spans
	}
	p.text = s + p.text
	return p
}

// replace puts s in place of each match.
func (p piece) replace(match matcher, s string) piece {
	var out []byte
	var spans []span
	done := 0
	keep := func(to int) {
		out = append(out, p.text[done:to]...)
		for i := done; p.track && i < to; i++ {
			spans = append(spans, p.at(i))
		}
	}
	found := false
	match(p.run, p.text, func(start, end int) {
		if !p.run.fits(len(out) + len(s) + len(p.text) - end) {
			return
		}
		found = true
		keep(start)
		out, done = append(out, s...), end
		if p.track {
			last := span{p.base, p.base}
			if end > 0 {
				last = p.at(end - 1)
			}
			for range len(s) {
				spans = append(spans, last)
			}
		}
	})
	if found && p.run.err == nil {
		keep(len(p.text))
		p.text, p.spans = string(out), spans
	}
	return p
}
