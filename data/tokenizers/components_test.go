// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// patched is a tree with a value in another place of it.
func patched(t testing.TB, tree map[string]any, path string, value any) {
	t.Helper()
	at, keys := tree, strings.Split(path, ".")
	for _, key := range keys[:len(keys)-1] {
		at = at[key].(map[string]any)
	}
	at[keys[len(keys)-1]] = value
}

// Components that change no id, and those that change only what is built, give the ids of HuggingFace's tokenizers and
// are written back as they were. testdata/components.py made the golden.
func TestComponentsAreThoseOfHuggingFace(t *testing.T) {
	var golden struct {
		Texts []string
		Cases []struct {
			Name  string
			Patch map[string]any
			IDs   [][]int32
			Texts []string
		}
	}
	raw, err := os.ReadFile(filepath.Join("testdata", "components.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &golden))
	require.Len(t, golden.Cases, 21)
	file, err := os.ReadFile(filepath.Join("testdata", "trained", "tokenizer.json"))
	require.NoError(t, err)
	for _, c := range golden.Cases {
		var tree map[string]any
		require.NoError(t, json.Unmarshal(file, &tree))
		for path, value := range c.Patch {
			patched(t, tree, path, value)
		}
		tok, err := read(t, tree)
		require.NoError(t, err, c.Name)
		for i, text := range golden.Texts {
			require.Equal(t, c.IDs[i], append([]int32{}, must(t, tok.Encode)(text)...), "%s: %q", c.Name, text)
			back, err := tok.Decode(c.IDs[i])
			require.NoError(t, err)
			require.Equal(t, c.Texts[i], back, c.Name)
		}
		var written bytes.Buffer
		_, err = tok.WriteTo(&written)
		require.NoError(t, err)
		var back map[string]any
		require.NoError(t, json.Unmarshal(written.Bytes(), &back))
		for _, key := range []string{"truncation", "padding", "normalizer", "pre_tokenizer", "decoder", "model"} {
			require.Equal(t, tree[key], back[key], "%s: %s", c.Name, key)
		}
	}
}

// All faults of a file come at once, the kind of the model first.
func TestReadRefusesWithAllFaults(t *testing.T) {
	tree := written(t)
	tree["model"] = map[string]any{"type": "WordLevel", "vocab": []any{}}
	tree["normalizer"] = map[string]any{"type": "Precompiled", "precompiled_charsmap": ""}
	tree["pre_tokenizer"] = map[string]any{"type": "UnicodeScripts"}
	tree["decoder"] = map[string]any{"type": "CTC"}
	tree["post_processor"] = map[string]any{"type": "Sequence", "processors": []any{map[string]any{"type": "More"}}}
	_, err := read(t, tree)
	require.EqualError(t, err, `tokenizers: tokenizer.json: model: type is "WordLevel", which is not supported: `+
		`want BPE, WordPiece or Unigram; pre_tokenizer "UnicodeScripts" is not supported; `+
		`normalizer Precompiled: precompiled_charsmap has 0 bytes: want a size, a trie and a list of texts; `+
		`decoder "CTC" is not supported; post_processor "More" is not supported`)

	tree = written(t)
	model := tree["model"].(map[string]any)
	model["dropout"], tree["version"] = 0.1, "2"
	_, err = read(t, tree)
	require.ErrorContains(t, err, `dropout is 0.1, which is not supported: want null; version is "2"`)
}

// A file that is no tokenizer.json is named, and one that lies beside it in another form.
func TestLoadSaysWhatThereIs(t *testing.T) {
	for name, c := range map[string]struct {
		beside []string
		head   string
		want   string
	}{
		"pointer": {nil, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"},
		"slow":    {[]string{"vocab.json", "merges.txt"}, "", "save_pretrained(FOLDER) writes tokenizer.json"},
		"bert":    {[]string{"vocab.txt"}, "", "WordPiece: in Python"},
		"llama":   {[]string{"tokenizer.model"}, "", "SentencePiece: in Python"},
	} {
		dir := t.TempDir()
		for _, b := range c.beside {
			require.NoError(t, os.WriteFile(filepath.Join(dir, b), []byte("x"), 0o600))
		}
		path := filepath.Join(dir, "tokenizer.json")
		if c.head != "" {
			require.NoError(t, os.WriteFile(path, []byte(c.head), 0o600))
		}
		_, err := Load(path)
		require.ErrorContains(t, err, c.want, name)
		require.ErrorContains(t, err, path, name)
	}
}

// Half a surrogate pair in a token's name would become another name.
func TestReadRefusesLoneSurrogates(t *testing.T) {
	var b bytes.Buffer
	_, err := trainOn(t, 260, "aaa bbb aaa").WriteTo(&b)
	require.NoError(t, err)
	_, err = Read(strings.NewReader(strings.Replace(b.String(), `"<|endoftext|>"`, `"\ud800"`, 1)))
	require.ErrorContains(t, err, "not half of a pair")
}
