// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

// charsMap is what a normalizer of SentencePiece makes of characters: a double-array trie (Aoe 1989) of texts, which
// has for each of them the place of another one in a list.
type charsMap struct {
	units []uint32
	list  string // each ends at a 0
}

// readCharsMap reads precompiled_charsmap: the size of the trie in bytes, the trie, and the list.
func readCharsMap(text string) (*charsMap, error) {
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("precompiled_charsmap: %w", err)
	}
	if len(data) < 4 {
		return nil, fmt.Errorf("precompiled_charsmap has %d bytes: want a size, a trie and a list of texts", len(data))
	}
	size, rest := int(binary.LittleEndian.Uint32(data)), data[4:]
	if size%4 != 0 || size == 0 || size > len(rest) {
		return nil, fmt.Errorf("precompiled_charsmap: the trie has %d of %d bytes: want whole units of 4", size,
			len(rest))
	}
	m := &charsMap{units: make([]uint32, size/4), list: string(rest[size:])}
	for i := range m.units {
		m.units[i] = binary.LittleEndian.Uint32(rest[4*i:])
	}
	if !utf8.ValidString(m.list) {
		return nil, errors.New("precompiled_charsmap: the list of texts is not UTF-8")
	}
	return m, nil
}

// find is what the shortest text of the map that part begins with becomes. So HuggingFace's library has it, which puts
// that in place of all of part.
func (m *charsMap) find(part string) (string, bool) {
	at, ok := m.follow(0, 0)
	for i := 0; ok && i < len(part) && part[i] != 0; i++ {
		b := uint32(part[i])
		next := at ^ b
		if next >= uint32(len(m.units)) || m.units[next]&(1<<31|0xFF) != b {
			return "", false
		}
		unit := m.units[next]
		if at, ok = m.follow(next, unit); ok && unit>>8&1 == 1 {
			value := m.units[at] & (1<<31 - 1)
			if value > uint32(len(m.list)) {
				return "", false
			}
			text, _, _ := strings.Cut(m.list[value:], "\x00")
			return text, true
		}
	}
	return "", false
}

// follow is the place that the children of a unit are counted from: that of the root if unit is 0.
func (m *charsMap) follow(at, unit uint32) (uint32, bool) {
	if at == 0 {
		unit = m.units[0]
	}
	at ^= unit >> 10 << (unit & (1 << 9) >> 6)
	return at, at < uint32(len(m.units))
}

func parsePrecompiled(c component) (normalizer, error) {
	s := struct {
		Type string
		Map  string `json:"precompiled_charsmap"`
	}{}
	if err := strict(c.raw, &s); err != nil {
		return nil, err
	}
	m, err := readCharsMap(s.Map)
	if err != nil {
		return nil, err
	}
	return m.normalize, nil
}

// shortCluster is the size below which a grapheme cluster is looked up as a whole.
const shortCluster = 6

// normalize replaces grapheme clusters that are short, else characters.
func (m *charsMap) normalize(p piece) piece {
	var changes []change
	found := false
	for rest := p.text; rest != "" && p.run.fits(len(changes)); {
		n := clusterSize(rest)
		cluster := rest[:n]
		rest = rest[n:]
		if n < shortCluster {
			if text, ok := m.find(cluster); ok {
				changes, found = replaced(changes, cluster, text), true
				continue
			}
		}
		for i := 0; i < n; {
			r, size := decodeRune(cluster, i)
			if text, ok := m.find(cluster[i : i+size]); ok {
				changes, found = replaced(changes, cluster[i:i+size], text), true
			} else {
				changes = append(changes, change{r: r})
			}
			i += size
		}
	}
	if !found || p.run.err != nil {
		return p
	}
	return p.transform(changes, 0)
}

// clusterSize is the size of the grapheme cluster that a text begins with.
func clusterSize(text string) int {
	if text[0] < utf8.RuneSelf && (len(text) == 1 || text[1] < utf8.RuneSelf && text[:2] != "\r\n") {
		return 1
	}
	cluster, _, _, _ := uniseg.FirstGraphemeClusterInString(text, -1)
	return len(cluster)
}

// replaced appends the characters of a text that stands for old. As in HuggingFace's library, those that old has more
// count as removed behind the last character, of whatever text that is.
func replaced(changes []change, old, text string) []change {
	more := utf8.RuneCountInString(text) - utf8.RuneCountInString(old)
	for i := 0; i < len(text); {
		r, size := decodeRune(text, i)
		changes = append(changes, change{r: r})
		i += size
	}
	switch n := len(changes); {
	case more > 0:
		for i := n - more; i < n; i++ {
			changes[i].n = 1
		}
	case more < 0 && n > 0:
		changes[n-1].n += more
	}
	return changes
}

// Characters that Nmt removes, and those that it makes spaces of.
var (
	nmtRemoved = [][2]rune{{0x01, 0x08}, {0x0B, 0x0B}, {0x0E, 0x1F}, {0x7F, 0x7F}, {0x8F, 0x8F}, {0x9F, 0x9F}}
	nmtSpaces  = [][2]rune{{0x09, 0x0A}, {0x0C, 0x0D}, {0x1680, 0x1680}, {0x200B, 0x200F}, {0x2028, 0x2029},
		{0x2581, 0x2581}, {0xFEFF, 0xFEFF}, {0xFFFD, 0xFFFD}}
)

// nmt is the clean-up that SentencePiece's nmt rules begin with.
func nmt(p piece) piece {
	p = p.filter(func(r rune) bool { return !within(nmtRemoved, r) })
	return p.each(func(r rune) bool { return within(nmtSpaces, r) },
		func(dst []change, _ rune) []change { return append(dst, change{r: ' '}) })
}
