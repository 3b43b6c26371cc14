// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// unigramFile is the tokenizer.json of a Unigram model with more keys of the file.
func unigramFile(model, more string) string {
	return fmt.Sprintf(`{"version": "1.0", "model": {"type": "Unigram", %s}%s}`, model, more)
}

const smallVocab = `"unk_id": 0,
	"vocab": [["<unk>", 0], ["a", -1], ["b", -2], ["ab", -3.5], ["aba", -3], ["<0x63>", -9]]`

// The way with the largest sum wins, the first of equal ones; neighbouring unknown characters are one token.
func TestUnigramTakesTheBestWay(t *testing.T) {
	for text, want := range map[string][]int32{
		"": {}, "a": {1}, "ab": {1, 2}, "abab": {4, 2}, "abaaba": {4, 4}, "xaxx": {0, 1, 0}, "cc": {0}, "xcé": {0},
		"<unk>": {0},
	} {
		tok, err := Read(strings.NewReader(unigramFile(smallVocab, "")))
		require.NoError(t, err)
		require.Equal(t, want, nonNil(must(t, tok.Encode)(text)), text)
	}
	tok, err := Read(strings.NewReader(unigramFile(smallVocab+`, "byte_fallback": true`, "")))
	require.NoError(t, err)
	e, err := tok.Tokenize("accéc", EncodeOptions{})
	require.NoError(t, err)
	require.Equal(t, []int32{1, 0}, e.IDs) // é has no tokens of its bytes
	e, err = tok.Tokenize("acc", EncodeOptions{})
	require.NoError(t, err)
	require.Equal(t, []int32{1, 5, 5}, e.IDs)
	require.Equal(t, []Offset{{0, 1}, {1, 3}, {1, 3}}, e.Offsets) // the bytes of an unknown text have all of it
}

func TestReadRefusesUnigram(t *testing.T) {
	precompiled := func(data []byte) string {
		return fmt.Sprintf(`, "normalizer": {"type": "Precompiled", "precompiled_charsmap": %q}`,
			base64.StdEncoding.EncodeToString(data))
	}
	long := strings.Repeat("x", maxNodes+1)
	for want, file := range map[string]string{
		"model: unk_id is null: want the number of one of 1 tokens": unigramFile(`"vocab": [["a", -1]]`, ""),
		"unk_id is 1: want the number of one of 1 tokens": unigramFile(
			`"unk_id": 1, "vocab": [["a", -1]]`, ""),
		"want a list of a token and its score": unigramFile(`"unk_id": 0, "vocab": [["a"]]`, ""),
		`vocab: "a" is token 0 and 1: want each token once`: unigramFile(`"unk_id": 0, "vocab": [["a", -1], ["a", -2]]`,
			""),
		"more than 4194304 beginnings": unigramFile(`"unk_id": 0, "vocab": [["`+long+`", -1]]`, ""),
		"has 2 bytes: want a size":     unigramFile(smallVocab, precompiled([]byte{1, 2})),
		"the trie has 8 of 4 bytes":    unigramFile(smallVocab, precompiled([]byte{8, 0, 0, 0, 1, 2, 3, 4})),
		"list of texts is not UTF-8":   unigramFile(smallVocab, precompiled([]byte{4, 0, 0, 0, 1, 2, 3, 4, 0xff})),
		"illegal base64": unigramFile(smallVocab, `, "normalizer": {"type": "Precompiled",
			"precompiled_charsmap": "?"}`),
		"Unigram after ByteLevel": unigramFile(smallVocab, `, "pre_tokenizer": {"type": "ByteLevel",
			"add_prefix_space": false, "trim_offsets": true, "use_regex": true}`),
	} {
		_, err := Read(strings.NewReader(file))
		require.ErrorContains(t, err, want)
	}
}

// A trie of any numbers neither hangs nor reads outside of it.
func FuzzCharsMap(f *testing.F) {
	var file struct {
		Normalizer struct {
			Normalizers []struct {
				Map []byte `json:"precompiled_charsmap"`
			}
		}
	}
	require.NoError(f, json.Unmarshal(gunzipped(f, "testdata/families/xlmr.json.gz"), &file))
	f.Add(file.Normalizer.Normalizers[0].Map, "e\u0301 ﬁ\r\nxß")
	f.Add([]byte{4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}, "a")
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		m, err := readCharsMap(base64.StdEncoding.EncodeToString(data))
		if err != nil {
			return
		}
		p := m.normalize(piece{text: text, track: true, run: newRun(len(text))})
		require.True(t, p.spans == nil || len(p.spans) == len(p.text))
		require.False(t, bytes.ContainsRune([]byte(p.text), 0) && !strings.ContainsRune(text, 0))
	})
}
