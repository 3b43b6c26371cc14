// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"fmt"
)

// Encoding is a text, or a pair of texts, as tokens. All slices have one entry for each token.
type Encoding struct {
	IDs []int32
	// TypeIDs say to which segment a token belongs, as the model's post-processor counts: BERT's token_type_ids.
	TypeIDs []int32
	// Offsets are the bytes of the text from Start to before End that a token stands for. Those of the second text of a
	// pair are counted in it. Tokens that were added around a text have none, 0 and 0.
	Offsets []Offset
	// Words are the numbers of the pre-tokens of a text, -1 for tokens around it.
	Words []int32
	// Sequences are 0 for tokens of the text, 1 for those of the second of a pair, and -1 for those around them.
	Sequences []int32
	// Special marks the tokens that the post-processor or padding added: the reference's special_tokens_mask.
	Special []bool
	// Attention is 0 for padding, else 1.
	Attention []int32

	words int32          // pre-tokens so far
	added map[int]string // the text of added tokens, with the white space that they took in
}

// Offset is a range of bytes.
type Offset struct{ Start, End int }

// appendWord appends the tokens of a pre-token.
func (e *Encoding) appendWord(p *piece, tokens []token) {
	word := e.words
	e.words++ // also if there is no token
	at := 0
	for _, t := range tokens {
		start, end := at, at+int(t.size)
		if t.size < 0 {
			start, end = end, at
		}
		e.append(t.id, Offset{p.at(start).start, p.at(end - 1).end}, word, 0, 0, false)
		at = end
	}
}

func (e *Encoding) append(id int32, o Offset, word, sequence, typeID int32, special bool) {
	e.IDs, e.Offsets, e.Words = append(e.IDs, id), append(e.Offsets, o), append(e.Words, word)
	e.Sequences, e.TypeIDs = append(e.Sequences, sequence), append(e.TypeIDs, typeID)
	e.Special, e.Attention = append(e.Special, special), append(e.Attention, 1)
}

// keep drops the tokens before from and from to on.
func (e *Encoding) keep(from, to int) {
	e.IDs, e.Offsets, e.Words = e.IDs[from:to], e.Offsets[from:to], e.Words[from:to]
	e.Sequences, e.TypeIDs = e.Sequences[from:to], e.TypeIDs[from:to]
	e.Special, e.Attention = e.Special[from:to], e.Attention[from:to]
}

// EncodeOptions say how Tokenize encodes. The zero value is what transformers' tokenizers do by default.
type EncodeOptions struct {
	// NoSpecialTokens leaves out what the post-processor puts around a text.
	NoSpecialTokens bool
	// MaxLength is the largest number of tokens, those around the text included; 0: any number.
	MaxLength int
	// Truncation is which text of a pair is cut: "longest_first" (the default), "only_first" or "only_second".
	Truncation string
	// TruncateLeft cuts the beginning.
	TruncateLeft bool
}

// Tokenize encodes a text, with the places of its tokens.
func (t *Tokenizer) Tokenize(text string, o EncodeOptions) (*Encoding, error) {
	e, err := t.encodeText(text)
	if err != nil {
		return nil, err
	}
	return t.tokenize(e, nil, o)
}

// TokenizePair encodes two texts as one: a question and its context, or two sentences.
func (t *Tokenizer) TokenizePair(first, second string, o EncodeOptions) (*Encoding, error) {
	one, err := t.encodeText(first)
	if err != nil {
		return nil, err
	}
	two, err := t.encodeText(second)
	if err != nil {
		return nil, err
	}
	return t.tokenize(one, two, o)
}

func (t *Tokenizer) encodeText(text string) (*Encoding, error) {
	e := t.states.Get().(*encoder)
	defer t.states.Put(e)
	e.encoding = &Encoding{}
	p := piece{text: text, track: true, run: newRun(len(text))}
	e.encode(p)
	out := e.encoding
	e.encoding = nil
	if p.run.err != nil {
		return nil, p.run.err
	}
	for _, prefixSpace := range t.process.trims {
		t.trimSpaces(out, text, prefixSpace)
	}
	return out, nil
}

func (t *Tokenizer) tokenize(first, second *Encoding, o EncodeOptions) (*Encoding, error) {
	if o.MaxLength > 0 {
		room := o.MaxLength
		if !o.NoSpecialTokens {
			room -= t.process.size(second != nil)
		}
		if err := truncate(first, second, room, o); err != nil {
			return nil, err
		}
	}
	if o.NoSpecialTokens {
		return join(first, second), nil
	}
	return t.process.around(first, second)
}

