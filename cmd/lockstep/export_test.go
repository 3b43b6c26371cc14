// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExport(t *testing.T) {
	raw, err := os.ReadFile("../../models/testdata/gguf/llama.gguf")
	require.NoError(t, err)
	t.Chdir(t.TempDir())
	model := filepath.Join("model", "tiny.gguf")
	require.NoError(t, os.Mkdir("model", 0o700))
	require.NoError(t, os.WriteFile(model, raw, 0o600))

	require.NoError(t, os.Mkdir("model.gguf", 0o700))
	code, stdout, stderr := output(nil, "export", model, "--dtype", "q8_0", "--modelfile")
	require.Equal(t, exitOK, code, stderr)
	require.Regexp(t, `^tiny-q8_0\.gguf: 20 tensors, q8_0, 0\.0 MiB in .*s\nModelfile\n$`, stdout)
	text, err := os.ReadFile("Modelfile")
	require.NoError(t, err)
	require.Contains(t, string(text), "FROM ./tiny-q8_0.gguf\n")
	for want, argv := range map[string][]string{
		"tiny-q8_0.gguf exists: want another name": {"export", model, "--dtype", "q8_0"},
		"Modelfile exists: want another folder":    {"export", model, "--modelfile"},
		"is the model itself: want another name":   {"export", model, "-o", model, "--overwrite"},
		"model.gguf is a folder":                   {"export", model, "-o", "model.gguf", "--overwrite"},
		"is not a saved model":                     {"export", "nothing"},
		"nothing is not a saved model":             {"export", "nothing", "--dtype", "Q8_0"}, // as llama.cpp has it
		"is not a saved adapter":                   {"export", model, "--adapter", "model"},
	} {
		code, _, stderr := output(nil, argv...)
		require.Equal(t, exitError, code)
		require.Contains(t, stderr, want)
		require.NoFileExists(t, "tiny-f32.gguf")
	}
	for want, argv := range map[string][]string{
		"export: 0 words: want one MODEL":                             {"export"},
		`export: format "onnx": want gguf`:                            {"export", model, "--format", "onnx"},
		`export: dtype "q4": want one of [auto f32 f16 bf16 q8_0]`:    {"export", model, "--dtype", "q4"},
		"export: unknown flag --outtype; lockstep help export shows ": {"export", model, "--outtype", "f16"},
	} {
		code, _, stderr := output(nil, argv...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, want)
	}
}
