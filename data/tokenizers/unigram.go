// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"fmt"
	"math"
	"slices"
)

// unigram takes the tokens whose scores have the largest sum of all ways to take a word apart (Kudo 2018, "Subword
// Regularization"). What no token has is unknown, at a score below all others.
type unigram struct {
	ids      map[string]int32
	tokens   trie
	scores   []float64 // by id
	unk      int32
	unkScore float64
	bytes    []int32 // of byte fallback; nil: there is none
}

// unkPenalty is what the score of an unknown character is below the smallest one of a token.
const unkPenalty = 10

// step is the best way to take apart what lies before a place in a word: the token that ends there.
type step struct {
	score float64
	start int32 // of the token; -1: no way leads here
	id    int32
}

// tokenize implements model: Viterbi's algorithm over the places between characters.
func (m *unigram) tokenize(e *encoder, dst []token, word string) []token {
	if tokens, ok := e.cache[word]; ok {
		return append(dst, tokens...)
	}
	e.steps = slices.Grow(e.steps[:0], len(word)+1)[:len(word)+1]
	for i := range e.steps {
		e.steps[i] = step{start: -1}
	}
	for i := 0; i < len(word); {
		_, size := decodeRune(word, i)
		m.stepsFrom(e.steps, word, i, size)
		i += size
	}
	begin := len(dst)
	dst = m.walkBack(dst, e.steps, word)
	e.remember(word, dst[begin:])
	return dst
}

// stepsFrom improves the ways to the places that a token leads to from place i, where a character of so many bytes is.
func (m *unigram) stepsFrom(steps []step, word string, i, size int) {
	improve := func(end int, score float64, id int32) {
		score += steps[i].score
		if to := &steps[end]; to.start < 0 || score > to.score {
			*to = step{score, int32(i), id}
		}
	}
	one := false // whether the character is a token
	m.tokens.prefixes(word[i:], func(n int, id int32) {
		improve(i+n, m.scores[id], id)
		one = one || n == size
	})
	if !one {
		improve(i+size, m.unkScore, m.unk)
	}
}

// walkBack appends the tokens of the best way. Neighbouring unknown ones are one.
func (m *unigram) walkBack(dst []token, steps []step, word string) []token {
	begin := len(dst)
	for end := len(word); end > 0; {
		s := steps[end]
		start := int(s.start)
		for s.id == m.unk && start > 0 && steps[start].id == m.unk {
			start = int(steps[start].start)
		}
		if s.id == m.unk {
			dst = m.unknown(dst, word[start:end])
		} else {
			dst = append(dst, token{s.id, int32(end - start)})
		}
		end = start
	}
	slices.Reverse(dst[begin:])
	return dst
}

// unknown appends, in reverse, the tokens of a text that is not a token of the way: it may be one all the same, or its
// bytes are.
func (m *unigram) unknown(dst []token, text string) []token {
	size := int32(len(text))
	if id, ok := m.ids[text]; ok {
		return append(dst, token{id, size})
	}
	if m.bytes == nil || !m.hasBytes(text) {
		return append(dst, token{m.unk, size})
	}
	for i := len(text) - 1; i > 0; i-- {
		dst = append(dst, token{m.bytes[text[i]], -size})
	}
	return append(dst, token{m.bytes[text[0]], size})
}

func (m *unigram) hasBytes(text string) bool {
	for i := range len(text) {
		if m.bytes[text[i]] < 0 {
			return false
		}
	}
	return true
}

// trie finds the tokens that a text begins with.
type trie struct{ next mergeTable } // (node, byte) to the next node, with the token that ends there as its rank

// maxNodes bounds a trie, whose memory a file's size does not.
const maxNodes = 1 << 22

// newTrie makes a trie of tokens.
func newTrie(ids map[string]int32) (trie, error) {
	names := make([]string, 0, len(ids))
	for name := range ids {
		names = append(names, name)
	}
	slices.Sort(names)
	nodes, before := 0, ""
	for _, name := range names {
		shared := 0
		for shared < min(len(name), len(before)) && name[shared] == before[shared] {
			shared++
		}
		nodes, before = nodes+len(name)-shared, name
	}
	if nodes > maxNodes {
		return trie{}, fmt.Errorf("tokenizers: tokenizer.json: vocab: the tokens have more than %d beginnings: want "+
			"shorter or fewer tokens", maxNodes)
	}
	t, made := trie{newMergeTable(nodes)}, int32(0)
	for _, name := range names {
		node := int32(0)
		for i := range len(name) {
			p := makePair(node, int32(name[i]))
			e := t.next.slot(p)
			if e.key == 0 {
				made++
				*e = mergeEntry{uint64(p) + 1, merge{-1, made}}
			}
			if node = e.id; i == len(name)-1 {
				e.rank = ids[name]
			}
		}
	}
	return t, nil
}

// prefixes calls each for the tokens that text begins with, the shortest first, with their sizes.
func (t *trie) prefixes(text string, each func(n int, id int32)) {
	node := int32(0)
	for i := range len(text) {
		m, ok := t.next.find(makePair(node, int32(text[i])))
		if !ok {
			return
		}
		if node = m.id; m.rank >= 0 {
			each(i+1, m.rank)
		}
	}
}

// fileUnigram is a Unigram model.
type fileUnigram struct {
	Type         string      `json:"type"`
	UnkID        *int        `json:"unk_id"`
	Vocab        []fileScore `json:"vocab" max:"2097152"`
	ByteFallback bool        `json:"byte_fallback"`
}

// fileScore is ["token", score].
type fileScore struct {
	token string
	score float64
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *fileScore) UnmarshalJSON(data []byte) error {
	var list []any
	if err := loose(data, &list); err != nil {
		return err
	}
	if len(list) == 2 {
		token, isToken := list[0].(string)
		score, isScore := list[1].(float64)
		if isToken && isScore {
			*s = fileScore{token, score}
			return nil
		}
	}
	return fmt.Errorf("want a list of a token and its score")
}

func (m *fileUnigram) check() []string {
	if m.UnkID == nil || *m.UnkID < 0 || *m.UnkID >= len(m.Vocab) {
		given := "null"
		if m.UnkID != nil {
			given = fmt.Sprint(*m.UnkID)
		}
		return []string{fmt.Sprintf("model: unk_id is %s: want the number of one of %d tokens", given, len(m.Vocab))}
	}
	return nil
}

func (m *fileUnigram) fill(t *Tokenizer, byteLevel bool) error {
	if byteLevel {
		return fmt.Errorf("tokenizers: tokenizer.json: Unigram after ByteLevel is not supported")
	}
	t.ids = make(map[string]int32, len(m.Vocab))
	u := &unigram{unk: int32(*m.UnkID), unkScore: math.Inf(1)}
	for id, v := range m.Vocab {
		if first, ok := t.ids[v.token]; ok {
			return fmt.Errorf("tokenizers: tokenizer.json: vocab: %q is token %d and %d: want each token once", v.token,
				first, id)
		}
		t.setToken(int32(id), v.token)
		u.scores = append(u.scores, v.score)
		u.unkScore = min(u.unkScore, v.score-unkPenalty)
	}
	u.ids = copyOf(t.ids)
	if m.ByteFallback {
		for b := range 256 {
			id, ok := u.ids[fmt.Sprintf("<0x%02X>", b)]
			if !ok {
				id = -1
			}
			u.bytes = append(u.bytes, id)
		}
	}
	var err error
	u.tokens, err = newTrie(u.ids)
	t.model = u
	return err
}
