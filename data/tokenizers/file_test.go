// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// written is a small tokenizer's file as a tree that a test can break.
func written(t testing.TB) map[string]any {
	var b bytes.Buffer
	_, err := trainOn(t, 270, source(t)...).WriteTo(&b)
	require.NoError(t, err)
	var tree map[string]any
	require.NoError(t, json.Unmarshal(b.Bytes(), &tree))
	return tree
}

func read(t testing.TB, tree any) (*Tokenizer, error) {
	data, err := json.Marshal(tree)
	require.NoError(t, err)
	return Read(bytes.NewReader(data))
}

func TestSaveAndLoad(t *testing.T) {
	bpe := trainOn(t, 600, source(t)...)
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	require.NoError(t, bpe.Save(path))
	back, err := Load(path)
	require.NoError(t, err)
	text := strings.Join(source(t), endOfText)
	require.Equal(t, must(t, bpe.Encode)(text), must(t, back.Encode)(text))
	require.Equal(t, bpe.AddedTokens(), back.AddedTokens())

	again := filepath.Join(t.TempDir(), "again.json")
	require.NoError(t, back.Save(again))
	first, err := os.ReadFile(path)
	require.NoError(t, err)
	second, err := os.ReadFile(again)
	require.NoError(t, err)
	require.Equal(t, string(first), string(second))

	_, err = Load(filepath.Join(t.TempDir(), "absent.json"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Error(t, bpe.Save(filepath.Join(t.TempDir(), "no", "such", "folder")))
}

// Tokens that are added are saved, found as a whole, and leave the others alone.
func TestWithTokens(t *testing.T) {
	old := trainOn(t, 270, source(t)...)
	inVocabulary, _ := old.Token(265)
	size := int32(old.VocabSize())
	grown, err := old.WithTokens(AddedToken{Content: "<|end|>", Special: true}, AddedToken{Content: endOfText},
		AddedToken{Content: inVocabulary}, AddedToken{Content: "<tool>", Normalized: true},
		AddedToken{Content: "<|end|>"})
	require.NoError(t, err)
	require.Equal(t, int(size), old.VocabSize(), "the old one is as it was")
	require.Equal(t, []AddedToken{{ID: 0, Content: endOfText, Special: true}, {ID: 265, Content: inVocabulary},
		{ID: size, Content: "<|end|>", Special: true}, {ID: size + 1, Content: "<tool>", Normalized: true}},
		grown.AddedTokens())
	require.Equal(t, []int32{size, 0, size + 1}, must(t, grown.Encode)("<|end|>"+endOfText+"<tool>"))
	text := "plain words"
	require.Equal(t, must(t, old.Encode)(text), must(t, grown.Encode)(text))

	path := filepath.Join(t.TempDir(), "tokenizer.json")
	require.NoError(t, grown.Save(path))
	back, err := Load(path)
	require.NoError(t, err)
	require.Equal(t, grown.AddedTokens(), back.AddedTokens())

	_, err = old.WithTokens(AddedToken{})
	require.ErrorContains(t, err, "is empty")
}

// TestReadGPT2Layout reads the layout of GPT-2's own file: no model type, merges as
// lines, no use_regex, and an end-of-text token after the vocabulary.
func TestReadGPT2Layout(t *testing.T) {
	tree := written(t)
	model := tree["model"].(map[string]any)
	delete(model, "type")
	model["continuing_subword_prefix"], model["end_of_word_suffix"] = "", ""
	model["unk_token"] = endOfText
	delete(model, "ignore_merges")
	delete(model, "byte_fallback")
	var lines []any
	for _, m := range model["merges"].([]any) {
		lines = append(lines, m.([]any)[0].(string)+" "+m.([]any)[1].(string))
	}
	model["merges"] = lines
	tree["pre_tokenizer"] = map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true}
	tree["post_processor"] = map[string]any{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false}
	tree["added_tokens"] = append(tree["added_tokens"].([]any),
		map[string]any{"id": 270, "content": "<extra>", "single_word": false, "lstrip": false, "rstrip": false,
			"normalized": true, "special": false})

	bpe, err := read(t, tree)
	require.NoError(t, err)
	require.Equal(t, 271, bpe.VocabSize())
	require.Equal(t, []int32{0, 270, 0}, must(t, bpe.Encode)("<|endoftext|><extra><|endoftext|>"))
	want, err := read(t, written(t))
	require.NoError(t, err)
	require.Equal(t, must(t, want.Encode)("func it's(err error)"), must(t, bpe.Encode)("func it's(err error)"))

	var b bytes.Buffer
	_, err = bpe.WriteTo(&b)
	require.NoError(t, err)
	back, err := Read(&b)
	require.NoError(t, err)
	require.Equal(t, bpe.AddedTokens(), back.AddedTokens())
	require.Equal(t, 271, back.VocabSize())
}

func TestReadRefuses(t *testing.T) {
	component := func(kind string) map[string]any { return map[string]any{"type": kind} }
	level := func(prefix, regex bool) map[string]any {
		return map[string]any{"type": "ByteLevel", "add_prefix_space": prefix, "use_regex": regex}
	}
	split := func(pattern, behavior string) map[string]any {
		return map[string]any{"type": "Sequence", "pretokenizers": []any{map[string]any{"type": "Split",
			"pattern": map[string]any{"Regex": pattern}, "behavior": behavior, "invert": false}, level(false, false)}}
	}
	added := func(change string, value any) []any {
		a := map[string]any{"id": 0, "content": endOfText, "single_word": false, "lstrip": false, "rstrip": false,
			"normalized": false, "special": true}
		a[change] = value
		return []any{a}
	}
	merge := func(a, b string) []any { return []any{[]any{a, b}} }
	for _, c := range []struct {
		part, key string // part "" is the top level
		value     any
		want      string
	}{
		{"", "version", "2.0", `version is "2.0": want "1.0"`},
		{"", "normalizer", component("Nfd"), `normalizer "Nfd" is not supported`},
		{"", "normalizer", map[string]any{"type": "NFC", "x": 1}, `NFC: it has the key "x", which is unknown`},
		{"", "truncation", "x", "truncation is not an object"},
		{"", "padding", 7, "padding is not an object"},
		{"", "pre_tokenizer", map[string]any{"type": "Sequence", "pretokenizers": []any{level(false, true),
			map[string]any{"type": "Digits", "individual_digits": false}}}, `ByteLevel: it is not the last component`},
		{"", "pre_tokenizer", map[string]any{"type": "Sequence", "processors": []any{}},
			`it has the key "processors", which is unknown`},
		{"", "pre_tokenizer", split("(", "Isolated"), "the regular expression"},
		{"", "pre_tokenizer", split("x", "Dropped"), `behavior is "Dropped": want Isolated`},
		{"", "pre_tokenizer", component("UnicodeScripts"), `pre_tokenizer "UnicodeScripts" is not supported`},
		{"", "pre_tokenizer", map[string]any{"type": "Metaspace", "replacement": "ab"}, `replacement is "ab"`},
		{"", "decoder", component("CTC"), `decoder "CTC" is not supported`},
		{"", "post_processor", component("Mystery"), `post_processor "Mystery" is not supported`},
		{"", "post_processor", component("TemplateProcessing"), "has 0 texts: want 1"},
		{"", "surprise", 1, `it has the key "surprise", which is unknown`},
		{"", "added_tokens", added("id", 7), `has id 7, but the vocabulary gives it 0`},
		{"", "added_tokens", added("id", -7), `has id -7`},
		{"", "added_tokens", added("content", "new"), `want 270, the next free one`},
		{"", "added_tokens", added("content", ""), "is empty"},
		{"", "added_tokens", append(added("id", 0), added("id", 0)...), "ascending"},
		{"", "model", nil, "model is missing"},
		{"model", "type", "WordLevel", `type is "WordLevel"`},
		{"model", "type", "WordPiece", `which is unknown`},
		{"model", "dropout", 0.1, "dropout is 0.1"},
		{"model", "unk_token", "<?>", `unknown token "<?>" is not in the vocabulary`},
		{"model", "surprise", 1, `it has the key "surprise", which is unknown`},
		{"model", "vocab", []any{}, "vocab: it is a list: want an object"},
		{"model", "vocab", map[string]any{}, "vocab: it has no tokens"},
		{"model", "vocab", map[string]any{"a": 0, "b": 0}, "each id once"},
		{"model", "vocab", map[string]any{"a": -1}, "id -1"},
		{"model", "vocab", map[string]any{"a": 1e12}, "a is 1000000000000: want a whole number that 32 bits can hold"},
		{"model", "vocab", map[string]any{"a": "x"}, `vocab: a is "x": want a whole number`},
		{"model", "merges", merge("zz", "q"), "tokens that are not in the vocabulary"},
		{"model", "merges", merge("§", "§"), `produces "§§", which is not in the vocabulary`},
		{"model", "merges", []any{"a b c"}, `merges[0] is "a b c": want two tokens with a space between`},
		{"model", "merges", []any{7}, "merges[0] is 7: want a list of two tokens"},
	} {
		tree := written(t)
		if c.part == "" {
			tree[c.key] = c.value
		} else {
			tree[c.part].(map[string]any)[c.key] = c.value
		}
		_, err := read(t, tree)
		require.ErrorContains(t, err, c.want, "%s %s = %v", c.part, c.key, c.value)
	}
}

func TestReadRefusesBrokenFiles(t *testing.T) {
	var b bytes.Buffer
	_, err := trainOn(t, 260, "aaa bbb aaa").WriteTo(&b)
	require.NoError(t, err)
	file := b.String()
	for want, broken := range map[string]string{
		"it is empty: want JSON":            file[:0],
		"the text ends too early":           file[:len(file)/2],
		"there is more behind":              file + "{}",
		`model.vocab has the key "Ġ" twice`: strings.Replace(file, `"Ġ": `, `"Ġ": 0, "Ġ": `, 1),
	} {
		_, err := Read(strings.NewReader(broken))
		require.ErrorContains(t, err, want)
	}
}

// Lists of hardly any bytes a value are counted while they are read.
func TestTokenizersMadeToExhaustMemoryAreRefused(t *testing.T) {
	_,
		err := Read(strings.NewReader(`{"added_tokens":[` + strings.Repeat(`{},`, 1<<16) +
		`{}],"model":{"vocab":{"a":0}}}`))
	require.ErrorContains(t, err, "added_tokens has more than 65536 values")
	_, err = Read(strings.NewReader(
		`{"model":{"vocab":{"a":0},"merges":[` + strings.Repeat(`[],`, maxTokens) + `[]]}}`))
	require.ErrorContains(t, err, "merges has more than 2097152 values")
	_, err = Read(strings.NewReader(strings.Repeat(" ", maxFile+1)))
	require.ErrorContains(t, err, "more than 67108864 bytes")
}

// FuzzRead: whatever Read accepts is a tokenizer that encodes and decodes.
func FuzzRead(f *testing.F) {
	var b bytes.Buffer
	_, err := trainOn(f, 260, "aaa bbb aaa").WriteTo(&b)
	require.NoError(f, err)
	f.Add(b.Bytes())
	f.Add(b.Bytes()[:b.Len()/3])
	f.Add([]byte(`{"model":{"vocab":{"a":0},"merges":[]}}`))
	for _, path := range families(f) {
		f.Add(gunzipped(f, path))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := Read(bytes.NewReader(data))
		if err != nil {
			return
		}
		const text = "aaa bbb \xff it's É日本 1234\n\n"
		ids := must(t, tok.Encode)(text)
		_, err = tok.Decode(ids)
		require.NoError(t, err)
		encoded, err := tok.Tokenize(text, EncodeOptions{NoSpecialTokens: true})
		require.NoError(t, err)
		require.Equal(t, ids, encoded.IDs)
		for _, o := range encoded.Offsets {
			require.True(t, 0 <= o.Start && o.Start <= o.End && o.End <= len(text), o)
		}
	})
}

