// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/hub/hubtest"
)

// startHub is a Hub whose cache is empty.
func startHub(t *testing.T) *hubtest.Server {
	s := hubtest.New(t)
	hubtest.Environment(t, s.URL)
	return s
}

// Models of the Hub are exported by their names, at a revision too, and without the Hub from the cache.
func TestExportOfTheHub(t *testing.T) {
	raw, err := os.ReadFile("../../models/testdata/gguf/llama.gguf")
	require.NoError(t, err)
	s := startHub(t)
	commit := s.Add("models/org/tiny", map[string]string{"tiny.gguf": string(raw), "README.md": "read me"})
	t.Chdir(t.TempDir())
	for _, argv := range [][]string{{}, {"--revision", "main"}, {"--revision", commit}} {
		code, stdout, stderr := output(nil, append([]string{"export", "org/tiny", "--dtype", "q8_0", "-o", "a.gguf",
			"--overwrite"}, argv...)...)
		require.Equal(t, exitOK, code, stderr)
		require.Contains(t, stdout, "a.gguf: 20 tensors")
	}
	code, _, stderr := output(nil, "export", "org/tiny", "--revision", "v2")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "v2")
	code, _, stderr = output(nil, "export", "org/none")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "there is no folder org/none here, and: ")

	s.Forget()
	t.Setenv("HF_HUB_OFFLINE", "1")
	code, _, stderr = output(nil, "export", "org/tiny", "-o", "b.gguf")
	require.Equal(t, exitOK, code, stderr)
	require.FileExists(t, "b.gguf")
	code, _, stderr = output(nil, "export", "org/other", "-o", "c.gguf")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "HF_HUB_OFFLINE")
	require.Empty(t, s.Requests())
}

// An estimate needs the configuration of a model of the Hub, and downloads nothing else.
func TestEstimateOfTheHub(t *testing.T) {
	s := startHub(t)
	s.Add("models/org/tiny", map[string]string{"model.safetensors": strings.Repeat("x", 1<<16), "config.json": `{
		"model_type": "gpt2", "vocab_size": 50, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2}`})
	for _, argv := range [][]string{{"estimate-memory", "org/tiny"}, {"estimate-memory", "org/tiny", "--revision=main"},
		{"estimate-memory", "--model_name_or_path=org/tiny", "--json"},
		{"simulate", "org/tiny", "--mesh", "dp_replicate=2"}} {
		code, stdout, stderr := output(nil, argv...)
		require.Equal(t, exitOK, code, "%v: %s", argv, stderr)
		require.NotEmpty(t, stdout)
	}
	for _, r := range s.Requests() {
		require.NotContains(t, r.URL.Path, "safetensors")
	}
	code, _, stderr := output(nil, "estimate-memory", "org/none")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "org/none")
	code, _, stderr = output(nil, "estimate-memory", "org/tiny", "--revision", "v2")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "v2")
	s.Forget()
	t.Setenv("HF_HUB_OFFLINE", "1")
	code, _, stderr = output(nil, "estimate-memory", "org/tiny")
	require.Equal(t, exitOK, code, stderr)
	require.Empty(t, s.Requests())
}
