// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func splitOn(pattern string) map[string]any {
	return map[string]any{"type": "Split", "pattern": map[string]any{"Regex": pattern}, "behavior": "Isolated",
		"invert": false}
}

func replaceBy(pattern, content string) map[string]any {
	return map[string]any{"type": "Replace", "pattern": map[string]any{"String": pattern}, "content": content}
}

// Deep expressions overflow the stack of package regexp2, which no program survives.
func TestExpressionsAreBounded(t *testing.T) {
	for pattern, want := range map[string]string{
		strings.Repeat("(", 3<<20) + strings.Repeat(")", 3<<20): "it has 6291456 bytes: want at most 16384",
		strings.Repeat("(", 200) + strings.Repeat(")", 200):     "it has more than 100 nested groups",
		strings.Repeat("(?:a|", 150) + "b":                      "it has more than 100 nested groups",
		strings.Repeat(`\w`, 8000):                              "it has too many classes of characters",
	} {
		for _, part := range []string{"pre_tokenizer", "normalizer", "decoder"} {
			c := splitOn(pattern)
			if part != "pre_tokenizer" {
				c["type"], c["content"] = "Replace", ""
				delete(c, "behavior")
				delete(c, "invert")
			}
			tree := written(t)
			tree[part] = c
			_, err := read(t, tree)
			require.ErrorContains(t, err, want, "%s %.20s", part, pattern)
		}
	}
	tree := written(t)
	tree["pre_tokenizer"] = splitOn(strings.Repeat("(", 90) + `\(\[a` + strings.Repeat(")", 90))
	_, err := read(t, tree)
	require.NoError(t, err)
}

// What regexp2 would match otherwise than Oniguruma is refused.
func TestExpressionsThatDiffer(t *testing.T) {
	for pattern, want := range map[string]string{
		`(?i:ss|t)`:    `(?i) and "ss" are not supported`,
		`(?i)[^µ]`:     `(?i) and "µ" are not supported`,
		`\p{^Thai}`:    `\p{^Thai} is not supported`,
		`\pL`:          `\p without a name: want \p{NAME}`,
		`\p`:           `\p without a name: want \p{NAME}`,
		`a\b`:          `\b is not supported`,
		`[\p{L}&&[a]]`: `'&' in a class is not supported`,
	} {
		tree := written(t)
		tree["pre_tokenizer"] = splitOn(pattern)
		_, err := read(t, tree)
		require.ErrorContains(t, err, want, pattern)
	}
}

// Settings that make a text many times as long are an error of the call, in all that encode and decode.
func TestGrowthIsBounded(t *testing.T) {
	nested := func(n int, c map[string]any) map[string]any {
		return map[string]any{"type": "Sequence", "normalizers": repeat(c, n)}
	}
	for name, normalizer := range map[string]any{
		"replace": nested(6, replaceBy("a", strings.Repeat("a", 50))),
		"prepend": nested(4, map[string]any{"type": "Prepend", "prepend": strings.Repeat("x", 1<<20)}),
	} {
		tree := written(t)
		tree["normalizer"] = normalizer
		tok, err := read(t, tree)
		require.NoError(t, err, name)
		text := strings.Repeat("a", 5000)
		const want = "tokenizer.json makes more than 16 times its size of a text"
		for _, encode := range []func(string) ([]int32, error){tok.Encode, tok.EncodeOrdinary, tok.EncodeWithSpecial} {
			_, err = encode(text)
			require.ErrorContains(t, err, want, name)
		}
		_, err = tok.Tokenize(text, EncodeOptions{})
		require.ErrorContains(t, err, want, name)
		_, err = tok.TokenizePair("", text, EncodeOptions{})
		require.ErrorContains(t, err, want, name)
		_, err = tok.EncodeAll(context.Background(), []string{"", text}, 2)
		require.ErrorContains(t, err, want+": want fewer or shorter replacements in the normalizer, pre_tokenizer or "+
			"decoder (in text 1)", name)

		tree["added_tokens"] = []any{map[string]any{"id": 0, "content": text, "single_word": false, "lstrip": false,
			"rstrip": false, "normalized": true, "special": false}}
		tree["model"].(map[string]any)["vocab"].(map[string]any)[text] = 0
		delete(tree["model"].(map[string]any)["vocab"].(map[string]any), endOfText)
		_, err = read(t, tree)
		require.ErrorContains(t, err, want, name)
	}

	tree := written(t)
	tree["decoder"] = map[string]any{"type": "Sequence", "decoders": repeat(replaceBy("a", strings.Repeat("a", 50)), 6)}
	tok, err := read(t, tree)
	require.NoError(t, err)
	_, err = tok.Decode(must(t, tok.Encode)("aaaa"))
	require.ErrorContains(t, err, "times its size")
	_, err = tok.NewStream().Next(must(t, tok.Encode)("a")[0])
	require.ErrorContains(t, err, "times its size")
}

func repeat(v any, n int) (list []any) {
	for range n {
		list = append(list, v)
	}
	return list
}

// What an expression cannot do in time is an error, not a text without matches.
func TestExpressionsThatTakeTooLong(t *testing.T) {
	tree := written(t)
	tree["pre_tokenizer"] = splitOn(`(a+)+$`)
	tok, err := read(t, tree)
	require.NoError(t, err)
	_, err = tok.Encode(strings.Repeat("a", 40) + "b")
	require.ErrorContains(t, err, `the regular expression "(a+)+$" takes too long`)
}

func TestEmptyPatternsAreNamed(t *testing.T) {
	tree := written(t)
	tree["normalizer"] = replaceBy("", "x")
	_, err := read(t, tree)
	require.ErrorContains(t, err, `normalizer Replace: pattern.String is "": want a text to look for`)
	tree["normalizer"] = map[string]any{"type": "Replace", "pattern": map[string]any{}, "content": ""}
	_, err = read(t, tree)
	require.ErrorContains(t, err, `pattern: want either {"Regex": …} or {"String": …}`)
}
