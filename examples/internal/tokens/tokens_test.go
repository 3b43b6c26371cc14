// SPDX-License-Identifier: Apache-2.0

package tokens_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/examples/internal/tokens"
)

// Texts that are encoded in pieces have the tokens of each alone.
func TestEncode(t *testing.T) {
	texts := []string{"", strings.Repeat("some words. ", 150_000), "one", strings.Repeat("two ", 300_000), "three"}
	tok, err := tokens.Train(t.Context(), nil, texts, tokenizers.TrainOptions{VocabSize: 280})
	require.NoError(t, err)
	got, err := tokens.Encode(t.Context(), nil, tok, texts)
	require.NoError(t, err)
	require.Len(t, got, len(texts))
	for i, text := range texts {
		ids, err := tok.Encode(text)
		require.NoError(t, err)
		require.True(t, slices.Equal(ids, got[i]))
	}
	none, err := tokens.Encode(t.Context(), nil, tok, nil)
	require.NoError(t, err)
	require.Empty(t, none)
}
