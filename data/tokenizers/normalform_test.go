// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"
)

// Characters that are newer than the normal forms of HuggingFace's tokenizers stay unchanged.
func TestNewCharactersHaveNoNormalForm(t *testing.T) {
	for _, c := range []string{"\U0001E066", "\U0001E030", "\u32FF", "\U00010781", "\U00011938"} {
		require.NotEqual(t, c, norm.NFKD.String(c))
		require.Equal(t, c, normalForm(norm.NFKC)(piece{text: c, run: newRun(len(c))}).text, "%+q", c)
		require.Equal(t, c, normalForm(norm.NFKD)(piece{text: c, run: newRun(len(c))}).text, "%+q", c)
	}
	require.Equal(t, "fi", normalForm(norm.NFKC)(piece{text: "\uFB01", run: newRun(3)}).text)
	const marks = "\U0001E08F\u0316" // of classes 230 and 220, by the newer Unicode
	require.Equal(t, marks, normalForm(norm.NFC)(piece{text: marks, run: newRun(len(marks))}).text)
}
