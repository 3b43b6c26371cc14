// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// must is a method of a Tokenizer that has no error on the text.
func must(t testing.TB, encode func(text string) ([]int32, error)) func(text string) []int32 {
	return func(text string) []int32 {
		t.Helper()
		ids, err := encode(text)
		require.NoError(t, err, "%.100q", text)
		return ids
	}
}
