// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"fmt"
	"strings"
)

// bpe is byte-pair encoding, over the bytes of a pre-token or over its characters.
type bpe struct {
	spelled []string
	ids     map[string]int32
	merges  []pair // by rank, for what is trained
	merged  mergeTable
	unk     int32 // the token for what has none; -1: it is left out
	fuse    bool  // one unknown token for neighbours

	byteLevel bool
	bytes     [256]int32 // byte-level: the id of each byte, -1 if it has none; else of the tokens <0x00> …
	fallback  bool

	prefix, suffix string // of symbols inside a word, and at its end
	// whole has the tokens that a whole pre-token may be, whatever merges make of it (ignore_merges); nil: none.
	whole map[string]int32
}

// pair is two neighbouring tokens, the left one in the upper half, so that pairs
// compare as (left, right).
type pair uint64

func makePair(left, right int32) pair { return pair(uint32(left))<<32 | pair(uint32(right)) }

func (p pair) left() int32  { return int32(p >> 32) }
func (p pair) right() int32 { return int32(uint32(p)) }

// merge is what becomes of a pair: the lower its rank, the earlier it is merged.
type merge struct {
	rank int32
	id   int32
}

// mergeTable maps pairs to merges, by open addressing: the map of Go takes most of the time of encoding.
type mergeTable struct {
	entries []mergeEntry // a power of two, at most half of them taken
	shift   uint
}

type mergeEntry struct {
	key uint64 // the pair, plus one; 0: free
	merge
}

func newMergeTable(n int) mergeTable {
	bits := uint(4)
	for 1<<bits < 2*n {
		bits++
	}
	return mergeTable{entries: make([]mergeEntry, 1<<bits), shift: 64 - bits}
}

// slot is where p is, or where it would be.
func (t *mergeTable) slot(p pair) *mergeEntry {
	mask := uint64(len(t.entries) - 1)
	for i := uint64(p) * 0x9E3779B97F4A7C15 >> t.shift; ; i = (i + 1) & mask {
		if e := &t.entries[i]; e.key == 0 || e.key == uint64(p)+1 {
			return e
		}
	}
}

func (t *mergeTable) find(p pair) (merge, bool) {
	e := t.slot(p)
	return e.merge, e.key != 0
}

// addMerges enters the merges, by rank. Of a pair that appears twice the last one counts.
func (m *bpe) addMerges(merges []pair) error {
	m.merges, m.merged = merges, newMergeTable(len(merges))
	for rank, p := range merges {
		left, right := m.spelled[p.left()], m.spelled[p.right()]
		name := left + strings.TrimPrefix(right, m.prefix)
		id, ok := m.ids[name]
		if !ok {
			return fmt.Errorf("tokenizers: merge %d produces %q, which is not in the vocabulary", rank, name)
		}
		*m.merged.slot(p) = mergeEntry{uint64(p) + 1, merge{int32(rank), id}}
	}
	return nil
}

// readBytes looks for the tokens of the bytes.
func (m *bpe) readBytes() {
	for b := range m.bytes {
		name := fmt.Sprintf("<0x%02X>", b)
		if m.byteLevel {
			name = string(byteRunes[b])
		}
		id, ok := m.ids[name]
		if !ok {
			id = -1
		}
		m.bytes[b] = id
	}
}

// readWhole prepares ignore_merges.
func (m *bpe) readWhole() {
	m.whole = make(map[string]int32, len(m.ids))
	for name, id := range m.ids {
		if !m.byteLevel {
			m.whole[name] = id
		} else if b, ok := unspell(name); ok {
			m.whole[string(b)] = id
		}
	}
}

// tokenize implements model.
func (m *bpe) tokenize(e *encoder, dst []token, word string) []token {
	if tokens, ok := e.cache[word]; ok {
		return append(dst, tokens...)
	}
	start := len(dst)
	if id, ok := m.whole[word]; ok {
		dst = append(dst, token{id, int32(len(word))})
	} else {
		e.word = m.symbols(e.word[:0], word)
		if len(e.word) < heapFrom {
			e.word = m.mergeShort(e.word)
		} else {
			e.word = e.mergeLong(m, e.word)
		}
		dst = append(dst, e.word...)
	}
	e.remember(word, dst[start:])
	return dst
}

// symbols appends the tokens of the bytes or characters of a word. What has no token counts to the next one's size.
func (m *bpe) symbols(dst []token, word string) []token {
	unknown := token{id: -1} // not yet appended
	lost := int32(0)
	flush := func() {
		if unknown.id >= 0 {
			dst, unknown.id = append(dst, unknown), -1
		}
	}
	for i := 0; i < len(word); {
		size := 1
		if !m.byteLevel {
			_, size = decodeRune(word, i)
		}
		id := m.symbol(word, i, size)
		i += size
		switch {
		case id >= 0:
			flush()
			dst, lost = append(dst, token{id, int32(size) + lost}), 0
		case m.fallback && m.hasBytes(word[i-size:i]):
			for j := i - size; j < i; j++ {
				dst, lost = append(dst, token{m.bytes[word[j]], 1 + lost}), 0
			}
		case m.unk < 0:
			lost += int32(size)
		case unknown.id >= 0 && m.fuse:
			unknown.size += int32(size)
		default:
			flush()
			unknown = token{m.unk, int32(size)}
		}
	}
	flush()
	if n := len(dst); n > 0 {
		dst[n-1].size += lost
	}
	return dst
}

// symbol is the id of the byte or character of so many bytes at word[i], -1 if it has none.
func (m *bpe) symbol(word string, i, size int) int32 {
	if m.byteLevel && m.prefix == "" && m.suffix == "" {
		return m.bytes[word[i]]
	}
	name := word[i : i+size]
	if m.byteLevel {
		name = string(byteRunes[word[i]])
	}
	if i > 0 && m.prefix != "" {
		name = m.prefix + name
	}
	if i+size == len(word) && m.suffix != "" {
		name += m.suffix
	}
	if id, ok := m.ids[name]; ok {
		return id
	}
	return -1
}

func (m *bpe) hasBytes(s string) bool {
	for i := range len(s) {
		if m.bytes[s[i]] < 0 {
			return false
		}
	}
	return true
}
