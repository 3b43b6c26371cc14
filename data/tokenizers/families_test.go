// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// families are the paths of small tokenizers with the pipelines of model families, which testdata/families.py made.
func families(t testing.TB) []string {
	paths, err := filepath.Glob(filepath.Join("testdata", "families", "*.json.gz"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	return paths
}

func gunzipped(t testing.TB, path string) []byte {
	packed, err := os.ReadFile(path)
	require.NoError(t, err)
	z, err := gzip.NewReader(bytes.NewReader(packed))
	require.NoError(t, err)
	data, err := io.ReadAll(z)
	require.NoError(t, err)
	return data
}

// familyGolden is what HuggingFace's tokenizers make of texts. Offsets are in bytes.
type familyGolden struct {
	Name  string
	Lines []familyLine
}

type familyLine struct {
	First, Second    string
	Room             int
	IDs              []int32
	Offsets          [][2]int
	Words, Types     []int32
	Special          []int
	Text, Shown      string
	PairIDs          []int32  `json:"pair_ids"`
	PairOffsets      [][2]int `json:"pair_offsets"`
	PairTypes        []int32  `json:"pair_types"`
	PairSequences    []int32  `json:"pair_sequences"`
	PaddedIDs        []int32  `json:"padded_ids"`
	PaddedAttentions []int32  `json:"padded_attention"`
}

// Every pipeline gives HuggingFace's ids, offsets, words, pairs and texts on hostile texts.
func TestFamiliesAreThoseOfHuggingFace(t *testing.T) {
	for _, path := range families(t) {
		name := strings.TrimSuffix(filepath.Base(path), ".json.gz")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := gunzipped(t, path)
			tok, err := Read(bytes.NewReader(file))
			require.NoError(t, err)
			var g familyGolden
			require.NoError(t, json.Unmarshal(gunzipped(t, filepath.Join("testdata", "families", "golden",
				name+".json.gz")), &g))
			require.NotEmpty(t, g.Lines)
			for i := range g.Lines {
				compareFamily(t, tok, &g.Lines[i], name != "holes")
			}
			var written bytes.Buffer
			_, err = tok.WriteTo(&written)
			require.NoError(t, err)
			require.Equal(t, string(file), written.String())
		})
	}
}

// compareFamily compares a line. After a byte without a token the reference's offsets are off: they are not exact.
func compareFamily(t *testing.T, tok *Tokenizer, line *familyLine, exact bool) {
	t.Helper()
	got, err := tok.Tokenize(line.First, EncodeOptions{})
	require.NoError(t, err)
	require.Equal(t, line.IDs, nonNil(got.IDs), "%q", line.First)
	if exact {
		require.Equal(t, line.Offsets, pairsOf(got.Offsets), "%q", line.First)
	}
	require.Equal(t, line.Words, nonNil(got.Words), "%q", line.First)
	require.Equal(t, line.Types, nonNil(got.TypeIDs), "%q", line.First)
	for j, s := range got.Special {
		require.Equal(t, line.Special[j] == 1, s, "%q", line.First)
	}
	require.Equal(t, line.IDs, nonNil(must(t, tok.EncodeWithSpecial)(line.First)), "%q", line.First)
	compareDecoded(t, tok, line, exact)
	comparePair(t, tok, line, exact)
}

func compareDecoded(t *testing.T, tok *Tokenizer, line *familyLine, exact bool) {
	t.Helper()
	text, err := tok.Decode(must(t, tok.Encode)(line.First))
	require.NoError(t, err)
	if !exact {
		return // nor are its bytes UTF-8, which the reference replaces
	}
	require.Equal(t, line.Text, text)
	shown, err := tok.DecodeText(line.IDs)
	require.NoError(t, err)
	require.Equal(t, line.Shown, shown)
	var streamed strings.Builder
	stream := tok.NewStream()
	for _, id := range line.IDs {
		s, err := stream.Next(id)
		require.NoError(t, err)
		streamed.WriteString(s)
	}
	streamed.WriteString(stream.Flush())
	require.Equal(t, line.Shown, streamed.String())

}

func comparePair(t *testing.T, tok *Tokenizer, line *familyLine, exact bool) {
	t.Helper()
	pair, err := tok.TokenizePair(line.First, line.Second, EncodeOptions{MaxLength: line.Room})
	require.NoError(t, err)
	require.Equal(t, line.PairIDs, nonNil(pair.IDs), "%q and %q", line.First, line.Second)
	if exact {
		require.Equal(t, line.PairOffsets, pairsOf(pair.Offsets), "%q and %q", line.First, line.Second)
	}
	require.Equal(t, line.PairTypes, nonNil(pair.TypeIDs), "%q and %q", line.First, line.Second)
	require.Equal(t, line.PairSequences, nonNil(pair.Sequences), "%q and %q", line.First, line.Second)
	got, err := tok.Tokenize(line.First, EncodeOptions{})
	require.NoError(t, err)
	batch := []*Encoding{got}
	Pad(batch, Padding{ID: 1, MultipleOf: 8, Left: true})
	require.Equal(t, line.PaddedIDs, nonNil(batch[0].IDs))
	require.Equal(t, line.PaddedAttentions, nonNil(batch[0].Attention))
}

func nonNil(list []int32) []int32 { return append([]int32{}, list...) }

func pairsOf(offsets []Offset) [][2]int {
	out := make([][2]int, len(offsets))
	for i, o := range offsets {
		out[i] = [2]int{o.Start, o.End}
	}
	return out
}

// The texts that the families' goldens have tell one split from another.
func TestGPT2sSplitDiffersFromQwens(t *testing.T) {
	file := string(gunzipped(t, filepath.Join("testdata", "families", "qwen3.json.gz")))
	tok, err := Read(strings.NewReader(file))
	require.NoError(t, err)
	gpt, err := Read(strings.NewReader(strings.Replace(file,
		`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}`+
			`| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|`,
		`'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|`, 1)))
	require.NoError(t, err)
	words := func(tok *Tokenizer) int32 {
		e, err := tok.Tokenize("I'M 1234\t\t", EncodeOptions{})
		require.NoError(t, err)
		return e.Words[len(e.Words)-1]
	}
	require.NotEqual(t, words(tok), words(gpt))
}