// A template whose tokens multiply is refused while it is read.
func TestTemplatesMadeToExhaustMemoryAreRefused(t *testing.T) {
	special := `{"SpecialToken":{"id":"x","type_id":0}}`
	template := func(pieces, ids int) string {
		return `{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}}` +
			strings.Repeat(","+special, pieces) +
			`],"pair":[],"special_tokens":{"x":{"id":"x","ids":[0` + strings.Repeat(",0", ids-1) + `],"tokens":["x"]}}}`
	}
	sequence := func(inner string, n int) string {
		return `{"type":"Sequence","processors":[` + strings.TrimSuffix(strings.Repeat(inner+",", n), ",") + `]}`
	}
	nested := template(1, 1)
	for range 6 {
		nested = sequence(nested, 1)
	}
	for want, text := range map[string]string{
		"the template puts more than 1024 tokens around a text": template(33, 32),
		"want at most 64 components":                            sequence(`{"type":"ByteLevel"}`, 65),
		"want at most 4 nested Sequences":                       nested,
		"more than 1024 tokens":                                 sequence(template(32, 31), 2),
	} {
		_, bad := parseProcessor([]byte(text), 1)
		require.Contains(t, strings.Join(bad, "; "), want)
	}
	got, bad := parseProcessor([]byte(sequence(template(2, 16), 2)), 1)
	require.Empty(t, bad)
	require.Len(t, got.after, 64)
}

// FuzzParseTemplate: a post-processor is refused, or it puts known tokens around a text, a bounded number.
func FuzzParseTemplate(f *testing.F) {
	template := `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x","type_id":0}},` +
		`{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"x":{"id":"x","ids":[0,1],"tokens":["x"]}}}`
	f.Add([]byte(template))
	f.Add([]byte(`{"type":"Sequence","processors":[{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,` +
		`"use_regex":true},` + template + `]}`))
	f.Add([]byte(`{"type":"RobertaProcessing","sep":["</s>",2],"cls":["<s>",0],"add_prefix_space":false}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, bad := parseProcessor(raw, 7)
		if len(bad) > 0 {
			return
		}
		all := append(slices.Clone(got.before), got.after...)
		require.LessOrEqual(t, len(all), maxTemplate)
		for _, id := range all {
			require.True(t, id >= 0 && id < 7)
		}
	})
}
