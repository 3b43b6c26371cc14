// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// spaceSet is Unicode's White_Space; \s of package regexp is ASCII only.
const spaceSet = `\t\n\v\f\r \x{85}\p{Z}`

var (
	wordPattern  = regexp.MustCompile(`^(?:'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^` + spaceSet + `\p{L}\p{N}]+)`)
	spacePattern = regexp.MustCompile(`^[` + spaceSet + `]+`)
)

// splitOracle splits with package regexp, which lacks the look-ahead (?!\S) only.
func splitOracle(text string) []string {
	var words []string
	for len(text) > 0 {
		n := len(wordPattern.FindString(text))
		if n == 0 {
			n = len(spacePattern.FindString(text))
			if run := text[:n]; n < len(text) && utf8.RuneCountInString(run) > 1 {
				_, size := utf8.DecodeLastRuneInString(run)
				n -= size
			}
		}
		words = append(words, text[:n])
		text = text[n:]
	}
	return words
}

func split(text string) []string {
	var words []string
	for i := 0; i < len(text); {
		end := gpt2(text, i)
		words = append(words, text[i:end])
		i = end
	}
	return words
}

func TestSplit(t *testing.T) {
	for text, want := range map[string]string{
		"Hello world":           "Hello| world",
		"it's we'll they've 's": "it|'s| we|'ll| they|'ve| '|s",
		"'stop 'Tis I'd'd":      "'s|top| '|Tis| I|'d|'d",
		"a  b":                  "a| | b",
		"a \n b":                "a| \n| b",
		"a\nb":                  "a|\n|b",
		"a\n\nb":                "a|\n|\n|b",
		"end  \n":               "end|  \n",
		"  ":                    "  ",
		"x = 10x2;":             "x| =| 10|x|2|;",
		"\tif x {":              "\t|if| x| {",
		"Gr\u00fc\u00dfe \u4f60\u597d \u0663\u00bd!": "Gr\u00fc\u00dfe| \u4f60\u597d| \u0663\u00bd|!",
		"a\u3000 b":   "a|\u3000| b",
		"e\u0301":     "e|\u0301",
		"a\xff\xfe b": "a|\xff\xfe| b",
		"!'s":         "!'|s",
		"'r'v'l'":     "'|r|'|v|'|l|'",
	} {
		require.Equal(t, strings.Split(want, "|"), split(text), "%q", text)
		require.Equal(t, splitOracle(text), split(text), "%q", text)
	}
	require.Empty(t, split(""))
}

// tricky draws text from the characters on which the pattern depends.
func tricky() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		parts := rapid.SliceOf(rapid.OneOf(
			rapid.SampledFrom([]string{" ", "  ", "\n", "\t", "\u00a0", "\u3000", "\u0085", "'", "'s", "'ll", "re",
				"ve", "a", "Z", "\u00e9", "\u4f60",
				"7", "\u00bd", "\u0663", ".", "_", "\U0001f600", "\u0301", "\xff", "\xe4\xbd", "\x00", "\x1c"}),
			rapid.String(),
		)).Draw(t, "parts")
		return strings.Join(parts, "")
	})
}

func TestSplitAgreesWithRegexp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := tricky().Draw(t, "text")
		require.Equal(t, splitOracle(text), split(text))
	})
}

func FuzzSplit(f *testing.F) {
	f.Add("I'll say  it's\n\n\t10% \xff done ")
	f.Fuzz(func(t *testing.T, text string) {
		require.Equal(t, splitOracle(text), split(text))
	})
}

func TestPiecesKeepTheSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := tricky().Draw(t, "text")
		var words []string
		for _, piece := range pieces(text, rapid.IntRange(1, 20).Draw(t, "size")) {
			words = append(words, split(piece)...)
		}
		require.Equal(t, split(text), words)
	})
}

func TestAlphabet(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	spelled := spell(all)
	require.Equal(t, 256, utf8.RuneCountInString(spelled))
	back, ok := unspell(spelled)
	require.True(t, ok)
	require.Equal(t, all, back)
	require.Equal(t, "ĠĊĉ!~¡¬®ÿĀġĢł", spell([]byte(" \n\t!~\xa1\xac\xae\xff\x00\x7f\x80\xa0")))
	for _, bad := range []string{" ", "\n", "\u0144", "日", "\xff"} {
		_, ok := unspell(bad)
		require.False(t, ok, "%q", bad)
	}
}