// join is the second text behind the first, as HuggingFace's has it without special tokens.
func join(first, second *Encoding) *Encoding {
	if second != nil {
		first.appendAll(second, 1, 1)
	}
	return first
}

func (e *Encoding) appendAll(o *Encoding, sequence, typeID int32) {
	for i, id := range o.IDs {
		e.append(id, o.Offsets[i], o.Words[i], sequence, typeID, o.Special[i])
	}
}

// truncate cuts the texts to so many tokens together.
func truncate(first, second *Encoding, room int, o EncodeOptions) error {
	if room < 0 {
		return fmt.Errorf("tokenizers: a length of %d has no room for the %d tokens around a text", o.MaxLength,
			o.MaxLength-room)
	}
	n1, n2 := len(first.IDs), 0
	if second != nil {
		n2 = len(second.IDs)
	}
	over := n1 + n2 - room
	if over <= 0 {
		return nil
	}
	switch o.Truncation {
	case "", "longest_first":
		if n1, n2 = room, 0; second != nil {
			n1, n2 = longestFirst(len(first.IDs), len(second.IDs), room)
		}
	case "only_first":
		n1 -= over
	case "only_second":
		if second == nil {
			return fmt.Errorf("tokenizers: truncation is only_second, and there is one text")
		}
		n2 -= over
	default:
		return fmt.Errorf("tokenizers: truncation is %q: want longest_first, only_first or only_second", o.Truncation)
	}
	if n1 < 0 || n2 < 0 || o.Truncation == "only_first" && n1 == 0 || o.Truncation == "only_second" && n2 == 0 {
		return fmt.Errorf("tokenizers: truncation is %s, and that text is too short to be cut by %d tokens",
			o.Truncation, over)
	}
	first.cut(n1, o.TruncateLeft)
	if second != nil {
		second.cut(n2, o.TruncateLeft)
	}
	return nil
}

// longestFirst divides the room among two texts: the shorter one keeps all it has, up to half of the room.
func longestFirst(n1, n2, room int) (int, int) {
	swap := n1 > n2
	if swap {
		n1, n2 = n2, n1
	}
	if n1 > room {
		n2 = n1
	} else {
		n2 = max(n1, room-n1)
	}
	if n1+n2 > room {
		n1 = room / 2
		n2 = n1 + room%2
	}
	if swap {
		return n2, n1
	}
	return n1, n2
}

// cut keeps n tokens.
func (e *Encoding) cut(n int, left bool) {
	all := len(e.IDs)
	switch {
	case n >= all:
	case left:
		e.keep(all-n, all)
	default:
		e.keep(0, n)
	}
}

// Padding is how Pad makes encodings equally long.
type Padding struct {
	ID     int32
	TypeID int32
	// Length is the number of tokens to pad to; 0: that of the longest encoding.
	Length int
	// MultipleOf rounds the length up; 0: it does not.
	MultipleOf int
	// Left pads before the text, as generation from a batch needs it.
	Left bool
}

// Pad appends padding to the encodings that are shorter than the length.
func Pad(batch []*Encoding, p Padding) {
	length := p.Length
	for _, e := range batch {
		if p.Length == 0 {
			length = max(length, len(e.IDs))
		}
	}
	if m := p.MultipleOf; m > 0 && length%m > 0 {
		length += m - length%m
	}
	for i, e := range batch {
		n := length - len(e.IDs)
		if n <= 0 {
			continue
		}
		pad := &Encoding{}
		for range n {
			pad.append(p.ID, Offset{}, -1, -1, p.TypeID, true)
			pad.Attention[len(pad.Attention)-1] = 0
		}
		if p.Left {
			batch[i] = pad.with(e)
		} else {
			batch[i] = e.with(pad)
		}
	}
}

// with is e and then o.
func (e *Encoding) with(o *Encoding) *Encoding {
	out := &Encoding{}
	for _, part := range []*Encoding{e, o} {
		for i, id := range part.IDs {
			out.append(id, part.Offsets[i], part.Words[i], part.Sequences[i], part.TypeIDs[i], part.Special[i])
			out.Attention[len(out.Attention)-1] = part.Attention[i]
		}
	}
	return out
}
