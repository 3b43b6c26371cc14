// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"context"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// TestStreamIsText: bytes that make up no character, which an untrained model writes, come as U+FFFD, and whole
// characters stay what they are.
func TestStreamIsText(t *testing.T) {
	tok, err := Train(context.Background(), documents("no merges"), TrainOptions{VocabSize: 256})
	require.NoError(t, err)
	for _, text := range []string{"\xed", "a\xe2\x82", "\xff\xfe日本", "ok", "\xf0\x9f\x98\x80\xf0"} {
		ids, err := tok.Encode(text)
		require.NoError(t, err)
		stream := tok.NewStream()
		var got strings.Builder
		for _, id := range ids {
			piece, err := stream.Next(id)
			require.NoError(t, err)
			require.True(t, utf8.ValidString(piece), "%q of %q", piece, text)
			got.WriteString(piece)
		}
		got.WriteString(stream.Flush())
		require.True(t, utf8.ValidString(got.String()), "%q of %q", got.String(), text)
		require.Equal(t, strings.Contains(text, "日本"), strings.Contains(got.String(), "日本"))
		if utf8.ValidString(text) {
			require.Equal(t, text, got.String())
		}
	}
}
