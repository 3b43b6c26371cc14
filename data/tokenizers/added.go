// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// AddedToken is a token that is found in the text before it is split, as a whole, and
// is never the result of a merge: "<|endoftext|>" for example.
type AddedToken struct {
	ID      int32
	Content string
	// Special tokens carry meaning for the model and no text of their own.
	Special bool
	// Normalized tokens are looked for after those that are not, in the normalized text.
	Normalized bool
	// SingleWord tokens are not found inside words; LStrip and RStrip tokens take in the white space before and after
	// them.
	SingleWord, LStrip, RStrip bool
}

// addedSet finds the tokens of one of two rounds: those that are not normalized in the text, then the others in the
// normalized text.
type addedSet struct {
	tokens []AddedToken // Content as it is looked for, longer ones before those that they begin with
	byByte [256][]int32 // tokens by their first byte
	first  string       // the first bytes that there are, if they are few
}

func newAddedSet(tokens []AddedToken) *addedSet {
	s := &addedSet{tokens: slices.Clone(tokens)}
	slices.SortStableFunc(s.tokens, func(a, b AddedToken) int { return cmp.Compare(len(b.Content), len(a.Content)) })
	var first []byte
	for i, a := range s.tokens {
		if a.Content == "" {
			continue // nothing is left of it once it is normalized
		}
		b := a.Content[0]
		if s.byByte[b] == nil {
			first = append(first, b)
		}
		s.byByte[b] = append(s.byByte[b], int32(i))
	}
	s.first = string(first)
	return s
}

// next is the leftmost token at or after text[from], the longest of those that start there; nil if there is none.
func (s *addedSet) next(text string, from int) (start int, token *AddedToken) {
	if len(s.first) == 0 {
		return 0, nil
	}
	for i := from; i < len(text); i++ {
		if len(s.first) == 1 {
			n := strings.IndexByte(text[i:], s.first[0])
			if n < 0 {
				return 0, nil
			}
			i += n
		}
		for _, t := range s.byByte[text[i]] {
			if strings.HasPrefix(text[i:], s.tokens[t].Content) {
				return i, &s.tokens[t]
			}
		}
	}
	return 0, nil
}

// split cuts text at the tokens, and gives the pieces between them with id -1.
func (s *addedSet) split(text string, each func(start, end int, id int32)) {
	done := 0
	for at := 0; at < len(text); {
		start, token := s.next(text, at)
		if token == nil {
			break
		}
		end := start + len(token.Content)
		at = end
		if token.SingleWord && (endsWithWord(text[:start]) || startsWithWord(text[end:])) {
			continue
		}
		if token.LStrip {
			start = max(len(trimSpaceRight(text[:start])), done)
		}
		if token.RStrip {
			end = runEnd(text, end, spaces)
		}
		if start > done {
			each(done, start, -1)
		}
		each(start, end, token.ID)
		done = end
	}
	if done < len(text) {
		each(done, len(text), -1)
	}
}

func trimSpaceRight(text string) string { return strings.TrimRightFunc(text, isSpaceRune) }

func endsWithWord(text string) bool {
	r, _ := utf8.DecodeLastRuneInString(text)
	return text != "" && classOf(r)&isWord != 0
}

func startsWithWord(text string) bool {
	if text == "" {
		return false
	}
	k, _ := classAt(text, 0)
	return k&isWord != 0
}

// addTokens enters the added tokens, sorted by id. Those that the vocabulary lacks must have the ids that HuggingFace's
// tokenizers would give them in this order, since it does not read them from the file.
func (t *Tokenizer) addTokens(added []AddedToken, size int) error {
	next := int32(size)
	var groups [2][]AddedToken
	total := 0
	for _, a := range added {
		total += len(a.Content)
	}
	run := newRun(total)
	for i, a := range added {
		if a.Content == "" {
			return fmt.Errorf("tokenizers: added token %d is empty", a.ID)
		}
		if i > 0 && added[i-1].ID >= a.ID {
			return fmt.Errorf("tokenizers: added tokens must have ascending ids, %d follows %d", a.ID, added[i-1].ID)
		}
		switch id, ok := t.ids[a.Content]; {
		case ok && id != a.ID:
			return fmt.Errorf("tokenizers: added token %q has id %d, but the vocabulary gives it %d", a.Content, a.ID,
				id)
		case !ok && a.ID != next:
			return fmt.Errorf("tokenizers: added token %q has id %d: want %d, the next free one", a.Content, a.ID, next)
		case !ok && int(a.ID) < len(t.spelled) && t.has[a.ID]:
			return fmt.Errorf("tokenizers: added token %q has id %d, as %q", a.Content, a.ID, t.spelled[a.ID])
		}
		if _, ok := t.ids[a.Content]; !ok {
			next++
		}
		t.setToken(a.ID, a.Content)
		find := a
		if a.Normalized {
			find.Content = t.normalize(piece{text: a.Content, run: run}).text
			if run.room -= len(find.Content); run.err != nil {
				return fmt.Errorf("%w (in added token %q)", run.err, a.Content)
			}
			groups[1] = append(groups[1], find)
			t.spelled[a.ID] = find.Content // so it is decoded, too
		} else {
			groups[0] = append(groups[0], find)
		}
		t.special[a.ID] = a.Special && find.Content == a.Content
	}
	t.added = added
	t.groups = [2]*addedSet{newAddedSet(groups[0]), newAddedSet(groups[1])}
	return nil
}

// WithTokens is the tokenizer with further added tokens, as HuggingFace's add_tokens and add_special_tokens make it. A
// token that the vocabulary lacks gets the next free id, in the order given; AddedToken.ID is not read. One that the
// vocabulary has keeps its id, and is found as a whole from now on. One that is an added token already stays unchanged.
// A model needs a row for each new id: see models.Resizable.
func (t *Tokenizer) WithTokens(tokens ...AddedToken) (*Tokenizer, error) {
	var f file
	if err := json.Unmarshal(t.file, &f); err != nil {
		return nil, fmt.Errorf("tokenizers: tokenizer.json: %w", err)
	}
	next := int64(len(t.ids))
	known := map[string]bool{}
	for _, a := range f.AddedTokens {
		known[a.Content] = true
	}
	for _, a := range tokens {
		if known[a.Content] {
			continue
		}
		known[a.Content] = true
		id := next
		if own, ok := t.ids[a.Content]; ok {
			id = int64(own)
		} else {
			next++
		}
		f.AddedTokens = append(f.AddedTokens, fileAdded{ID: id, Content: a.Content, SingleWord: a.SingleWord,
			LStrip: a.LStrip, RStrip: a.RStrip, Normalized: a.Normalized, Special: a.Special})
	}
	slices.SortStableFunc(f.AddedTokens, func(a, b fileAdded) int { return cmp.Compare(a.ID, b.ID) })
	return parse(f.format())
}

// setToken gives an id a spelling.
func (t *Tokenizer) setToken(id int32, spelled string) {
	if n := int(id) + 1; n > len(t.spelled) {
		t.spelled = append(t.spelled, make([]string, n-len(t.spelled))...)
		t.has = append(t.has, make([]bool, n-len(t.has))...)
		t.special = append(t.special, make([]bool, n-len(t.special))...)
	}
	t.spelled[id], t.has[id], t.ids[spelled] = spelled, true, id
}

// maxID bounds the holes that a vocabulary may have.
const maxID = 1 << 22
