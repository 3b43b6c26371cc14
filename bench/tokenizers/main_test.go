// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	dir := filepath.Join("..", "..", "data", "tokenizers", "testdata", "trained")
	var out strings.Builder
	corpus := []string{filepath.Join(dir, "corpus.txt")}
	require.NoError(t, run(&out, 2, 1, filepath.Join(dir, "tokenizer.json"), corpus))
	require.Contains(t, out.String(), "tokens, checksum")
	require.Error(t, run(&out, 2, 1, filepath.Join(dir, "none.json"), nil))
}
