// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results.txt")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("RESULT gpt2 lockstep 300 tokens/s\nsome words\nRESULT gpt2 torch_compile 200 tokens/s\n" +
		"RESULT products torch_eager 7e2 TFLOP/s\n")
	var b strings.Builder
	require.NoError(t, table(&b, []string{file}))
	require.Equal(t, `| row | unit | lockstep | torch_compile | ours/torch_compile | torch_eager | ours/torch_eager |
|---|---|---:|---:|---:|---:|---:|
| gpt2 | tokens/s | 300 | 200 | 1.50 |  |  |
| products | TFLOP/s |  |  |  | 700 |  |
`, b.String())
	write("RESULT gpt2 lockstep fast\n")
	require.ErrorContains(t, table(&b, []string{file}), ":1: ")
	require.ErrorContains(t, table(&b, nil), "want files")
}

// Every command runs on the interpreter of kernels.
func TestCommandsOnTheFake(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, run(&settings{device: "fake", steps: 3, batch: 2, block: 16, layers: 1, width: 16, heads: 2,
		vocab: 256, rate: 1e-3, save: dir, curve: filepath.Join(dir, "curve")}, []string{"gpt2"}))
	tokens, err := os.ReadFile(filepath.Join(dir, tokensFile))
	require.NoError(t, err)
	require.Len(t, tokens, 2*3*2*16)
	curve, err := os.ReadFile(filepath.Join(dir, "curve"))
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(string(curve), "\n"))
}
