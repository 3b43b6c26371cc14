// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"encoding/json"
	"errors"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// normalizer changes a text before it is split.
type normalizer func(piece) piece

// chain runs normalizers one after the other.
func chain(list []normalizer) normalizer {
	if len(list) == 0 {
		return func(p piece) piece { return p }
	}
	return func(p piece) piece {
		for _, n := range list {
			p = n(p)
		}
		return p
	}
}

var normalForms = map[string]norm.Form{"NFC": norm.NFC, "NFD": norm.NFD, "NFKC": norm.NFKC, "NFKD": norm.NFKD}

// parseNormalizer reads one normalizer that is no Sequence.
func parseNormalizer(c component) (normalizer, error) {
	if form, ok := normalForms[c.Type]; ok {
		return normalForm(form), onlyType(c)
	}
	switch c.Type {
	case "Lowercase":
		return lowercase, onlyType(c)
	case "StripAccents":
		return without(isCombining), onlyType(c)
	case "Strip":
		s := struct {
			Type  string
			Left  bool `json:"strip_left"`
			Right bool `json:"strip_right"`
		}{}
		err := strict(c.raw, &s)
		return strip(s.Left, s.Right), err
	case "Prepend":
		s := struct{ Type, Prepend string }{}
		err := strict(c.raw, &s)
		return func(p piece) piece { return p.prepend(s.Prepend) }, err
	case "Replace":
		s := struct {
			Type, Content string
			Pattern       filePattern
		}{}
		if err := strict(c.raw, &s); err != nil {
			return nil, err
		}
		match, err := s.Pattern.matcher()
		return func(p piece) piece { return p.replace(match, s.Content) }, err
	case "Precompiled":
		return parsePrecompiled(c)
	case "Nmt":
		return nmt, onlyType(c)
	case "BertNormalizer":
		return parseBertNormalizer(c.raw)
	}
	return nil, errUnknown
}

func parseBertNormalizer(raw json.RawMessage) (normalizer, error) {
	s := struct {
		Type               string
		CleanText          bool  `json:"clean_text"`
		HandleChineseChars bool  `json:"handle_chinese_chars"`
		StripAccents       *bool `json:"strip_accents"`
		Lowercase          bool
	}{CleanText: true, HandleChineseChars: true, Lowercase: true}
	if err := strict(raw, &s); err != nil {
		return nil, err
	}
	var list []normalizer
	if s.CleanText {
		list = append(list, without(isCleaned), spacesToBlanks)
	}
	if s.HandleChineseChars {
		list = append(list, apartIdeographs)
	}
	if s.StripAccents == nil && s.Lowercase || s.StripAccents != nil && *s.StripAccents {
		list = append(list, normalForm(norm.NFD), without(isMn))
	}
	if s.Lowercase {
		list = append(list, lowercase)
	}
	return chain(list), nil
}

// without removes the characters that have a property.
func without(property class) normalizer {
	return func(p piece) piece {
		return p.filter(func(r rune) bool { return classOf(r)&property == 0 })
	}
}

// filter removes characters.
func (p piece) filter(keep func(rune) bool) piece {
	if first := indexRune(p.text, func(r rune) bool { return !keep(r) }); first < 0 {
		return p
	}
	var changes []change
	first, removed := 0, 0
	flush := func() {
		if n := len(changes); n > 0 {
			changes[n-1].n = -removed
		} else {
			first = removed
		}
		removed = 0
	}
	for i := 0; i < len(p.text); {
		r, size := decodeRune(p.text, i)
		if i += size; !keep(r) {
			removed++
			continue
		}
		flush()
		changes = append(changes, change{r: r})
	}
	flush()
	return p.transform(changes, first)
}

// indexRune is where the first character lies of which is holds, -1 if there is none.
func indexRune(text string, is func(rune) bool) int {
	for i := 0; i < len(text); {
		r, size := decodeRune(text, i)
		if is(r) {
			return i
		}
		i += size
	}
	return -1
}

// each changes a piece character by character, if is holds for one of them.
func (p piece) each(is func(rune) bool, to func(dst []change, r rune) []change) piece {
	if indexRune(p.text, is) < 0 {
		return p
	}
	changes := make([]change, 0, len(p.text))
	for i := 0; i < len(p.text); {
		r, size := decodeRune(p.text, i)
		if i += size; is(r) {
			changes = to(changes, r)
		} else {
			changes = append(changes, change{r: r})
		}
	}
	return p.transform(changes, 0)
}

func lowercase(p piece) piece {
	var low []rune
	return p.each(func(r rune) bool {
		low = appendLower(low[:0], r)
		return len(low) > 1 || low[0] != r
	}, func(dst []change, r rune) []change {
		for i, l := range appendLower(low[:0], r) {
			dst = append(dst, change{l, min(i, 1)})
		}
		return dst
	})
}

func spacesToBlanks(p piece) piece {
	return p.each(func(r rune) bool { return r != ' ' && spaces.has(classOf(r)) },
		func(dst []change, _ rune) []change { return append(dst, change{r: ' '}) })
}

// apartIdeographs puts a space before and after each ideograph.
func apartIdeographs(p piece) piece {
	return p.each(isIdeograph, func(dst []change, r rune) []change {
		return append(dst, change{r: ' '}, change{r, 1}, change{' ', 1})
	})
}

func isIdeograph(r rune) bool {
	if r < 0x3400 {
		return false
	}
	return within(ideographBlocks, r)
}

var ideographBlocks = [][2]rune{{0x4E00, 0x9FFF}, {0x3400, 0x4DBF}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
	{0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF}, {0x2F800, 0x2FA1F}}

// within reports whether a character lies in one of the blocks, which have their first and last ones.
func within(blocks [][2]rune, r rune) bool {
	for _, b := range blocks {
		if b[0] <= r && r <= b[1] {
			return true
		}
	}
	return false
}

// strip removes white space at the ends.
func strip(left, right bool) normalizer {
	return func(p piece) piece {
		start, end := 0, len(p.text)
		if left {
			start = runEnd(p.text, 0, spaces)
		}
		for right && end > start {
			r, size := utf8.DecodeLastRuneInString(p.text[:end])
			if r == utf8.RuneError && size == 1 || !spaces.has(classOf(r)) {
				break
			}
			end -= size
		}
		return p.cut(start, end)
	}
}

// onlyType refuses settings of a component that has none.
func onlyType(c component) error {
	return strict(c.raw, &struct {
		Type string `json:"type"`
	}{})
}

// errUnknown is a component of a kind that this package does not have.
var errUnknown = errors.New("not supported")
