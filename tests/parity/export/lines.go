// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"unicode"

	"github.com/lockstep-ml/lockstep/data/text"
)

// readLines reads the lines of a file or makes n: half of them Go source, half in all
// scripts of the world.
func readLines(file string, n int) ([]string, error) {
	if file != "" {
		b, err := os.ReadFile(file)
		return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n"), err
	}
	r := rand.New(rand.NewPCG(1, 2))
	lines, err := goLines(r, n-n/2)
	if err != nil {
		return nil, err
	}
	for range n / 2 {
		lines = append(lines, mixedLine(r))
	}
	return lines, nil
}

// goLines picks distinct lines of the Go standard library's source.
func goLines(r *rand.Rand, n int) ([]string, error) {
	root, err := text.GoRoot()
	if err != nil {
		return nil, err
	}
	files, _, err := text.GoSource(root)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var all []string
	for doc, err := range text.Read(files, text.Options{}) {
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(doc.Text) {
			if line = strings.TrimSuffix(line, "\n"); !seen[line] {
				seen[line] = true
				all = append(all, line)
			}
		}
	}
	if len(all) < n {
		return nil, fmt.Errorf("the Go source has %d distinct lines: want %d", len(all), n)
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:n], nil
}

// ranges are the characters that lines in many scripts are made of: whole classes, since the cut depends only on the
// class, and blocks.
var ranges = []*unicode.RangeTable{
	unicode.Letter, unicode.Number, unicode.Mark, unicode.Punct, unicode.Symbol, unicode.Space, unicode.Lu, unicode.Lm,
	unicode.Nd, unicode.Nl, unicode.No,
	unicode.Latin, unicode.Cyrillic, unicode.Greek, unicode.Arabic, unicode.Hebrew, unicode.Devanagari, unicode.Thai,
	unicode.Han, unicode.Hiragana,
	unicode.Katakana, unicode.Hangul, unicode.Armenian, unicode.Ethiopic, unicode.So, unicode.Sc, unicode.Cf,
	unicode.Zs,
}

// mixedLine makes a line of words in many scripts with all sorts of space between them.
func mixedLine(r *rand.Rand) string {
	spaces := []string{"", " ", " ", " ", "  ", "   ", "\t", "\t\t", " \t ", "\u00a0", "\u3000", "\u2028", "\u0085",
		"\r", "\v", "\u200b", "\ufeff"}
	words := strings.Fields("don't I'll we've they're it's I'm he'd DON'T 'S 'lll ''s x'y 12 3.14 1e-9 ½ ⅷ ٣ 年 naïve " +
		"Ünï e\u0301 🙂 👩‍💻 🇩🇪 <|endoftext|> <|endoftext >")
	var b strings.Builder
	for range 1 + r.IntN(12) {
		b.WriteString(spaces[r.IntN(len(spaces))])
		if r.IntN(3) == 0 {
			b.WriteString(words[r.IntN(len(words))])
			continue
		}
		table := ranges[r.IntN(len(ranges))]
		for range 1 + r.IntN(6) {
			b.WriteRune(character(r, table))
		}
	}
	b.WriteString(spaces[r.IntN(len(spaces))])
	return strings.ReplaceAll(b.String(), "\n", " ")
}

// character draws one of the table's, each with the same probability.
func character(r *rand.Rand, table *unicode.RangeTable) rune {
	total := 0
	each := func(visit func(lo, hi, stride int)) {
		for _, x := range table.R16 {
			visit(int(x.Lo), int(x.Hi), int(x.Stride))
		}
		for _, x := range table.R32 {
			visit(int(x.Lo), int(x.Hi), int(x.Stride))
		}
	}
	each(func(lo, hi, stride int) { total += (hi-lo)/stride + 1 })
	k, found := r.IntN(total), rune(0)
	each(func(lo, hi, stride int) {
		n := (hi-lo)/stride + 1
		if k >= 0 && k < n {
			found = rune(lo + k*stride)
		}
		k -= n
	})
	return found
}
