// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// golden is what testdata/golden.py wrote with HuggingFace's tokenizers.
type golden struct {
	Tokenizers string
	Special    []string
	Documents  []string
	Texts      []string
	Runs       []struct {
		VocabSize    int `json:"vocab_size"`
		MinFrequency int `json:"min_frequency"`
		Merges       []string
		IDs          [][]int32
	}
}

func readGolden(t *testing.T) golden {
	data, err := os.ReadFile(filepath.Join("testdata", "golden.json"))
	require.NoError(t, err)
	var g golden
	require.NoError(t, json.Unmarshal(data, &g))
	return g
}

func TestTrainGolden(t *testing.T) {
	g := readGolden(t)
	for _, run := range g.Runs {
		tok, err := Train(context.Background(), documents(g.Documents...), TrainOptions{
			VocabSize: run.VocabSize, MinFrequency: run.MinFrequency, SpecialTokens: g.Special,
		})
		require.NoError(t, err)
		var merges []string
		for _, p := range tok.model.(*bpe).merges {
			merges = append(merges, tok.spelled[p.left()]+" "+tok.spelled[p.right()])
		}
		require.Equal(t, run.Merges, merges, "vocabulary of %d", run.VocabSize)
		for i, text := range g.Texts {
			ids := append([]int32{}, must(t, tok.Encode)(text)...)
			require.Equal(t, run.IDs[i], ids, "vocabulary of %d, %q", run.VocabSize, text)
		}
	}
}

// TestLoadGolden reads HuggingFace's own file and writes it back byte for byte.
func TestLoadGolden(t *testing.T) {
	g := readGolden(t)
	path := filepath.Join("testdata", "golden_tokenizer.json")
	bpe, err := Load(path)
	require.NoError(t, err)
	for i, text := range g.Texts {
		require.Equal(t, g.Runs[0].IDs[i], append([]int32{}, must(t, bpe.Encode)(text)...), "%q", text)
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	var got bytes.Buffer
	_, err = bpe.WriteTo(&got)
	require.NoError(t, err)
	require.Equal(t, string(want), got.String())
}
