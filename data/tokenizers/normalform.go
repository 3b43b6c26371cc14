// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"slices"

	"golang.org/x/text/unicode/norm"
)

// composed is a character on its way through normalization: see change.
type composed struct {
	change
	class uint8 // canonical combining class
}

// normalForm returns the characters of a text in a normal form, and what became of the old ones, by the algorithm of
// Unicode's annex 15. The tables are those of x/text without the characters that are new to HuggingFace's; package norm
// alone cannot say what became of each character, and breaks up runs of more than 30 marks.
func normalForm(form norm.Form) normalizer {
	compatible := form == norm.NFKC || form == norm.NFKD
	compose := form == norm.NFC || form == norm.NFKC
	decomposition := norm.NFD
	if compatible {
		decomposition = norm.NFKD
	}
	return func(p piece) piece {
		if isASCII(p.text) || form.IsNormalString(p.text) {
			return p
		}
		list := decompose(decomposition, p.text)
		if compose {
			list = recompose(list)
		}
		changes := make([]change, len(list))
		for i, c := range list {
			changes[i] = c.change
		}
		return p.transform(changes, 0)
	}
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

func combiningClass(r rune) uint8 {
	if r < 0x300 || r >= badByte || classOf(r)&isNew != 0 {
		return 0
	}
	return norm.NFD.PropertiesString(string(r)).CCC()
}

// decompose returns the decomposition of each character, with the marks behind a character in canonical order.
func decompose(form norm.Form, text string) []composed {
	var list []composed
	starter := 0 // where the run of marks begins
	sort := func() {
		slices.SortStableFunc(list[starter:], func(a, b composed) int { return int(a.class) - int(b.class) })
	}
	push := func(r rune, n int) {
		c := composed{change{r, n}, combiningClass(r)}
		if c.class == 0 {
			sort()
			starter = len(list) + 1
		}
		list = append(list, c)
	}
	for i := 0; i < len(text); {
		r, size := decodeRune(text, i)
		if r < 0x80 || r >= badByte || classOf(r)&isNew != 0 {
			push(r, 0)
		} else {
			n := 0
			for _, d := range form.String(text[i : i+size]) {
				push(d, n)
				n = 1
			}
		}
		i += size
	}
	starter = min(starter, len(list))
	sort()
	return list
}

// recompose joins each starter with the marks behind it that are not blocked.
func recompose(list []composed) []composed {
	var out []composed
	starter, last := -1, uint8(0) // where the starter is in out, and the class of the mark that came last and stayed
	for _, c := range list {
		if starter >= 0 {
			blocked := starter != len(out)-1 && last >= c.class
			if r, ok := composePair(out[starter].r, c.r); !blocked && ok {
				out[starter].r = r
				out[starter].n += c.n - 1
				continue
			}
		}
		if c.class == 0 {
			starter = len(out)
		}
		last = c.class
		out = append(out, c)
	}
	return out
}

// composePair is the one character that a and b make up.
func composePair(a, b rune) (rune, bool) {
	if b < 0x300 || a >= badByte || b >= badByte || (classOf(a)|classOf(b))&isNew != 0 {
		return 0, false
	}
	both := []rune(norm.NFC.String(string([]rune{a, b})))
	return both[0], len(both) == 1 && classOf(both[0])&isNew == 0
}
